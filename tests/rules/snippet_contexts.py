"""Complete attention code around the snippets of the rules' pages, so that tests can check a snippet as a target.

A context gives what comes before and after a snippet in `forward`. A line of a snippet such as `self.wq = nn.Linear(…)`
goes to `__init__`, which also creates every other `self.wq`, `self.wk`, `self.wv` or `self.wo` that the code uses.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass, field

from attnshape.checks.rules.pages import Page

HELPERS = """
import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn


def attend(q, k, v):
    return (q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))).softmax(dim=-1) @ v


def rotate(x, cos, sin):
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class Head(nn.Module):
    def __init__(self, D, Dk):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(D, Dk) for _ in range(3))

    def forward(self, x):
        return attend(self.q(x), self.k(x), self.v(x))


class Block(nn.Module):
    def __init__(self, D, H):
        super().__init__()
        self.heads = nn.ModuleList(Head(D, D // H) for _ in range(H))

    def forward(self, x):
        return x + torch.cat([head(x) for head in self.heads], dim=-1)


def merge(context):
    return context.transpose(1, 2).flatten(2)


def table(length, width):
    angles = torch.arange(length)[:, None] * 10000.0 ** (-torch.arange(0, width, 2) / width)
    return angles.cos(), angles.sin()
"""
_LAYERS = (
    "self.attention = Head(D, D)\nself.convolution, self.mlp = nn.Linear(D, D), nn.Linear(D, D)\n"
    "self.dropout, self.norm = nn.Dropout(0.1), nn.LayerNorm(D)\n"
    "self.norm_1, self.norm_2, self.norm_3 = (nn.LayerNorm(D) for _ in range(3))"
)
_PARAMETER = re.compile(r"self\.(?:\w+) = (?:nn\.|torch\.|\[Block)")
_PROJECTION = re.compile(r"self\.(w[qkvo])\b")


@dataclass(frozen=True)
class Context:
    """The code around a snippet in a module with the sizes B, L, H and Dk, or others, and a model width D."""

    before: str
    after: str
    inputs: dict[str, str] = field(default_factory=lambda: {"x": "torch.randn(B, L, D)"})
    sizes: str = "B, L, H, Dk"
    width: str = "H * Dk"
    init: str = ""
    claims: tuple[str, ...] = ()
    at_module_level: bool = False

    def source(self, page: Page, section: str) -> tuple[str, range]:
        """Return a file with a function `case`, and the numbers of the lines with the snippet in it."""
        lines = _snippet(page, section)
        both = "\n".join([self.before, *_snippet(page, "Wrong"), *_snippet(page, "Right"), self.after])
        init = [line for line in lines if _PARAMETER.match(line)]
        assigned = {line.split(" = ")[0] for line in [*init, *self.init.splitlines()]}
        names = [name for name in dict.fromkeys(_PROJECTION.findall(both)) if f"self.{name}" not in assigned]
        init += [f"self.{name} = nn.Linear(D, D)" for name in names] + self.init.splitlines()
        inside = [] if self.at_module_level else [line for line in lines if not _PARAMETER.match(line)]
        parts = [
            (HELPERS, 0),
            ("\n".join(lines) if self.at_module_level else "", 0),
            (f"class Attention(nn.Module):\n    def __init__(self, {self.sizes}):\n        super().__init__()", 0),
            (f"D = {self.width}\nself.sizes = ({self.sizes}, D)", 8),
            ("\n".join(init), 8),
            (f"def forward(self, {', '.join(self.inputs)}):\n    {self.sizes}, D = self.sizes", 4),
            (self.before, 8),
            ("\n".join(inside), 8),
            (self.after, 8),
            (f"def case({self.sizes}):\n    D = {self.width}", 0),
            (f"return Attention({self.sizes}), ({', '.join(self.inputs.values())},), {{}}, {list(self.claims)}", 4),
        ]
        text = ""
        snippet = range(0)
        for number, (part, indent) in enumerate(parts):
            start = text.count("\n") + 1
            text += textwrap.indent(part, " " * indent) + "\n"
            if number in (1, 4, 7) and part:
                snippet = range(min(start, snippet.start or start), text.count("\n") + 1)
        return text, snippet


def _snippet(page: Page, section: str) -> list[str]:
    return page.sections[section].removeprefix("```python\n").removesuffix("\n```").splitlines()


SPLIT = "q, k, v = (w(x).view(B, L, H, Dk).transpose(1, 2) for w in (self.wq, self.wk, self.wv))"
SCORES = "scores = q @ k.transpose(-2, -1) / math.sqrt(Dk)"
SCORED = f"{SPLIT}\n{SCORES}"
CONTEXT = "context = weights @ v"
OUTPUT = "return self.wo(context.transpose(1, 2).reshape(B, L, D))"
ATTEND = f"context = attend(q, k, v)\n{OUTPUT}"
SOFTMAX = f"weights = scores.softmax(dim=-1)\n{CONTEXT}\n{OUTPUT}"
KV = "k, v = (w(x).view(B, L, H, Dk).transpose(1, 2) for w in (self.wk, self.wv))"
X = {"x": "torch.randn(B, L, D)"}
LOWER = "torch.ones(B, 1, L, L, dtype=torch.bool).tril()"
QKV = dict.fromkeys("qkv", "torch.randn(B, H, L, Dk)")
ONE_HEAD = {"sizes": "B, L, D", "width": "D"}
ONE_HEAD_OUTPUT = "return (scores / math.sqrt(D)).softmax(dim=-1) @ self.wv(x)"
CROSS = {
    "sizes": "B, Lq, Lk, H, Dk",
    "inputs": {"x": "torch.randn(B, Lq, D)", "memory": "torch.randn(B, Lk, D)"},
}
CROSS_SPLIT = (
    "q = self.wq(x).view(B, Lq, H, Dk).transpose(1, 2)\n"
    "k, v = (w(memory).view(B, Lk, H, Dk).transpose(1, 2) for w in (self.wk, self.wv))"
)
CROSS_OUTPUT = "return self.wo(context.transpose(1, 2).reshape(B, Lq, D))"
CACHED = {
    "sizes": "B, L, Lp, H, Dk",
    "inputs": {
        "x": "torch.randn(B, L, D)",
        "past_k": "torch.randn(B, H, Lp, Dk)",
        "past_v": "torch.randn(B, H, Lp, Dk)",
    },
}
BLOCKS = {"sizes": "B, H, Dk, W", "inputs": {"x": "torch.randn(B, 3 * W, D)"}}
GROUPED = {
    "sizes": "B, L, Hkv, G, Dk",
    "width": "Hkv * G * Dk",
    "init": "self.wk = nn.Linear(D, Hkv * Dk)\nself.wv = nn.Linear(D, Hkv * Dk)",
}
GROUPED_Q = "H = Hkv * G\nq = self.wq(x).view(B, L, H, Dk).transpose(1, 2)"
GROUPED_KV = "k, v = (w(x).view(B, L, Hkv, Dk).transpose(1, 2) for w in (self.wk, self.wv))"

CONTEXTS: dict[str, Context] = {
    "AS001": Context(
        "B, T, C = x.size()\nnh, hs = H, C // H",
        f"k, v = (w(x).view(B, T, nh, hs).transpose(1, 2) for w in (self.wk, self.wv))\n{ATTEND}",
    ),
    "AS002": Context(
        "B, T, C = x.size()\nnh, hs = H, C // H", f"v = self.wv(x).view(B, T, nh, hs).transpose(1, 2)\n{ATTEND}"
    ),
    "AS003": Context(
        "B, T, C = x.size()\nnh, hs = H, C // H\n"
        "q, k, v = (w(x).view(B, T, nh, hs).transpose(1, 2) for w in (self.wq, self.wk, self.wv))\n"
        "q = q / math.sqrt(hs)",
        "return self.wo(y.transpose(1, 2).reshape(B, T, C))",
    ),
    "AS004": Context(
        CROSS_SPLIT,
        f"scores = q @ k.transpose(-2, -1) / math.sqrt(Dk)\ncontext = attend(scores, mask) @ v\n{CROSS_OUTPUT}",
        {**CROSS["inputs"], "mask": "torch.ones(Lq, Lk, dtype=torch.bool).tril()"},
        CROSS["sizes"],
        at_module_level=True,
    ),
    "AS101": Context("", ONE_HEAD_OUTPUT, **ONE_HEAD),
    "AS102": Context("", "return output", sizes="B, L, H, Dk"),
    "AS103": Context("", f"scores = q @ self.wk(x).transpose(-2, -1)\n{ONE_HEAD_OUTPUT}", **ONE_HEAD),
    "AS104": Context("", f"scores = q @ self.wk(x).transpose(-2, -1)\n{ONE_HEAD_OUTPUT}", **ONE_HEAD),
    "AS105": Context(
        "",
        f"x = features.transpose(1, 2)\nscores = self.wq(x) @ self.wk(x).transpose(-2, -1)\n{ONE_HEAD_OUTPUT}",
        **ONE_HEAD,
        init="self.convolution = nn.Conv1d(D, D, 3, padding=1)",
    ),
    "AS106": Context("", "return self.wo(out)"),
    "AS107": Context(
        "q = self.wq(x).view(B, L, H, Dk).transpose(1, 2)",
        ATTEND,
        {**X, "memory": "torch.randn(B, 3, D)"},
    ),
    "AS108": Context(
        "",
        "return self.wo(attend(q, k, v))",
        {"x": "torch.randn(B, L, D)", "memory": "torch.randn(B, L, D)"},
        **ONE_HEAD,
    ),
    "AS109": Context(
        "q, k, v = (w(x).transpose(1, 2) for w in (self.wq, self.wk, self.wv))",
        "return self.wo((scores.softmax(dim=-1) @ v).transpose(1, 2))",
        **ONE_HEAD,
    ),
    "AS111": Context("", f"{KV}\n{ATTEND}"),
    "AS112": Context("", f"{KV}\n{ATTEND}"),
    "AS113": Context("", "return attend(q, k, v)", **ONE_HEAD, init="self.qkv = nn.Linear(D, 3 * D)"),
    "AS114": Context(f"{SPLIT}\ncontext = attend(q, k, v)", "return output"),
    "AS115": Context(
        "",
        "return output",
        init="self.heads = nn.ModuleList([Head(D, Dk) for _ in range(H)])",
    ),
    "AS116": Context(f"{SPLIT}\nk, v = (one.reshape(B * H, L, Dk) for one in (k, v))", OUTPUT),
    "AS117": Context(SCORED, SOFTMAX, {**X, "lengths": "L - torch.arange(B) % (L - 1)"}),
    "AS118": Context("", ATTEND, init="self.positions = nn.Parameter(torch.randn(50, D))"),
    "AS119": Context("", "return attend(mixed, mixed, mixed)", init="self.filter = nn.Parameter(torch.rand(D))"),
    "AS120": Context(
        "L = 2 * W * W\nx = image.flatten(2).mT",
        f"q = self.wq(x).view(B, L, H, Dk).transpose(1, 2)\n{ATTEND}",
        {"image": "torch.randn(B, D, W, 2 * W)"},
        "B, H, Dk, W",
        init="self.pool = nn.AvgPool2d(2)",
    ),
    "AS121": Context(
        "q, k, v = self.wq(x), self.wk(x), self.wv(x)\ncontexts = []", "return torch.cat(contexts, dim=-1)"
    ),
    "AS122": Context(
        "P = 3\noffsets = self.offsets(x).view(B, L, P, 2)",
        "weights = self.weights(x).softmax(dim=-1)\nreturn (points * weights[:, None]).sum(-1).mT",
        {**X, "reference": "torch.rand(B, L, 2)", "image": "torch.randn(B, D, W, 2 * W)"},
        "B, L, H, Dk, W",
        init="self.offsets, self.weights = nn.Linear(D, 6), nn.Linear(D, 3)",
    ),
    "AS123": Context(SPLIT, OUTPUT.replace("context", "out"), init="self.size = 4"),
    "AS124": Context(
        "L = 6 * W",
        f"x = x.flatten(1, 2)\n{SPLIT}\n{ATTEND}",
        {"x": "torch.randn(B, 4, 6 * W, D)"},
        "B, H, Dk, W",
        init="self.reduction = nn.Linear(4 * D, D)",
    ),
    "AS125": Context(
        "offsets = 0.1 * self.offsets(image.flatten(2).mT).tanh()",
        "return points.flatten(2).mT",
        {"image": "torch.randn(B, D, W, 2 * W)"},
        "B, H, Dk, W",
        init="self.offsets = nn.Linear(D, 2)",
    ),
    "AS126": Context(SPLIT, SOFTMAX),
    "AS201": Context("", f"v = self.wv(x).view(B, L, H, Dk).transpose(1, 2)\n{SOFTMAX}"),
    "AS202": Context(CROSS_SPLIT, f"context = scores.softmax(dim=-1) @ v\n{CROSS_OUTPUT}", **CROSS),
    "AS203": Context("Dk = D\nk = self.wk(x)", "return scores.softmax(dim=-1) @ self.wv(x)", **ONE_HEAD),
    "AS204": Context(SPLIT, f"{CONTEXT}\n{OUTPUT}", claims=("scale=1/sqrt(Dk)",)),
    "AS205": Context(SPLIT, SOFTMAX),
    "AS206": Context(SPLIT, f"{CONTEXT}\n{OUTPUT}"),
    "AS207": Context(SPLIT, SOFTMAX, claims=("scale=1/sqrt(Dk)",)),
    "AS208": Context(f"{SCORED}\nkeep = torch.ones(L, L, dtype=torch.bool).tril(-1)", f"{CONTEXT}\n{OUTPUT}"),
    "AS209": Context(f"{SPLIT}\nfrequencies = 10000.0 ** (-torch.arange(0, Dk, 2) / Dk)", ATTEND),
    "AS301": Context(CROSS_SPLIT + f"\n{SCORES}", CROSS_OUTPUT, **CROSS),
    "AS302": Context(SCORES, "return context", QKV),
    "AS303": Context(SCORED, OUTPUT, {**X, "keep": LOWER}, claims=("keep=keep",)),
    "AS304": Context(SCORED, OUTPUT, {**X, "bias": "torch.randn(H, L, L)"}),
    "AS305": Context(SCORED, OUTPUT, init="self.dropout = nn.Dropout(0.1)"),
    "AS306": Context(SCORED, f"{CONTEXT}\n{OUTPUT}"),
    "AS307": Context(SCORED, OUTPUT),
    "AS308": Context(SPLIT, OUTPUT),
    "AS309": Context(
        SCORED,
        f"{CONTEXT}\n{OUTPUT}",
        {**X, "keep": "torch.ones(B, 1, L, L, dtype=torch.bool).tril(-1)"},
        claims=("keep=keep", "zero-masked-rows"),
    ),
    "AS310": Context(SPLIT, OUTPUT),
    "AS311": Context(
        f"{SPLIT}\npeak, total = q.new_full((B, H, L, 1), -torch.inf), q.new_zeros(B, H, L, 1)\n"
        "context = torch.zeros_like(q)",
        OUTPUT,
    ),
    "AS401": Context(SCORED, SOFTMAX, {**X, "keep": LOWER}, claims=("keep=keep",)),
    "AS402": Context(
        SCORED, SOFTMAX, {**X, "keep": "torch.arange(L) < L - torch.arange(B)[:, None] % 3"}, claims=("keep=keep",)
    ),
    "AS403": Context(
        f"{SPLIT}\nq, k, v = (one.reshape(B * H, L, Dk) for one in (q, k, v))\n{SCORES}",
        f"weights = scores.softmax(dim=-1)\ncontext = (weights @ v).view(B, H, L, Dk)\n{OUTPUT}",
        {**X, "mask": "(torch.arange(L) >= L - torch.arange(B)[:, None, None] % 3).expand(B, L, L)"},
        claims=("mask=drop",),
    ),
    "AS404": Context(SCORED, f"{CONTEXT}\n{OUTPUT}", {**X, "keep": LOWER}),
    "AS405": Context(SCORED, f"{CONTEXT}\n{OUTPUT}", {**X, "keep": LOWER}),
    "AS406": Context(
        SCORED,
        f"{CONTEXT}\n{OUTPUT}",
        {**X, "keep": "torch.ones(B, 1, L, L, dtype=torch.bool).tril(-1)"},
        claims=("keep=keep", "zero-masked-rows"),
    ),
    "AS407": Context(
        SCORED,
        f"{CONTEXT}\n{OUTPUT}",
        {**X, "keep": "torch.arange(L) < L - torch.arange(B)[:, None] % 3"},
        claims=("keep=keep",),
    ),
    "AS408": Context(SPLIT, "return self.wo(out.transpose(1, 2).reshape(B, L, D))"),
    "AS409": Context(
        f"L = 3 * W\n{SPLIT}\nq, k, v = (t.unflatten(2, (-1, W)) for t in (q, k, v))",
        "out = (weights @ v).flatten(2, 3)\nreturn self.wo(out.transpose(1, 2).reshape(B, L, D))",
        **BLOCKS,
        claims=("causal", "window=W"),
    ),
    "AS410": Context(
        "L, shift = 3 * W, W // 2",
        "out = (scores.softmax(dim=-1) @ v).transpose(2, 3).reshape(B, L, D)\n"
        "return self.wo(torch.roll(out, shift, dims=1))",
        **BLOCKS,
    ),
    "AS411": Context(
        SCORED,
        SOFTMAX,
        {**X, "lengths": "torch.arange(B) % (L - 1) + 1"},
        claims=("lengths=length",),
    ),
    "AS412": Context(
        SCORED,
        "",
        {**X, "keep": "torch.arange(L) < L - torch.arange(B)[:, None] % 3"},
        claims=("keep=keep",),
    ),
    "AS413": Context(
        "q, k, v = (w(x).view(L, H, Dk).transpose(0, 1) for w in (self.wq, self.wk, self.wv))",
        "scores = (q @ k.transpose(-2, -1) / math.sqrt(Dk)).masked_fill(~keep, -math.inf)\n"
        "return self.wo((scores.softmax(dim=-1) @ v).transpose(0, 1).reshape(L, D))",
        {"x": "torch.randn(L, D)", "cu_seqlens": "torch.tensor([0, L // 2, L])"},
        "L, H, Dk",
    ),
    "AS501": Context(SCORED, SOFTMAX, claims=("causal",)),
    "AS502": Context(SCORED, SOFTMAX, claims=("causal",)),
    "AS503": Context(
        f"{CROSS_SPLIT}\n{SCORES}", f"context = scores.softmax(dim=-1) @ v\n{CROSS_OUTPUT}", **CROSS, claims=("causal",)
    ),
    "AS504": Context(SPLIT, f"{CONTEXT}\n{OUTPUT}", **CACHED, claims=("causal",)),
    "AS505": Context(
        f"{SCORED}\npositions = torch.arange(L)", SOFTMAX, sizes="B, L, H, Dk, W", claims=("causal", "window=W")
    ),
    "AS506": Context(
        f"{SCORED}\npositions, P = torch.arange(L), W",
        SOFTMAX,
        sizes="B, L, H, Dk, W",
        claims=("visible=k <= q or k < W",),
    ),
    "AS601": Context(f"{GROUPED_Q}\n{GROUPED_KV}", ATTEND, **GROUPED),
    "AS602": Context(f"{GROUPED_Q}\n{GROUPED_KV}", f"v = v.repeat_interleave(G, dim=1)\n{ATTEND}", **GROUPED),
    "AS603": Context(SPLIT, SOFTMAX),
    "AS604": Context("H = Hkv * G", "return out", **GROUPED),
    "AS701": Context(
        f"{SPLIT}\nfrequencies = 10000.0 ** (-torch.arange(0, Dk, 2) / Dk)\nk = rotate(k, *table(L, Dk))",
        ATTEND,
        claims=("rope=half",),
    ),
    "AS702": Context(f"{SPLIT}\ncos, sin = table(L, Dk)", OUTPUT, claims=("rope=half",)),
    "AS703": Context(
        f"{SPLIT}\npast = past_k.size(-2)\ncos, sin = table(past + L, Dk)",
        f"k, v = torch.cat((past_k, k), dim=-2), torch.cat((past_v, v), dim=-2)\n{ATTEND}",
        {**X, "past_k": "torch.randn(B, H, Lp, Dk)", "past_v": "torch.randn(B, H, Lp, Dk)"},
        "B, L, Lp, H, Dk",
        claims=("rope=half",),
    ),
    "AS704": Context(
        f"{SPLIT}\nfrequencies = 10000.0 ** (-torch.arange(0, Dk, 2) / Dk)\npositions = torch.arange(L)\n"
        "k = rotate(k, *table(L, Dk))",
        ATTEND,
        claims=("rope=half",),
    ),
    "AS705": Context(
        "past = cached_k.size(-2)\ncos, sin = table(past + L, D)",
        "v = torch.cat((cached_v, self.wv(x)), dim=-2)\nq = rotate(self.wq(x), cos[past:], sin[past:])\n"
        "return attend(q, k, v), cached_k, v",
        {**X, "cached_k": "torch.randn(B, Lp, D)", "cached_v": "torch.randn(B, Lp, D)"},
        "B, L, Lp, D",
        "D",
        claims=("rope=half",),
    ),
    "AS706": Context(
        f"{SCORED}\npositions = torch.arange(L)\nslopes = 2.0 ** -torch.arange(1.0, H + 1)", SOFTMAX, claims=("alibi",)
    ),
    "AS707": Context(SCORED, SOFTMAX, {**X, "bias": "torch.randn(B, L)"}, claims=("bias=bias",)),
    "AS708": Context(f"{SPLIT}\ncos, sin = table(L, Dk)", SOFTMAX, claims=("rope=half",)),
    "AS709": Context(f"{SPLIT}\ncos, sin = table(L, Dk)", ATTEND),
    "AS710": Context(
        f"{SCORED}\nindex = torch.arange(L) - torch.arange(L)[:, None] + L - 1",
        SOFTMAX,
        init="self.table = nn.Parameter(torch.randn(2 * L - 1, H))",
    ),
    "AS711": Context(
        f"{SPLIT}\npast = past_k.size(-2)\nk, v = torch.cat((past_k, k), dim=-2), torch.cat((past_v, v), dim=-2)\n"
        f"{SCORES}\nslopes = 2.0 ** -torch.arange(1.0, H + 1)",
        SOFTMAX,
        {**X, "past_k": "torch.randn(B, H, Lp, Dk)", "past_v": "torch.randn(B, H, Lp, Dk)"},
        "B, L, Lp, H, Dk",
    ),
    "AS712": Context(SCORED, SOFTMAX, init="self.table = nn.Parameter(torch.randn(2 * L - 1, H))"),
    "AS713": Context(
        f"{SPLIT}\npositions = torch.arange(L)\nslopes = 2.0 ** -torch.arange(1.0, H + 1)", SOFTMAX, claims=("alibi",)
    ),
    "AS714": Context(
        f"{SPLIT}\ndistances = torch.sin(torch.arange(1 - L, L)[:, None] / torch.arange(1, Dk + 1)).to(q)", SOFTMAX
    ),
    "AS715": Context(
        f"L = 2 * W * W\n{SCORED}\nplace = torch.arange(L)\n"
        "down, right = place // (2 * W), place % (2 * W)\n"
        "down, right = down[:, None] - down + W - 1, right[:, None] - right + 2 * W - 1",
        SOFTMAX,
        {"x": "torch.randn(B, 2 * W * W, D)"},
        "B, H, Dk, W",
        init="self.table = nn.Parameter(torch.randn((2 * W - 1) * (4 * W - 1), H))",
    ),
    "AS716": Context(
        "", "return self.wo(attend(q, k, v))", **ONE_HEAD, init="self.positions = nn.Parameter(torch.randn(1, 100, D))"
    ),
    "AS717": Context(
        "L = 2 * W * W",
        f"{SPLIT}\n{ATTEND}",
        {"image": "torch.randn(B, D, W, 2 * W)"},
        "B, H, Dk, W",
        init="self.of_row, self.of_column = nn.Embedding(W, D), nn.Embedding(2 * W, D)",
    ),
    "AS718": Context(SPLIT, SOFTMAX),
    "AS719": Context("", "return self.wo(attend(q, k, v))", **ONE_HEAD),
    "AS801": Context("", "return self.wo(context)", {**X, "memory": "torch.randn(B, L, D)"}, **ONE_HEAD),
    "AS802": Context("", "return context", QKV),
    "AS803": Context("", "return context", QKV),
    "AS804": Context(
        "",
        "return self.wo(context)",
        {"x": "torch.randn(B, Lq, D)", "memory": "torch.randn(B, Lk, D)"},
        "B, Lq, Lk, D",
        "D",
    ),
    "AS805": Context("", "return self.wo(attend(q, k, v))", **ONE_HEAD),
    "AS806": Context("", ATTEND),
    "AS807": Context("", "", **ONE_HEAD, init="self.norm = nn.LayerNorm(D)"),
    "AS808": Context("", "return self.wo(attend(q, k, v))", **ONE_HEAD),
    "AS809": Context("q, k, v = self.wq(x), self.wk(x), self.wv(x)", "return self.wo(attend(q, k, v))", **ONE_HEAD),
    "AS810": Context("", "return x"),
    "AS811": Context("", "return self.wo(x)"),
    "AS812": Context(
        "",
        "",
        {**QKV, "scale": "Dk**-0.5"},
        init="self.forward = attend_scaled",
        at_module_level=True,
    ),
    "AS813": Context(
        f"{SPLIT}\npositions = torch.arange(L, dtype=x.dtype)[:, None]",
        SOFTMAX,
        init="self.content_scale = (2 * Dk) ** -0.5\nself.distance_scale = 2**-0.5",
    ),
    "AS814": Context(SPLIT, OUTPUT),
    "AS815": Context("", "return x", init=_LAYERS),
    "AS816": Context("", "", init=_LAYERS),
    "AS817": Context(
        "def split(t):\n    return t.view(B, L, H, Dk).transpose(1, 2)\nq = split(self.wq(x))",
        f"{SCORES}\n{SOFTMAX}",
        init="self.k_proj = nn.Linear(H * Dk, H * Dk)\nself.v_proj = nn.Linear(H * Dk, H * Dk)",
    ),
    "AS818": Context(
        "",
        "return x",
        init="self.attend, self.norm = Head(D, D), nn.LayerNorm(D)\nself.gamma = nn.Parameter(torch.full((D,), 0.1))",
    ),
    "AS901": Context(SCORED, OUTPUT, init="self.p = 0.1"),
    "AS902": Context(
        f"L = x.size(1)\npast_k = past_v = torch.empty(B, H, 0, Dk)\n{SPLIT}",
        OUTPUT,
        init="self.k = self.v = torch.empty(B, H, 0, Dk)",
    ),
    "AS903": Context(
        "", "return self.wo(attend(q, k, v))", **ONE_HEAD, init="self.positions = nn.Parameter(torch.randn(L, D))"
    ),
    "AS904": Context(
        f"{SCORED}\nlater = torch.ones(L, L, dtype=torch.bool).triu(1)",
        SOFTMAX,
        init='self.register_buffer("bias", torch.randn(H, L, L))',
    ),
    "AS905": Context(
        SPLIT,
        "",
        {**X, "past_k": "torch.randn(B, H, Lp, Dk)", "past_v": "torch.randn(B, H, Lp, Dk)"},
        "B, L, Lp, H, Dk",
    ),
    "AS906": Context(SPLIT, ""),
    "AS907": Context(
        "caches = {}\nfor tokens in (x[:, :2], x[:, 2:]):\n    for head in self.heads:\n"
        "        tokens = tokens + head(tokens, caches)\nreturn tokens",
        "",
        **ONE_HEAD,
        init="self.heads = nn.ModuleList([CachedHead(D, D) for _ in range(2)])",
        at_module_level=True,
    ),
    "AS908": Context(
        f"angles = lambda place: [t[place.long()] for t in table(100, Dk)]\nL = x.size(1)\n{SPLIT}",
        "keep = torch.ones(L, k.size(2), dtype=torch.bool).tril(k.size(2) - L)\n"
        "return self.wo(merge(F.scaled_dot_product_attention(q, k, v, keep))), k, v",
        {**X, "past_k": "torch.randn(B, H, Lp, Dk)", "past_v": "torch.randn(B, H, Lp, Dk)"},
        "B, L, Lp, H, Dk",
    ),
    "AS909": Context("", "return out"),
    "AS910": Context(
        "queries, keys, values = self.wq(x), self.wk(x), self.wv(x)\nsteps = torch.arange(self.chunk)[:, None]\n"
        "near, state, out = (0.9 ** (steps - steps.T)).tril(), x.new_zeros(B, D, D), []",
        "return torch.cat(out, dim=1)",
        {"x": "torch.randn(B, Nw * W, D)"},
        "B, Nw, W, D",
        "D",
        init="self.chunk = W",
    ),
}

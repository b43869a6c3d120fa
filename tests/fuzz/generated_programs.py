"""Programs of attention code in many styles, which run without an error: a grammar over the kinds of their tensors.

`PROGRAMS` draws them. A program is one file with a module class or a function. The kinds: `x` is (B, L, D), `q` is
(B, H, L, K), `s` are scores and `w` weights of shape (B, H, L, L).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

# as Python normalizes them, none is another, nor a name that the program uses otherwise
NAMES = (
    "x", "query", "注意力", "α", "_", "__class_getitem__", "ﬁ", "π_n", "l" * 60, "עברית", "é", "torch_", "self_",
    "None_",
    "print", "type", "str", "id", "match", "case", "__doc__", "t", "scores", "out", "attn",
)  # fmt: skip
FILES = (
    "code", "[bold red]", "a|b", "`x`", "<script>", "注意", "a b", "\u202eabc", "a\nb", "é'\"", "x.y", "#",
    "%s{}", "model",
    "types", "test_x", "\t",
)  # fmt: skip
CLASSES = ("Attention", "注意Attention", "_A", "L" * 50, "Module", "type_")
STRINGS = ('"|"', '"`"', '"[bold red]"', '"\\x1b[31m"', '"<script>"', '"\\u202e"', '"""a\nb"""', '"注意"', "'\\\\|'")


@dataclass(frozen=True)
class Program:
    """The source of a program, with its file, its name and its sizes."""

    file: str
    name: str
    source: str
    sizes: tuple[tuple[str, int], ...]
    is_module: bool
    right: bool
    """Whether it is attention without a mistake, in which `check` must find nothing."""
    fails: bool
    """Whether it raises an exception in the end."""
    seed: int
    grad: bool


_HEADER = """\
import contextlib, dataclasses, functools, math, typing

import torch
import torch.nn.functional as F
from torch import nn


def helper(value, factor=2.0):
    return value * factor


def blocks(value):
    for part in value.unbind(1):
        yield part


def scaled(factor):
    def apply(value):
        return value * factor

    return apply


@dataclasses.dataclass
class Box:
    value: torch.Tensor


class Cache:
    def __init__(self):
        self.kept = []

    def push(self, value):
        self.kept.append(value)
        return torch.cat(self.kept, 1)


class Pair(typing.NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


"""


class _Writer:
    """The body of a function under construction, and the names bound so far, by kind."""

    def __init__(self, draw: DrawFn, is_module: bool, hostile: bool) -> None:
        self.draw = draw
        self.is_module = is_module
        self.hostile = hostile
        self.lines: list[str] = []
        self.kinds: dict[str, list[str]] = {"x": ["inputs"], "q": [], "s": [], "w": []}
        self.count = 0

    def choose(self, *values: str) -> str:
        return self.draw(st.sampled_from(values))

    def any(self, kind: str) -> str:
        return self.draw(st.sampled_from(self.kinds[kind]))

    def fresh(self, stem: str) -> str:
        self.count += 1
        return f"{self.draw(st.sampled_from(NAMES))}{self.count}" if self.hostile else f"{stem}{self.count}"

    def line(self, text: str, deeper: int = 0) -> None:
        self.lines.append("    " * deeper + text)

    def bind(self, kind: str, expression: str, stem: str = "value") -> str:
        name = self.fresh(stem)
        self.line(f"{name} = {expression}")
        self.kinds[kind].append(name)
        return name

    def linear(self, place: int, operand: str) -> str:
        if self.is_module:
            return f"self.many[{place}]({operand})"
        return f"F.linear({operand}, torch.eye(D, dtype=inputs.dtype) * {1 + place / 4})"


def _elementwise(w: _Writer, a: str) -> str:
    b = w.any("x")
    return w.bind(
        "x",
        w.choose(
            f"{a} * 2", f"-{a}", f"{a} + {b}", f"{a} / math.sqrt(D)", f"torch.tanh({a})", f"{a}.relu()", f"F.gelu({a})",
            f"{a}.clamp(-3, 3)", f"torch.where({a} > 0, {a}, {b})", f"torch.addcmul({a}, {b}, {b}, value=0.1)",
            f"{a}.lerp({b}, 0.25)", f"({a} ** 2).sqrt()", f"{a}.masked_fill({a} > 9, 0.0)", f"F.layer_norm({a}, (D,))",
        ),
    )  # fmt: skip


def _views(w: _Writer, a: str) -> str:
    return w.bind(
        "x",
        w.choose(
            f"{a}.transpose(0, 1).transpose(0, 1)", f"{a}.mT.mT", f"{a}.reshape(B, L, D)", f"{a}.contiguous()",
            f"{a}.flatten(1).view(B, L, D)" if a == "inputs" else f"{a}.flatten(1).unflatten(1, (L, D))",
            f"{a}[..., None].squeeze(-1)", f"{a}.permute(2, 0, 1).permute(1, 2, 0)", f"{a}.expand(B, L, D)",
            f"torch.cat(({a}[:, :1], {a}[:, 1:]), 1)", f"torch.stack(list({a}.unbind(1)), 1)", f"{a}.narrow(1, 0, L)",
            f"torch.cat({a}.split(1, 1), dim=1)", f"{a}.movedim(-1, 0).movedim(0, -1)", f"{a}[:, range({a}.shape[1])]",
            f"torch.einsum('bld->bld', {a})", f"{a}.roll(1, 1)", f"{a}.flip(1)", f"{a}.unsqueeze(1).squeeze(1)",
        ),
    )  # fmt: skip


def _control(w: _Writer, a: str) -> str:
    style = w.choose("for", "while", "if", "try", "with", "nested", "comprehension", "generator", "match", "lambda")
    name = w.fresh("value")
    w.kinds["x"].append(name)
    if style == "for":
        w.line(f"{name} = {a}")
        w.line(f"for {w.choose('i', '_', 'step')} in range({w.choose('2', '3')}):")
        w.line(f"{name} = {w.choose(w.linear(1, name), f'{name} + {a}', f'helper({name}, 0.5)')}", 1)
    elif style == "while":
        w.line(f"{name}, count = {a}, 0")
        w.line("while count < 2:")
        w.line(f"count, {name} = count + 1, {name} * 0.5", 1)
    elif style == "if":
        w.line(f"if {w.choose('L > 4', 'B == 1', 'inputs.dim() == 3', 'D % 2', 'inputs.requires_grad')}:")
        w.line(f"{name} = {a} * 3", 1)
        w.line("else:")
        w.line(f"{name} = {a} + 1", 1)
    elif style == "try":
        w.line("try:")
        w.line(f"{name} = {a} @ torch.ones(3, 5, 7, 2)", 1)
        w.line(f"except {w.choose('RuntimeError', 'Exception')} as error:")
        w.line(f"{name} = {a} * (1 + len(str(error)) * 0)", 1)
        w.line("finally:")
        w.line(f"{name} = {name} + 1", 1)
    elif style == "with":
        how = w.choose(
            "torch.no_grad()", "torch.enable_grad()", "contextlib.nullcontext()", "torch.inference_mode(False)"
        )
        w.line(f"with {how}:")
        w.line(f"{name} = {a} * 2", 1)
    elif style == "nested":
        inner = w.fresh("inner")
        w.line(f"def {inner}(value, *rest, scale=2, **named):")
        w.line("return value * scale + sum(rest)", 1)
        w.line(f"{name} = {inner}({a}, {a}, scale=0.5, unused=1)")
    elif style == "comprehension":
        w.line(f"{name} = torch.stack([part * {w.choose('2', 'i')} for i, part in enumerate(({a}, {a}))]).sum(0)")
    elif style == "generator":
        w.line(f"{name} = torch.stack([part for part in blocks({a})], 1)")
    elif style == "match":
        w.line(f"match {a}.dim():")
        w.line("case 3:", 1)
        w.line(f"{name} = {a} + 0.5", 2)
        w.line("case _:", 1)
        w.line(f"{name} = {a}", 2)
    else:
        w.line(f"{name} = (lambda t, /, *, k=2: t * k)({a})")
    return name


def _holders(w: _Writer, a: str) -> str:
    text = w.choose(*STRINGS)
    return w.bind(
        "x",
        w.choose(
            f"Box({a}).value * 1", f"{{'k': {a} * 1}}['k']", f"Pair({a}, {a}).second + 0", f"({a}, {text})[0] * 1",
            f"Cache().push({a})", f"scaled(0.5)({a})", f"functools.partial(helper, factor=3.0)({a})", f"[{a}][-1] * 1",
            f"dict(zip(({text},), ({a},)))[{text}] * 1", f"functools.reduce(torch.add, [{a}, {a}])",
            f"max([{a}], key=id) * 1",
            f"next(iter([{a} * 2]))", f"(lambda *ts: ts[0] - ts[-1] + ts[0])({a}, {a})", f"sum([{a}, {a}])",
            f"dataclasses.replace(Box({a}), value={a} * 2).value", f"[*({a},)][0] + 0",
            f"getattr(Box({a}), 'value').mul(1)",
        ),
    )  # fmt: skip


def _in_place(w: _Writer, a: str) -> str:
    name = w.bind("x", f"{a}.clone()")
    w.line(
        w.choose(
            f"{name} += 1", f"{name}.mul_(0.5)", f"{name}[..., 0] = 0", f"{name}[:, :1].add_(1)", f"{name} *= {a}",
            f"{name}.copy_({a})", f"{name}.add_({a}, alpha=0.5)", f"{name}.zero_().add_({a})",
            f"{name}[{name} > 5] = 5", f"{name}.masked_fill_({name} > 1, 1.0)", f"{name}, spare = {name} - 1, None",
        )
    )  # fmt: skip
    return name


def _dtypes(w: _Writer, a: str) -> str:
    name = w.fresh("value")
    w.kinds["x"].append(name)
    if w.draw(st.booleans()):
        w.line("with torch.autocast('cpu', dtype=torch.bfloat16):")
        w.line(f"{name} = {w.linear(0, a)}", 1)
        w.line(f"{name} = {name}.to(inputs.dtype)")
    else:
        cast = w.choose(
            f"{a}.double().mul(0.5).to({a}.dtype)", f"{a}.to(torch.bfloat16).type_as({a})", f"({a} > 0).to({a}.dtype)"
        )
        w.line(f"{name} = {cast}")
    return name


def _several(w: _Writer, a: str) -> str:
    first, second = w.fresh("first"), w.fresh("second")
    pair = w.choose(f"{a} * 2, {a} + 1", f"Pair({a} - 1, second={a})", f"torch.cat(({a}, {a}), -1).chunk(2, dim=-1)")
    w.line(f"{first}, {second} = {pair}")
    w.kinds["x"] += [first, second]
    return first


_WILD: tuple[Callable[[_Writer, str], str], ...] = (
    _elementwise, _elementwise, _views, _views, _control, _control, _holders, _holders, _in_place, _dtypes, _several,
)  # fmt: skip


def _long(w: _Writer) -> None:
    w.bind("x", f"({' + '.join([w.any('x')] * w.draw(st.sampled_from((5, 40))))}) / 40")


def _split_heads(w: _Writer, a: str, stem: str) -> str:
    return w.bind(
        "q",
        w.choose(
            f"{a}.reshape(B, L, H, K).transpose(1, 2)", f"{a}.unflatten(-1, (H, K)).transpose(1, 2)",
            f"{a}.reshape(B, L, H, K).permute(0, 2, 1, 3)", f"{a}.reshape(B, L, H, -1).swapaxes(1, 2)",
            f"torch.stack({a}.split(K, dim=-1), 1)", f"torch.einsum('blhk->bhlk', {a}.reshape(B, L, H, K))",
        ),
        stem,
    )  # fmt: skip


def _attention(w: _Writer, a: str) -> str:
    """Write one attention without a mistake; return the name of its result, of kind x."""
    if w.is_module:
        projected = [w.bind("x", f"self.{name}({a})", name.lower()) for name in ("Wq", "Wk", "Wv")]
    else:
        projected = [w.bind("x", f"F.linear({a}, weights[{place}])", "part") for place in range(3)]
    q, k, v = (_split_heads(w, part, stem) for part, stem in zip(projected, ("query", "key", "value"), strict=True))
    causal = w.draw(st.booleans())
    if w.draw(st.integers(0, 3)) == 0:
        mixed = w.bind("q", f"F.scaled_dot_product_attention({q}, {k}, {v}, is_causal={causal})", "context")
    else:
        scores = w.bind(
            "s",
            w.choose(
                f"{q} @ {k}.transpose(-2, -1) / math.sqrt(K)", f"torch.matmul({q}, {k}.mT) * K**-0.5",
                f"torch.einsum('bhid,bhjd->bhij', {q}, {k}) / K**0.5", f"({q} * K**-0.5) @ {k}.mT",
            ),
            "scores",
        )  # fmt: skip
        if causal:
            scores = w.bind(
                "s",
                w.choose(
                    f"{scores}.masked_fill(torch.ones(L, L).tril() == 0, float('-inf'))",
                    f"{scores} + torch.full((L, L), float('-inf'), dtype={scores}.dtype).triu(1)",
                    f"torch.where(torch.ones(L, L, dtype=torch.bool).tril(), {scores}, -torch.inf)",
                ),
                "masked",
            )  # fmt: skip
        normalized = w.choose(f"{scores}.softmax(-1)", f"F.softmax({scores}, dim=-1)", f"torch.softmax({scores}, -1)")
        weights = w.bind("w", normalized, "weights")
        mixed = w.bind(
            "q", w.choose(f"{weights} @ {v}", f"torch.einsum('bhij,bhjd->bhid', {weights}, {v})"), "context"
        )  # fmt: skip
    merged = w.bind(
        "x",
        w.choose(
            f"{mixed}.transpose(1, 2).reshape(B, L, D)", f"{mixed}.transpose(1, 2).flatten(2)",
            f"torch.cat({mixed}.unbind(1), -1)", f"{mixed}.permute(0, 2, 1, 3).contiguous().view(B, L, D)",
        ),
        "merged",
    )  # fmt: skip
    return w.bind("x", f"self.Wo({merged})" if w.is_module else f"F.linear({merged}, weights[3])", "output")


@st.composite
def _programs(draw: DrawFn) -> Program:
    is_module = draw(st.integers(0, 3)) > 0
    right = draw(st.booleans())
    writer = _Writer(draw, is_module, hostile=draw(st.booleans()))
    heads = draw(st.sampled_from((1, 2, 3)))
    sizes = {"B": draw(st.sampled_from((1, 2, 3))), "L": draw(st.sampled_from((1, 2, 4, 5))), "H": heads}
    sizes["D"] = heads * draw(st.sampled_from((1, 2, 4)))
    writer.lines += ["B, L, D = inputs.shape", "H = self.H" if is_module else "H = heads", "K = D // H"]
    if right:
        writer.kinds["x"] = (
            [writer.bind("x", "F.layer_norm(inputs, (D,))", "normed")] if draw(st.booleans()) else ["inputs"]
        )
        result = _attention(writer, writer.any("x"))
        if draw(st.booleans()):
            result = writer.bind("x", f"inputs + {result}", "residual")
    else:
        for _ in range(draw(st.integers(1, 6))):
            draw(st.sampled_from(_WILD))(writer, writer.any("x"))
        if draw(st.booleans()):
            _attention(writer, writer.any("x"))
        if draw(st.integers(0, 5)) == 0:
            _long(writer)
        result = writer.kinds["x"][-1]
    fails = not right and draw(st.integers(0, 7)) == 0
    if fails:
        text = writer.choose(*STRINGS)
        writer.line(
            writer.choose(
                f"raise ValueError({text})",
                f"assert False, {text}",
                "1 / 0",
                "undefined",
                f"{result} @ torch.ones(3, 3, 7)",
            )
        )
    returned = result
    if not right:
        returned = writer.choose(
            result, result, f"{result}, {writer.any('x')}", f"{{'out': {result}}}", f"[{result}]", f"Box({result})"
        )
    name = draw(st.sampled_from(CLASSES)) if is_module else draw(st.sampled_from(("attend", "注意", "_f", "f" * 40)))
    file = draw(st.sampled_from(FILES)) if writer.hostile else "model"
    source = (_module if is_module else _function)(name, writer.lines, returned)
    grad = draw(st.integers(0, 3)) == 0
    return Program(
        f"{file}.py", name, source, tuple(sizes.items()), is_module, right, fails, draw(st.integers(0, 9)), grad
    )


def _module(name: str, lines: list[str], returned: str) -> str:
    body = "\n".join(f"        {line}" for line in [*lines, f"return {returned}"])
    layers = "".join(f"        self.{layer} = nn.Linear(D, D)\n" for layer in ("Wq", "Wk", "Wv", "Wo"))
    return (
        f"{_HEADER}class {name}(nn.Module):\n"
        "    def __init__(self, D, H):\n        super().__init__()\n        self.H = H\n"
        f"{layers}        self.many = nn.ModuleList([nn.Linear(D, D) for _ in range(2)])\n\n"
        f"    def forward(self, inputs):\n{body}\n"
    )


def _function(name: str, lines: list[str], returned: str) -> str:
    body = "\n".join(f"    {line}" for line in [*lines, f"return {returned}"])
    return f"{_HEADER}def {name}(inputs, weights, heads):\n{body}\n"


PROGRAMS = _programs()

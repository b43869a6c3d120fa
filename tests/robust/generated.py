"""Generates attention code from a small grammar, with random sizes, expressions, control flow and hostile names."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

NAMES = (
    "x",
    "query",
    "注意力",
    "α",
    "_",
    "__class_getitem__",
    "ﬁ",
    "ℌ",
    "π_n",
    "l" * 60,
    "עברית",
    "é",
    "B",
    "torch_",
    "self_",
)
STRINGS = ('"|"', '"`"', '"[bold red]"', '"\\x1b[31m"', '"<script>"', '"\\u202e"', '"""a\nb"""', '"注意"', "'\\\\|'")
FILES = (
    "code",
    "[bold red]",
    "a|b",
    "`x`",
    "<script>",
    "注意",
    "a b",
    "\u202eabc",
    "a\nb",
    "-x",
    "é'\"",
    "x.y",
    "#",
    "%s{}",
)
_LAYERS = ("Linear(D, D)", "Linear(D, D, bias=False)", "LayerNorm(D)", "Identity()")
CLASSES = ("Attention", "注意Attention", "_A", "L" * 50)


@dataclass
class Module:
    """The source of a module, with its file, name and sizes."""

    file: str
    name: str
    source: str
    sizes: dict[str, int]


@dataclass
class _Writer:
    choose: random.Random
    lines: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    def name(self) -> str:
        return self.choose.choice(NAMES) + self.choose.choice(("", "", str(self.choose.randrange(4))))

    def any(self) -> str:
        return self.choose.choice(self.names)

    def bind(self, expression: str, depth: int = 2) -> None:
        name = self.name()
        self.lines.append("    " * depth + f"{name} = {expression}")
        self.names.append(name)

    def operand(self) -> str:
        """Return an expression for a tensor that is already bound."""
        name = self.any()
        return self.choose.choice(
            (name, name, f"({name})", f"[{name}][0]", f"({name},)[{self.choose.choice(('0', '-1'))}]")
        )


def module(seed: int) -> Module:
    """Return the module of a seed. Most run; some fail, which is also a test."""
    choose = random.Random(seed)
    heads = choose.choice((1, 2, 3, 8))
    sizes = {
        "B": choose.choice((1, 2, 3)),
        "L": choose.choice((1, 2, 5, 8, 17)),
        "H": heads,
        "D": heads * choose.choice((1, 2, 4, 5)),
    }
    writer = _Writer(choose)
    writer.names.append("inputs")
    writer.lines += [
        "import math",
        "import torch",
        "import torch.nn.functional as F",
        "from torch import nn",
        "",
        "",
        f"class {(name := choose.choice(CLASSES))}(nn.Module):",
        "    def __init__(self, D, H):",
        "        super().__init__()",
        "        self.H = H",
        f"        self.proj = nn.{choose.choice(_LAYERS)}",
        "        self.many = nn.ModuleList([nn.Linear(D, D) for _ in range(2)])",
        "",
        "    def forward(self, inputs):",
        "        B, L, D = inputs.shape",
        "        H = self.H",
    ]
    for _ in range(choose.randrange(1, 9)):
        choose.choice(_STATEMENTS)(writer)
    writer.lines.append(f"        return {choose.choice(_RETURNS)(writer)}")
    file = choose.choice(FILES) + f"{seed}.py"
    return Module(file, name, "\n".join(writer.lines) + "\n", sizes)


def _elementwise(w: _Writer) -> None:
    a, b = w.operand(), w.operand()
    w.bind(
        w.choose.choice(
            (f"{a} * 2", f"-{a}", f"{a} + {a}", f"{a} / math.sqrt(D)", f"torch.tanh({a})", f"{a} + {b}", f"{a}.relu()")
        ),
    )


def _project(w: _Writer) -> None:
    w.bind(
        w.choose.choice(
            (f"self.proj({w.operand()})", f"self.many[-1]({w.operand()})", f"F.layer_norm({w.operand()}, (D,))")
        ),
    )


def _heads(w: _Writer) -> None:
    a = w.operand()
    w.bind(
        w.choose.choice(
            (f"{a}.view(B, L, H, -1)", f"{a}.reshape(B, L, H, D // H).transpose(1, 2)", f"{a}.unflatten(-1, (H, -1))")
        ),
    )


def _layout(w: _Writer) -> None:
    a = w.operand()
    w.bind(
        w.choose.choice(
            (
                f"{a}.transpose(-1, -2)",
                f"{a}.mT",
                f"{a}.flatten(1)",
                f"{a}[:, :1]",
                f"{a}[..., None]",
                f"{a}.contiguous()",
                f"{a}.expand_as({a})",
                f"{a}.permute(*range({a}.dim())[::-1])",
            )
        ),
    )


def _attend(w: _Writer) -> None:
    w.bind("inputs @ inputs.transpose(-2, -1)")
    scores = w.names[-1]
    w.bind(
        w.choose.choice(
            (
                f"{scores}.softmax(-1)",
                f"{scores}.masked_fill(torch.ones(L, L).tril() == 0, -1e9).softmax(dim=-1)",
                f"torch.einsum('bij,bjd->bid', {scores}, inputs)",
                f"{scores}.softmax(-1) @ inputs",
            )
        ),
    )


def _several(w: _Writer) -> None:
    names = [w.name() for _ in range(2)]
    w.lines.append(f"        {names[0]}, {names[1]} = {w.operand()}.chunk(2, dim=-1)")
    w.names += names


def _loop(w: _Writer) -> None:
    count = w.choose.choice(("3", "L", "H", "len(self.many)"))
    w.lines.append(f"        for {w.choose.choice(('i', 'ℌ', '_'))} in range({count}):")
    w.bind(f"{w.operand()} + 1", 3)


def _branch(w: _Writer) -> None:
    w.lines.append(f"        if {w.choose.choice(('L > 4', 'B == 1', 'self.training', 'D % 2', 'inputs.sum() > 0'))}:")
    w.bind(f"{w.operand()} * 3", 3)
    w.names.pop()


def _in_place(w: _Writer) -> None:
    a = w.any()
    w.lines.append(
        "        "
        + w.choose.choice(
            (
                f"{a} = {a}.clone(); {a} += 1",
                f"{a} = {a}.clone(); {a}[..., 0] = 0",
                f"{a} = {a}.clone().mul_(2)",
                f"{a} = torch.zeros_like({a}).copy_({a})",
            )
        )
    )


def _comprehension(w: _Writer) -> None:
    a = w.operand()
    w.bind(
        w.choose.choice(
            (
                "torch.stack([m(inputs) for m in self.many])",
                f"torch.cat([t * 2 for t in ({a}, {a})], -1)",
                f"sum(t for t in {a}.unbind(0))",
                f"(lambda t: t * 2)({a})",
                f"{{'k': {a} * 1}}['k']",
            )
        ),
    )


def _text(w: _Writer) -> None:
    w.bind(f"({w.operand()}, {w.choose.choice(STRINGS)})[0] * 1")


def _long(w: _Writer) -> None:
    w.bind(f"({' + '.join([w.any()] * 40)})")


def _fail(w: _Writer) -> None:
    if w.choose.random() < 0.5:
        w.lines.append(
            "        "
            + w.choose.choice(
                (
                    f"raise ValueError({w.choose.choice(STRINGS)})",
                    f"assert False, {w.choose.choice(STRINGS)}",
                    "1 / 0",
                    "inputs @ torch.ones(3, 3, 7)",
                    "undefined",
                )
            )
        )


_STATEMENTS: tuple[Callable[[_Writer], None], ...] = (
    _elementwise,
    _elementwise,
    _project,
    _heads,
    _layout,
    _layout,
    _attend,
    _attend,
    _several,
    _loop,
    _branch,
    _in_place,
    _comprehension,
    _comprehension,
    _text,
    _long,
    _fail,
)
_RETURNS: tuple[Callable[[_Writer], str], ...] = (
    lambda w: w.any(),
    lambda w: f"{w.any()}, {w.any()}",
    lambda w: f"{{{w.choose.choice(STRINGS)}: {w.any()}}}",
    lambda w: "None",
    lambda w: f"{{{w.any()}}}",
    lambda w: f"iter([{w.any()}])",
)

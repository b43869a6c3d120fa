"""What `--input` and `--expect` say: a name, an optional type, and a signature."""

from __future__ import annotations

import re
from dataclasses import dataclass

from attnshape import axis
from attnshape.axis import AxisExpression
from attnshape.errors import AttnshapeError

_INTEGER = re.compile(r"int\[(?P<bound>[^\]\s]+)\]")


@dataclass(frozen=True)
class TensorSpec:
    """One tensor that the user described: `ids: int[V] B L`."""

    name: str
    kind: str
    """`float`, `bool` or `int`."""
    below: AxisExpression | None
    """For integers: what they stay below; None where they count along the last axis."""
    axes: tuple[AxisExpression, ...]

    @property
    def signature(self) -> str:
        """The dims string, `B L`."""
        return " ".join(expression.text for expression in self.axes)

    @property
    def symbols(self) -> tuple[str, ...]:
        """Every size symbol that is needed to make the tensor."""
        expressions = (*self.axes, self.below) if self.below else self.axes
        return tuple(dict.fromkeys(name for expression in expressions for name in expression.symbols))


def parse_named(flag: str, text: str) -> tuple[str, str]:
    """Split `name: rest`. Raises AttnshapeError, naming the flag, where there is no name or no colon."""
    name, colon, rest = text.partition(":")
    name = name.strip()
    if not colon or not name or not re.fullmatch(r"[^\s:]+", name):
        raise AttnshapeError(
            f"{flag} {text!r} has no name: expected 'name: axes'", f'for example {flag} "query: B Lq D"'
        )
    return name, " ".join(rest.split())


def parse_spec(flag: str, text: str) -> TensorSpec:
    """Parse one `--input`.

    >>> spec = parse_spec("--input", "ids: int[V] B L")
    >>> spec.name, spec.kind, spec.signature, spec.symbols
    ('ids', 'int', 'B L', ('B', 'L', 'V'))
    """
    name, rest = parse_named(flag, text)
    words = rest.split()
    kind, below = "float", None
    if words and words[0] in {"float", "bool", "int"}:
        kind = words.pop(0)
    elif words and (integer := _INTEGER.fullmatch(words[0])):
        kind, below = "int", axis.parse(integer["bound"])
        words.pop(0)
    elif words and words[0].startswith("int["):
        raise AttnshapeError(f"{flag} {text!r}: {words[0]!r} isn't a type", "integers below V are written int[V]")
    return TensorSpec(name, kind, below, tuple(axis.parse(word) for word in words))

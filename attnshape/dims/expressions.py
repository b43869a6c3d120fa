"""Expressions of the user's sizes, parsed and evaluated, and the tensor specs made of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from attnshape.dims.arithmetic import (
    AXIS,
    CONDITION,
    REAL,
    SIZE,
    Grammar,
    Node,
    comparisons,
    evaluate,
    holds,
    parse,
    symbols,
)
from attnshape.errors import AttnshapeError, Option


@dataclass(frozen=True)
class Expression:
    """A parsed expression of size symbols."""

    text: str
    tree: Node

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        """The symbols in it, each once, in order of appearance."""
        return symbols(self.tree)


class AxisExpression(Expression):
    """An expression whose value is an integer.

    >>> parse_expression("Lp+L").evaluate({"Lp": 6, "L": 10})
    16
    >>> parse_expression("-(-L//4)*4").evaluate({"L": 10})
    12
    >>> parse_expression("3*D").symbols
    ('D',)
    """

    def evaluate(self, sizes: Mapping[str, int]) -> int:
        """Return the expression's number at these sizes; KeyError if a symbol has none.

        Raises AttnshapeError if there is no such integer.
        """
        try:
            number = evaluate(self.tree, sizes)
        except AttnshapeError as error:
            raise error.prefixed(f"{self.text} ") from None
        if not isinstance(number, int):  # a negative power
            raise AttnshapeError(f"{self.text} is no integer at these sizes", "give other sizes")
        return number


class RealExpression(Expression):
    """An expression whose value is a real number.

    >>> parse_scale("1/sqrt(Dk)").evaluate({"Dk": 64})
    0.125
    """

    def evaluate(self, sizes: Mapping[str, int]) -> float:
        """Return the expression's number at these sizes; KeyError if a symbol has none.

        Raises AttnshapeError if there is no such number.
        """
        try:
            return float(evaluate(self.tree, sizes))
        except AttnshapeError as error:
            raise error.prefixed(f"{self.text} ") from None


QUERY, KEY = "q", "k"
"""The positions of a query and of a key in a condition about both."""


class PairCondition(Expression):
    """A condition on the position of a query and that of a key.

    >>> condition = parse_pair_condition("k <= q or k < W")
    >>> condition.symbols
    ('W',)
    >>> condition.holds({"W": 2}, query=0, key=1), condition.holds({"W": 2}, query=0, key=2)
    (True, False)
    """

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        """The size symbols in it, each once, in order of appearance."""
        return tuple(name for name in symbols(self.tree) if name not in (QUERY, KEY))

    def holds(self, sizes: Mapping[str, int], query: int, key: int) -> bool:
        """Return whether it holds for these positions, at these sizes; KeyError if a symbol has none.

        Raises AttnshapeError if that can't be computed.
        """
        try:
            return holds(self.tree, {**sizes, QUERY: query, KEY: key})
        except AttnshapeError as error:
            raise error.prefixed(f"{self.text} at q={query}, k={key} ") from None

    def idle_at(self, sizes: Mapping[str, int], queries: int, keys: int) -> int:
        """Return how many of its comparisons tell no pairs of positions apart, as a window wider than the sequence.

        The whole condition counts too: each of its comparisons may matter, and all together hide nothing.

        >>> parse_pair_condition("k <= q and q - k < W").idle_at({"W": 9}, queries=5, keys=5)
        1
        >>> parse_pair_condition("k < S or q - k < W").idle_at({"S": 2, "W": 3}, queries=5, keys=5)
        1
        """
        pairs = [{**sizes, QUERY: query, KEY: key} for query in range(queries) for key in range(keys)]
        return sum(_is_idle(part, pairs) for part in dict.fromkeys((*comparisons(self.tree), self.tree)))


def _is_idle(comparison: Node, pairs: Sequence[Mapping[str, int]]) -> bool:
    """Return whether a comparison holds for all pairs or for none; not where it needs another one before it."""
    try:
        return all(holds(comparison, pair) == holds(comparison, pairs[0]) for pair in pairs)
    except AttnshapeError:
        return False


@lru_cache(maxsize=4096)
def parse_expression(text: str) -> AxisExpression:
    """Parse an axis expression. Raises AttnshapeError if it is something else."""
    return AxisExpression(text.strip(), _parsed(text, AXIS, "an axis expression"))


def parse_size_expression(text: str) -> AxisExpression:
    """Parse the size of a dimension or of a window. Raises AttnshapeError if it is something else."""
    return AxisExpression(text.strip(), _parsed(text, SIZE, "a size"))


def parse_scale(text: str) -> RealExpression:
    """Parse the scale of scores, a real number. Raises AttnshapeError if it is something else."""
    return RealExpression(text.strip(), _parsed(text, REAL, "a scale"))


def parse_pair_condition(text: str) -> PairCondition:
    """Parse a condition on the positions of a query, `q`, and of a key, `k`.

    Raises AttnshapeError if it is something else.
    """
    condition = PairCondition(text.strip(), _parsed(text, CONDITION, "a condition"))
    if not {QUERY, KEY} & {*symbols(condition.tree)}:
        raise AttnshapeError(
            f"{text[:60]!r} depends on no position", "write q for the query's position, and k for the key's: k <= q"
        )
    return condition


def _parsed(text: str, grammar: Grammar, kind: str) -> Node:
    try:
        return parse(text, grammar)
    except AttnshapeError as error:
        raise error.prefixed(f"{text[:60]!r} isn't {kind}: ") from None


def parse_axes(signature: str, source: Option) -> tuple[AxisExpression, ...]:
    """Parse a dims string. Raises AttnshapeError, which names its source, if a word of it is no axis expression."""
    try:
        return tuple(parse_expression(word) for word in signature.split())
    except AttnshapeError as error:
        raise error.prefixed(source, ": ") from None


_INTEGER = re.compile(r"int\[(?P<bound>[^\]\s]+)\]")


@dataclass(frozen=True)
class TensorSpec:
    """A tensor that the user described: `ids: int[V] B L`."""

    name: str
    kind: str
    """`float`, `bool` or `int`."""
    below: AxisExpression | None
    """The exclusive upper bound of integers; None if they count along the last axis."""
    axes: tuple[AxisExpression, ...]

    @property
    def signature(self) -> str:
        """The dims string, `B L`."""
        return " ".join(expression.text for expression in self.axes)

    @property
    def symbols(self) -> tuple[str, ...]:
        """Every size symbol that the tensor depends on."""
        expressions = (*self.axes, self.below) if self.below else self.axes
        return tuple(dict.fromkeys(name for expression in expressions for name in expression.symbols))


_TYPE_WITH_AXES = re.compile(r"(?P<kind>bool|float)\[(?P<axes>[^\[\]]*)\]")
"""A type with its axes in brackets, as jaxtyping nearly writes them."""


def parse_tensor(name: str, text: str) -> TensorSpec:
    """Parse the description of one tensor argument: an optional type, then its axes.

    Raises AttnshapeError if a word of it is neither.

    >>> spec = parse_tensor("ids", "int[V] B L")
    >>> spec.name, spec.kind, spec.signature, spec.symbols
    ('ids', 'int', 'B L', ('B', 'L', 'V'))
    """
    words = text.split()
    kind, below = "float", None
    if words and words[0] in {"float", "bool", "int"}:
        kind = words.pop(0)
    elif words and (integer := _INTEGER.fullmatch(words[0])):
        kind, (below,) = "int", parse_axes(integer["bound"], Option("inputs", text, name))
        words.pop(0)
    elif words and words[0].startswith("int["):
        raise AttnshapeError(
            (Option("inputs", text, name), f": {words[0]!r} isn't a type"), "integers below V are written int[V]"
        )
    elif bracketed := _TYPE_WITH_AXES.fullmatch(text.strip()):
        kind, axes = bracketed["kind"], bracketed["axes"].strip()
        raise AttnshapeError(
            (Option("inputs", text, name), f": the axes of a {kind} tensor have no brackets"),
            ("write ", Option("inputs", f"{kind} {axes}", name)),
        )
    return TensorSpec(name, kind, below, parse_axes(" ".join(words), Option("inputs", text, name)))

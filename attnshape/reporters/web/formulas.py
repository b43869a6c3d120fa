"""Formulas as trees that the script of a page evaluates: Python parses them, and a page parses nothing.

A tree is a number, the name of a size symbol, or a list of an operator and its operands, such as `["*", "H", "Dk"]`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from attnshape.dims.arithmetic import (
    CONDITION,
    SIZE,
    Call,
    Grammar,
    Logic,
    Negation,
    Node,
    Not,
    Number,
    Operation,
    Relation,
    Symbol,
    evaluate,
    holds,
    parse,
    symbols,
)
from attnshape.dims.sizes import is_length
from attnshape.dims.symbols import ORDER, SYMBOLS_BY_NAME
from attnshape.errors import AttnshapeError
from attnshape.model.trace import Axis, NamedTensor, Trace

Tree = int | float | str | list["Tree"]

_PRECONDITIONS = (
    (re.compile(r"(\w+) even"), r"\1 % 2 == 0"),
    (re.compile(r"(.+) divides (\w+)"), r"\2 % (\1) == 0"),
    (re.compile(r"(\w+) = (.+)"), r"\1 == \2"),
)
"""How a trace writes its preconditions, and the same as a condition."""
_QUOTIENT = re.compile(r"(\w+)//(\w+)")
_EQUAL = re.compile(r"(\w+) = (.+)")

_MOST_TRIES = 20_000


@dataclass(frozen=True)
class PageSize:
    """A size symbol of a page."""

    symbol: str
    size: int
    expression: str | None = None
    """What it follows from."""
    fixed: bool = False
    """Whether no formula holds at other sizes of it."""


@dataclass(frozen=True)
class PageSizes:
    """The sizes of a page, in the trace's order, and what must hold of them."""

    records: tuple[PageSize, ...]
    conditions: tuple[tuple[str, str], ...]
    """Each as the trace writes it, and as a condition."""

    def at(self, chosen: Mapping[str, int]) -> dict[str, int] | None:
        """Return all sizes where the independent ones have these numbers; None if the trace doesn't hold there."""
        numbers = dict(chosen)
        waiting = [record for record in self.records if record.expression is not None]
        while waiting:
            ready = [one for one in waiting if numbers.keys() >= {*_symbols(one.expression or "")}]
            if not ready:
                return None
            for record in ready:
                waiting.remove(record)
                try:
                    numbers[record.symbol] = int(evaluate(_parsed(record.expression or "", SIZE), numbers))
                except AttnshapeError:
                    return None
        trees = [_parsed(condition, CONDITION) for _, condition in self.conditions]
        try:
            return numbers if all(holds(tree, numbers) for tree in trees) else None
        except AttnshapeError:
            return None

    def small(self) -> dict[str, int] | None:
        """Return sizes at which a tensor can be drawn element by element; None if none are found.

        >>> sizes = PageSizes((PageSize("H", 8), PageSize("L", 10), PageSize("D", 512), PageSize("Dk", 64, "D//H")), ())
        >>> sizes.small()
        {'H': 2, 'L': 3, 'D': 4, 'Dk': 2}
        """
        lengths = itertools.cycle(((3, 2, 4, 6), (2, 3, 4, 6), (4, 2, 3, 6)))
        independent = [record for record in self.records if record.expression is None]
        ranges: list[Sequence[int]] = []
        for record in independent:
            few = (1, 2) if record.symbol == "B" else next(lengths) if is_length(record.symbol) else (2, 4, 3, 6, 8, 12)
            ranges.append((record.size,) if record.fixed else few)
        names = [record.symbol for record in independent]
        for chosen in itertools.islice(itertools.product(*ranges), _MOST_TRIES):
            numbers = self.at(dict(zip(names, chosen, strict=True)))
            derived = [numbers[one.symbol] for one in self.records if one.expression is not None] if numbers else []
            if numbers is not None and all(size > 1 for size in derived):
                return {record.symbol: numbers[record.symbol] for record in self.records}
        return None


def page_sizes(trace: Trace) -> PageSizes:
    """Return the sizes of a trace's page: which can be chosen, which follow, and which the formulas don't follow."""
    varied = _varied(trace)
    conditions = dict(filter(None, map(_condition, trace.preconditions)))
    equal = {match[1]: match[2] for text in trace.preconditions if (match := _EQUAL.fullmatch(text))}
    records = []
    for symbol in sorted(trace.sizes, key=lambda symbol: ORDER.get(symbol, len(ORDER))):
        size = trace.sizes[symbol]
        expression = _readable(size.expression if size.origin == "derived" else equal.get(symbol), SIZE)
        quotient = _QUOTIENT.fullmatch(expression or "")
        # the symbols of attnshape divide without a remainder, an author's own need not
        if quotient is not None and symbol in SYMBOLS_BY_NAME:
            conditions[f"{quotient[2]} divides {quotient[1]}"] = f"{quotient[1]} % {quotient[2]} == 0"
        is_free = size.origin != "derived" and symbol in varied
        records.append(PageSize(symbol, size.size, expression, expression is None and not is_free))
    return PageSizes(tuple(records), tuple(conditions.items()))


def _varied(trace: Trace) -> set[str]:
    """Return the symbols on which verified formulas depend."""
    expressions = [axis.expression for axis in _axes(trace) if axis.known == "verified"]
    expressions += [loop.expression for loop in trace.loops if loop.known == "verified"]
    varied = {symbol for text in dict.fromkeys(expressions) for symbol in _symbols(text)}
    for _ in trace.sizes:
        followed = [size.expression for symbol, size in trace.sizes.items() if symbol in varied]
        varied |= {symbol for text in followed if text is not None for symbol in _symbols(text)}
    return varied


def _axes(trace: Trace) -> Iterator[Axis]:
    tensors: list[NamedTensor] = [*trace.inputs, *(output for step in trace.steps for output in step.outputs)]
    for named in tensors:
        yield from named.tensor.axes


def _condition(text: str) -> tuple[str, str] | None:
    """Return a precondition and the same as a condition; None for one that a page can't check.

    >>> _condition("2*H divides D")
    ('2*H divides D', 'D % (2*H) == 0')
    """
    for pattern, condition in _PRECONDITIONS:
        match = pattern.fullmatch(text)
        if match is not None and _parsed_or_none(match.expand(condition), CONDITION) is not None:
            return text, match.expand(condition)
    return None


def formula_tree(text: str) -> Tree | None:
    """Return the tree of a formula; None for a text that is none.

    >>> formula_tree("Lp+L//2"), formula_tree("?")
    (['+', 'Lp', ['//', 'L', 2]], None)
    """
    return _tree_or_none(text, SIZE)


def condition_tree(text: str) -> Tree | None:
    """Return the tree of a condition; None for a text that is none.

    >>> condition_tree("W <= L")
    ['<=', 'W', 'L']
    """
    return _tree_or_none(text, CONDITION)


@lru_cache(maxsize=4096)
def _tree_or_none(text: str, grammar: Grammar) -> Tree | None:
    node = _parsed_or_none(text, grammar)
    return _tree(node) if node is not None else None


@lru_cache(maxsize=4096)
def _parsed_or_none(text: str, grammar: Grammar) -> Node | None:
    try:
        return parse(text, grammar)
    except AttnshapeError:
        return None


def _parsed(text: str, grammar: Grammar) -> Node:
    node = _parsed_or_none(text, grammar)
    assert node is not None  # only readable texts are kept
    return node


def _readable(text: str | None, grammar: Grammar) -> str | None:
    return text if text is not None and _parsed_or_none(text, grammar) is not None else None


def _symbols(text: str) -> tuple[str, ...]:
    node = _parsed_or_none(text, SIZE)
    return symbols(node) if node is not None else ()


def _tree(node: Node) -> Tree:
    match node:
        case Number(value):
            return value
        case Symbol(name):
            return name
        case Negation(operand):
            return ["-", _tree(operand)]
        case Operation(operator, left, right) | Logic(operator, left, right):
            return [operator, _tree(left), _tree(right)]
        case Call(function, argument):
            return [function, _tree(argument)]
        case Not(condition):
            return ["not", _tree(condition)]
        case Relation(operators, operands):
            pairs = [
                [one, *map(_tree, pair)] for one, pair in zip(operators, itertools.pairwise(operands), strict=True)
            ]
            first, *others = pairs
            tree: Tree = first
            for other in others:
                tree = ["and", tree, other]
            return tree

"""The arithmetic that users type: its grammar, its parser, and its evaluation, which never runs Python.

    expression := operand (operator operand)*      with Python's precedence and associativity
    operand    := number | symbol | "-" operand | "(" expression ")" | function "(" expression ")"

A condition consists of comparisons, which may be chained as in `0 <= q - k < W`, with `and`, `or` and `not`. Arithmetic
takes numbers, and `and`, `or` and `not` take comparisons: neither takes the other for its own, as Python does.

A `Grammar` says which operators and functions an option takes. Text is ASCII except for the letters of symbols, and
only spaces separate its parts. Its length, the depth of its brackets, exponents and results are bounded, so that it is
parsed in linear time and evaluated at once.
"""

from __future__ import annotations

import itertools
import keyword
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from attnshape.errors import AttnshapeError, did_you_mean

_LONGEST = 200
_DEEPEST = 40
_LARGEST_EXPONENT = 64
_LARGEST = 2**1023
"""No result is as large: beyond it integers have no float, and floats are infinite."""


@dataclass(frozen=True, slots=True)
class Number:
    """A literal number."""

    value: int | float


@dataclass(frozen=True, slots=True)
class Symbol:
    """The name of a size."""

    name: str


@dataclass(frozen=True, slots=True)
class Negation:
    """A minus before an operand."""

    operand: Node


@dataclass(frozen=True, slots=True)
class Operation:
    """Two operands and the operator between them."""

    operator: str
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Call:
    """A function and its argument."""

    function: str
    argument: Node


@dataclass(frozen=True, slots=True)
class Relation:
    """Numbers, each compared with the next one; it holds if every comparison does."""

    operators: tuple[str, ...]
    operands: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Not:
    """`not` before a condition."""

    condition: Node


@dataclass(frozen=True, slots=True)
class Logic:
    """Two conditions, with `and` or `or` between them."""

    operator: str
    left: Node
    right: Node


Node = Number | Symbol | Negation | Operation | Call | Relation | Not | Logic


@dataclass(frozen=True)
class Grammar:
    """What an expression may consist of, besides symbols, brackets and the minus before an operand."""

    operators: tuple[str, ...]
    hint: str
    functions: tuple[str, ...] = ()
    integers: bool = True
    """Whether every number is an integer."""
    condition: bool = False
    """Whether it is a condition, which holds or doesn't, instead of a number."""


AXIS = Grammar(
    ("+", "-", "*", "//"),
    "write a product, quotient or sum of size symbols and integers, without spaces: H*Dk, Dk//2, Lp+L",
)
"""An axis of a tensor. jaxtyping reads it too."""
SIZE = Grammar(
    (*AXIS.operators, "**"), "write integers and size symbols, with + - * // ** and brackets: H*Dk, 2**15, -(-L//2)"
)
"""The size of a dimension or of a window."""
_FUNCTIONS: dict[str, Callable[[Any], float]] = {
    "sqrt": math.sqrt,
    "exp": math.exp,
    "log": math.log,
    "log2": math.log2,
    "abs": abs,
}
_OF_REALS = ("sqrt", "exp", "log", "log2")
REAL = Grammar(
    (*SIZE.operators, "/"),
    f"write numbers and size symbols, with + - * / // **, brackets, {', '.join(_OF_REALS)}: 1/sqrt(Dk), Dk**-0.5",
    _OF_REALS,
    integers=False,
)
"""A real number, such as the scale of scores."""
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
CONDITION = Grammar(
    (*SIZE.operators, "%", *_COMPARISONS, "and", "or", "not"),
    "compare integers and size symbols, with and, or, not, + - * // % **, brackets, abs: k <= q or k < 4, "
    "abs(q - k) < W, q // W == k // W",
    ("abs",),
    condition=True,
)
"""A condition on integers, such as which keys are visible."""

_OPERATORS: dict[str, Callable[[Any, Any], int | float | complex]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
}
_NOT, _COMPARED = 3, 4
_BINDING = {"or": 1, "and": 2, **dict.fromkeys(_COMPARISONS, _COMPARED)}
_BINDING |= {"+": 5, "-": 5, "*": 6, "/": 6, "//": 6, "%": 6, "**": 8}
_MINUS = 7
"""The minus before an operand binds more loosely than `**`, and more tightly than the rest."""
_TOKEN = re.compile(
    r" *(?:(?P<number>(?:[0-9]+(?:_[0-9]+)*(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)"
    r"|(?P<name>[^\W\d]\w*)|(?P<sign>\*\*|//|[<>=!]=|[-+*/%()<>])|(?P<end>\Z)|(?P<other>.))",
    re.DOTALL,
)


class _InvalidError(Exception):
    """What is wrong with a text, and the way out where it is known."""

    def __init__(self, problem: str, hint: str | None = None) -> None:
        super().__init__(problem)
        self.hint = hint


def parse(text: str, grammar: Grammar) -> Node:
    """Return the tree of an expression. Raises AttnshapeError, which says what is wrong, if it is none.

    >>> parse("L//2", AXIS)
    Operation(operator='//', left=Symbol(name='L'), right=Number(value=2))
    """
    try:
        return _Parser(text, grammar).parse()
    except _InvalidError as error:
        raise AttnshapeError(str(error), error.hint or _repaired(text, grammar) or grammar.hint) from None


@dataclass
class _Parser:
    """A parser by operator precedence: `kind` and `token` are the next token, `previous` is the one before."""

    text: str
    grammar: Grammar
    kind: str = ""
    token: str = ""
    previous: str = ""
    position: int = 0
    depth: int = 0

    def parse(self) -> Node:
        if not self.text.strip():
            raise _InvalidError("it is empty")
        if len(self.text) > _LONGEST:
            raise _InvalidError(f"it has {len(self.text)} characters, and at most {_LONGEST} are read")
        self.text = self.text.strip()
        self._advance()
        tree = self._expression(0)
        if self.kind != "end":
            raise self._unexpected()
        return self._checked(tree, self.grammar.condition)

    def _advance(self) -> str:
        """Go to the next token, and return the one before it."""
        found = _TOKEN.match(self.text, self.position)
        assert found is not None  # the last alternative matches any character
        self.previous, self.kind, self.position = self.token, str(found.lastgroup), found.end()
        self.token = found[self.kind]
        if self.kind == "name" and self.token in self.grammar.operators:
            self.kind = "sign"
        known = (*self.grammar.operators, "-", "(", ")")
        if self.kind == "other" or (self.kind == "sign" and self.token not in known):
            operators = f"the operators are {' '.join(self.grammar.operators)}"
            raise _InvalidError(f"{self.token!r} can't be part of it, {operators}")
        return self.previous

    def _expression(self, least: int) -> Node:
        """Parse operands and the operators between them that bind at least so tightly."""
        self.depth += 1
        if self.depth > _DEEPEST:
            raise _InvalidError(f"it is nested more than {_DEEPEST} deep")
        left = self._operand(least)
        while self.kind == "sign" and _BINDING.get(self.token, -1) >= least:
            sign = self._advance()
            if sign in _COMPARISONS:
                left = self._comparison(sign, left)
                continue
            is_logic = sign in ("and", "or")
            left = self._checked(left, is_logic)
            # powers group from the right
            right = self._checked(self._expression(_BINDING[sign] + (sign != "**")), is_logic)
            left = Logic(sign, left, right) if is_logic else Operation(sign, left, right)
        self.depth -= 1
        return left

    def _comparison(self, sign: str, left: Node) -> Relation:
        """Parse what a number is compared with, and what that is compared with in turn."""
        operators, operands = [sign], [self._checked(left, False)]
        while True:
            operands.append(self._checked(self._expression(_COMPARED + 1), False))
            if self.kind != "sign" or self.token not in _COMPARISONS:
                return Relation(tuple(operators), tuple(operands))
            operators.append(self._advance())

    def _checked(self, node: Node, condition: bool) -> Node:
        """Return a node that is a condition, or a number, as it has to be."""
        if isinstance(node, Relation | Not | Logic) == condition:
            return node
        if condition:
            raise _InvalidError("a number is where a comparison is expected")
        raise _InvalidError("a comparison is where a number is expected")

    def _operand(self, least: int) -> Node:
        if self.kind == "number":
            return Number(self._number(self._advance()))
        if self.kind == "name":
            return self._named(self._advance())
        if self.token == "-":
            self._advance()
            return Negation(self._checked(self._expression(_MINUS), False))
        if self.kind == "sign" and self.token == "not" and least <= _NOT:
            self._advance()
            return Not(self._checked(self._expression(_NOT), True))
        if self.token == "(":
            return self._bracketed()
        raise self._unexpected()

    def _number(self, token: str) -> int | float:
        if token.replace("_", "").isdecimal():
            if len(token) > 1 and token[0] == "0":
                raise _InvalidError(f"{token} begins with 0", f"write {token.lstrip('0_') or '0'}")
            return int(token)
        if self.grammar.integers:
            raise _InvalidError(f"{token} isn't an integer")
        number = float(token)
        if not number < _LARGEST:
            raise _InvalidError(f"{token} is too large")
        return number

    def _named(self, name: str) -> Node:
        if self.token == "(":
            if not self.grammar.functions:
                raise _InvalidError(f"{name} can't be called, there are no functions in it")
            if name not in self.grammar.functions:
                hint = did_you_mean(name, self.grammar.functions, "the functions are")
                raise _InvalidError(f"there is no function {name}", hint)
            return Call(name, self._checked(self._bracketed(), False))
        if keyword.iskeyword(name) or not name.isidentifier():
            raise _InvalidError(f"{name} can't be the name of a size")
        return Symbol(name)

    def _bracketed(self) -> Node:
        self._advance()
        inner = self._expression(0)
        if self.token != ")":
            raise self._unexpected()
        self._advance()
        return inner

    def _unexpected(self) -> _InvalidError:
        after = f"after {self.previous}" if self.previous else "at the beginning"
        if self.kind == "end":
            is_open = self.text.count("(") > self.text.count(")")
            return _InvalidError("a bracket isn't closed" if is_open else f"something is missing {after}")
        return _InvalidError(f"{self.token} isn't expected {after}")


_LOOKALIKES = str.maketrans(
    {**dict.fromkeys("×·⋅∗", "*"), **dict.fromkeys("−–—", "-"), "÷": "/", "∕": "/", "²": "**2", "³": "**3", "^": "**",
     "≤": "<=", "≥": ">=", "≠": "!="}
)  # fmt: skip
_MODULE = re.compile(r"\b(?:math|np|numpy|torch)\.")
_IMPLICIT_PRODUCT = re.compile(r"(?<![\w.])([1-9][0-9]*)(?![eE][0-9])(?=[^\W\d_])")
_QUOTIENT = re.compile(r"(?<!/)/(?!/)")
_LOGIC = (
    (re.compile(r" *&&? *"), " and "),
    (re.compile(r" *\|\|? *"), " or "),
    (re.compile(r"~ *|!(?!=) *"), "not "),
    (re.compile(r"(?<![<>=!])=(?!=)"), "=="),
)
"""Conditions in other notations."""


def _repaired(text: str, grammar: Grammar) -> str | None:
    """Return the hint for a text that is meant as in other notations; None if it then still can't be parsed."""
    if len(text) > _LONGEST:
        return None
    meant = re.sub(r"\d", lambda digit: str(int(digit[0])), re.sub(r"\s", " ", text)).translate(_LOOKALIKES)
    meant = _IMPLICIT_PRODUCT.sub(r"\1*", _MODULE.sub("", meant))
    meant = _QUOTIENT.sub("//", meant) if "/" not in grammar.operators else meant
    for notation, ours in _LOGIC if grammar.condition else ():
        meant = notation.sub(ours, meant)
    try:
        _Parser(meant, grammar).parse()
    except _InvalidError:
        return None
    return f"did you mean {meant.strip()}?"


def symbols(tree: Node) -> tuple[str, ...]:
    """Return the symbols in a tree, each once, in order of appearance.

    >>> symbols(parse("H*Dk+L*H", AXIS))
    ('H', 'Dk', 'L')
    """
    return tuple(dict.fromkeys(_names(tree)))


def _names(tree: Node) -> Iterator[str]:
    match tree:
        case Symbol(name):
            yield name
        case Negation(inner) | Call(_, inner) | Not(inner):
            yield from _names(inner)
        case Operation(_, left, right) | Logic(_, left, right):
            yield from _names(left)
            yield from _names(right)
        case Relation(_, operands):
            for operand in operands:
                yield from _names(operand)


def comparisons(tree: Node) -> Iterator[Relation]:
    """Yield each comparison of two numbers in a condition, those of a chain one by one."""
    match tree:
        case Not(condition):
            yield from comparisons(condition)
        case Logic(_, left, right):
            yield from comparisons(left)
            yield from comparisons(right)
        case Relation(operators, operands):
            for operator, pair in zip(operators, itertools.pairwise(operands), strict=True):
                yield Relation((operator,), pair)


def holds(tree: Node, sizes: Mapping[str, int]) -> bool:
    """Return whether a condition holds at these sizes; KeyError if a symbol has none.

    Raises AttnshapeError as `evaluate` does. As in Python, what follows isn't evaluated once the answer is known.
    """
    match tree:
        case Not(condition):
            return not holds(condition, sizes)
        case Logic(name, left, right):
            return (
                holds(left, sizes) and holds(right, sizes)
                if name == "and"
                else holds(left, sizes) or holds(right, sizes)
            )
        case Relation(operators, operands):
            number = evaluate(operands[0], sizes)
            for name, operand in zip(operators, operands[1:], strict=True):
                following = evaluate(operand, sizes)
                if not _COMPARISONS[name](number, following):
                    return False
                number = following
            return True
    raise AssertionError("a number is no condition")


def evaluate(tree: Node, sizes: Mapping[str, int]) -> int | float:
    """Return the number of a tree at these sizes; KeyError if a symbol has none.

    Raises AttnshapeError if the tree has none, with the predicate of a sentence: divides by zero, is too large.
    """
    assert not isinstance(tree, Relation | Not | Logic)
    if isinstance(tree, Symbol):
        return sizes[tree.name]
    if isinstance(tree, Number):
        return tree.value
    if isinstance(tree, Negation):
        return -evaluate(tree.operand, sizes)
    result: int | float | complex
    try:
        if isinstance(tree, Operation):
            left, right = evaluate(tree.left, sizes), evaluate(tree.right, sizes)
            if tree.operator == "**" and abs(right) > _LARGEST_EXPONENT:
                raise AttnshapeError(
                    f"has the exponent {right:.6g}, and {_LARGEST_EXPONENT} is the largest", "give a smaller one"
                )
            result = _OPERATORS[tree.operator](left, right)
        else:
            result = _FUNCTIONS[tree.function](evaluate(tree.argument, sizes))
    except ZeroDivisionError:
        raise AttnshapeError("divides by zero at these sizes", "give other sizes, or another divisor") from None
    except OverflowError:
        result = math.inf
    except ValueError:
        result = 1j  # as Python's powers give it
    if isinstance(result, complex):
        raise AttnshapeError("has no real value at these sizes", "take roots and logarithms of positive numbers")
    if not -_LARGEST < result < _LARGEST:
        raise AttnshapeError("is too large", "give smaller numbers")
    return result

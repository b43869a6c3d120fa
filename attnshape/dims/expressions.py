"""Axis expressions (products, quotients and sums of size symbols and integers), and the tensor specs made of them."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from attnshape.errors import AttnshapeError, Option

_LONGEST = 200
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}


@dataclass(frozen=True)
class AxisExpression:
    """A parsed axis expression.

    >>> parse_expression("Lp+L").evaluate({"Lp": 6, "L": 10})
    16
    >>> parse_expression("-(-L//4)*4").evaluate({"L": 10})
    12
    >>> parse_expression("3*D").symbols
    ('D',)
    """

    text: str
    tree: ast.expr

    @property
    def symbols(self) -> tuple[str, ...]:
        """The symbols in it, each once, in order of appearance."""
        names = [node.id for node in ast.walk(self.tree) if isinstance(node, ast.Name)]
        return tuple(dict.fromkeys(names))

    def evaluate(self, sizes: Mapping[str, int]) -> int:
        """Return the expression's number at these sizes; KeyError if a symbol has none."""
        return _evaluate(self.tree, sizes, self.text)


def parse_expression(text: str) -> AxisExpression:
    """Parse an axis expression. Raises AttnshapeError if it is something else."""
    refused = AttnshapeError(
        f"{text[:60]!r} isn't an axis expression",
        "write a product, quotient or sum of size symbols and integers, without spaces: H*Dk, Dk//2, Lp+L",
    )
    try:
        tree = ast.parse(text.strip(), mode="eval").body if len(text) <= _LONGEST else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        tree = None
    if tree is None or not _allowed(tree):
        raise refused
    return AxisExpression(text.strip(), tree)


def _allowed(node: ast.expr) -> bool:
    match node:
        case ast.Name():
            return True
        case ast.Constant(value=value):
            return type(value) is int
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _allowed(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _allowed(left) and _allowed(right)
    return False


def _evaluate(node: ast.expr, sizes: Mapping[str, int], text: str) -> int:
    match node:
        case ast.Name(id=name):
            return sizes[name]
        case ast.Constant(value=int(value)):
            return value
        case ast.UnaryOp(operand=operand):
            return -_evaluate(operand, sizes, text)
        case ast.BinOp(left=left, op=op, right=right):
            try:
                return _OPERATORS[type(op)](_evaluate(left, sizes, text), _evaluate(right, sizes, text))
            except ZeroDivisionError:
                raise AttnshapeError(f"{text} divides by zero at these sizes", "give other sizes") from None
    raise AssertionError(f"not an axis expression: {ast.dump(node)}")


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
        kind, below = "int", parse_expression(integer["bound"])
        words.pop(0)
    elif words and words[0].startswith("int["):
        raise AttnshapeError(
            (Option("inputs", text, name), f": {words[0]!r} isn't a type"), "integers below V are written int[V]"
        )
    return TensorSpec(name, kind, below, tuple(parse_expression(word) for word in words))

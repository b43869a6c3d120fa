"""A diagnosis: its sentence, the axes that disagree, and fixes to try; and the phrases of its sentence."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from attnshape.diagnostics.context import RESULT_OF, FailedOperand, parse_expression
from attnshape.tracing.raw import RawCall

Shapes = Sequence[tuple[int, ...]]
Accepts = Callable[[tuple[int, ...], Shapes], bool]
"""Whether a result of this shape, from operands of those shapes, is plausible."""

_SWAP_TEXTS = {
    (-2, -1): (".transpose(-2, -1)", ".transpose(-1, -2)", ".mT", ".transpose(2, 3)"),
    (1, 2): (".transpose(1, 2)", ".transpose(2, 1)"),
}
"""The ways to write a swap of two axes; 2 and 3 are the last two of four."""
_ORDINALS = ("last", "second", "third", "fourth", "fifth", "sixth")


@dataclass(frozen=True)
class Fix:
    """A change that might make the call succeed; it becomes a hint only after it was tried."""

    text: str
    """The new source of the operand or of the whole expression."""
    tensors: Callable[[list[Tensor]], list[Tensor]] = lambda tensors: tensors
    """Changes the operands."""
    call: Callable[[RawCall], RawCall] = lambda call: call
    """Changes the call."""
    rank: int = 0
    """Lower is more usual. If several fixes of one rank work, none is shown."""
    accepts: Accepts = lambda shape, operands: True
    inner: bool = False
    """Whether to leave out the result's signature, which depends on the data or belongs to a library's inner call."""


@dataclass(frozen=True)
class Diagnosis:
    """Why a call failed."""

    explanation: str
    disagree: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """For each operand's position, the axes that disagree."""
    fixes: Iterable[Fix] = ()
    """They can be iterated over only once."""


def change_operand(
    operand: FailedOperand, suffix: str, change: Callable[[Tensor, list[Tensor]], Tensor], rank: int = 0
) -> list[Fix]:
    """Return the fix that appends a suffix to an operand's text; none if the source doesn't contain the operand."""
    if operand.text is None:
        return []

    def changed(tensors: list[Tensor]) -> list[Tensor]:
        return replaced(tensors, operand, change(tensors[operand.position], tensors))

    return [Fix(receiver(operand.text) + suffix if suffix else operand.text, changed, rank=rank)]


def replaced(tensors: list[Tensor], operand: FailedOperand, tensor: Tensor) -> list[Tensor]:
    """Return the tensors with another one for an operand."""
    return [*tensors[: operand.position], tensor, *tensors[operand.position + 1 :]]


def swap_axes(operand: FailedOperand, first: int, second: int, rank: int = 0) -> list[Fix]:
    """Return the fix that swaps two axes of an operand: `.T` where it has only two."""
    if operand.rank < 2:
        return []
    swap = next((end for end in _SWAP_TEXTS.get((first, second), ()) if (operand.text or "").endswith(end)), None)
    if operand.text is not None and swap is not None and (swap != ".transpose(2, 3)" or operand.rank == 4):
        # instead of a second swap, remove the first
        operand, suffix = replace(operand, text=operand.text.removesuffix(swap)), ""
    else:
        suffix = ".T" if operand.rank == 2 else f".transpose({first}, {second})"
    return change_operand(operand, suffix, lambda tensor, _: tensor.transpose(first, second), rank)


def unsqueeze(operand: FailedOperand, axis: int) -> list[Fix]:
    """Return the fix that inserts an axis of size 1."""
    return change_operand(operand, f".unsqueeze({axis})", lambda tensor, _: tensor.unsqueeze(axis))


def call_instead(text: str | None, function: Callable[..., object], rank: int = 0) -> list[Fix]:
    """Return the fix that calls another function with the same arguments; none without a text for it."""
    return [Fix(text, call=lambda call: replace(call, function=function), rank=rank)] if text is not None else []


def receiver(text: str) -> str:
    """Return an expression with parentheses where a method call needs them.

    >>> receiver("q"), receiver("q + k"), receiver("q.mT")
    ('q', '(q + k)', 'q.mT')
    """
    plain = isinstance(parse_expression(text), (ast.Name, ast.Attribute, ast.Call, ast.Subscript))
    return text if plain else f"({text})"


# phrases


def axis_name(axis: int, rank: int) -> str:
    """Return the name of an axis in a sentence.

    >>> axis_name(3, 4), axis_name(2, 4), axis_name(1, 4)
    ('the last axis', 'the second-to-last axis', 'axis 1')
    """
    if axis == rank - 1:
        return "the last axis"
    return "the second-to-last axis" if axis == rank - 2 and rank > 2 else f"axis {axis}"


def axis_from_the_right(axis: int, rank: int) -> str:
    """Return the name of an axis counted from the right.

    >>> axis_from_the_right(3, 4), axis_from_the_right(1, 4)
    ('the last axis', 'the third axis from the right')
    """
    back = rank - 1 - axis
    if back == 0:
        return "the last axis"
    return f"the {_ORDINALS[back]} axis from the right" if back < len(_ORDINALS) else f"axis {axis}"


def size_of(operand: FailedOperand, axis: int) -> str:
    """Return an axis's symbol and number: `Dk=64`, or `64` where it has no symbol."""
    return sized(operand.record.axes[axis].expression, operand.shape[axis])


def sized(expression: str, number: int) -> str:
    """Return an expression with its number.

    >>> sized("Dk", 64), sized("64", 64)
    ('Dk=64', '64')
    """
    return f"{number:,}" if expression.isdecimal() else f"{expression}={number}"


def axis_is(operand: FailedOperand, axis: int) -> str:
    """Return the size of an axis as a clause: "the last axis of `query` is Dk=64"."""
    return f"{axis_name(axis, operand.rank)} of {quoted(operand)} is {size_of(operand, axis)}"


def quoted(operand: FailedOperand) -> str:
    """Return an operand's name as explanations write it."""
    return operand.name if operand.name.startswith(RESULT_OF) else f"`{operand.name}`"


def axes_of(operand: FailedOperand) -> str:
    """Return the number of an operand's axes, and their symbols: "3 axes, B L D"."""
    return f"{count_axes(operand.rank)}, {operand.record.signature}" if operand.rank else "no axes"


def has_axes(operand: FailedOperand) -> str:
    """Return the axes of an operand as a clause: "`query` has 3 axes, B L D"."""
    return f"{quoted(operand)} has {axes_of(operand)}"


def count_axes(number: int) -> str:
    """Return a number of axes in words."""
    return f"{number:,} {'axis' if number == 1 else 'axes'}"


def product(expressions: Sequence[str]) -> str:
    """Return expressions as a product, without ones.

    >>> product(["B", "Lp+L", "1", "10"])
    'B*(Lp+L)*10'
    """
    factors = [text if re.fullmatch(r"[\w*]+", text) else f"({text})" for text in expressions if text != "1"]
    return "*".join(factors) or "1"

"""Compares the arguments of two calls that are no tensors."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

from attnshape.dims.expressions import parse_expression
from attnshape.errors import AttnshapeError
from attnshape.model.difference import ArgumentChange, OutlineStep
from attnshape.model.trace import UNKNOWN_FORMULA, Argument
from attnshape.tracing.operations import base_name

Sizes = Mapping[str, int]
_CLOSE = 1e-6
_AXES = frozenset({"dim", "dims", "axis", "axes"})
_INTEGER = re.compile(r"-?\d{1,6}")
_AXIS_NUMBERS = re.compile(r"-?\d{1,6}|\(-?\d{1,6}(?:, -?\d{1,6})*,?\)")


def argument_changes(old: OutlineStep, new: OutlineStep, sizes: tuple[Sizes, Sizes]) -> Iterator[ArgumentChange]:
    """Yield the arguments that differ between two calls of one function.

    An argument that isn't given is the same as one with its default value. A number that follows from the sizes is the
    same where it is the same formula or, at equal sizes, the same number.
    """
    if base_name(old.operation) != base_name(new.operation):
        return
    before, after = ({argument.name: argument for argument in step.arguments} for step in (old, new))
    ranks = {len(output.shape) for step in (old, new) for output in step.outputs}
    for name in {**before, **after}:
        one, other = before.get(name), after.get(name)
        if one is None or other is None:
            given = one or other
            if given is not None and not given.default and given.value != "None":
                yield ArgumentChange(name, one.value if one else None, other.value if other else None)
        elif not (_is_same(one, other, sizes) or (name in _AXES and _same_axes(one.value, other.value, ranks))):
            yield ArgumentChange(name, _text(one), _text(other))


def _text(argument: Argument) -> str:
    if argument.formula is None or argument.formula == UNKNOWN_FORMULA:
        return argument.value
    return f"{argument.formula} = {argument.value}"


def _is_same(old: Argument, new: Argument, sizes: tuple[Sizes, Sizes]) -> bool:
    if _same_value(old.value, new.value):
        return True
    if sizes[0] == sizes[1]:
        return False
    if UNKNOWN_FORMULA in (old.formula, new.formula):
        return True  # whether it only follows from the sizes can't be known
    if old.formula is not None and old.formula == new.formula:
        return True
    return _gives(old.formula, sizes[1], new.value) or _gives(new.formula, sizes[0], old.value)


def _gives(formula: str | None, sizes: Sizes, value: str) -> bool:
    """Return whether a formula, as traces save those of arguments, gives a number at some sizes."""
    if formula is None:
        return False
    inverted, rest = formula.startswith("1/"), formula.removeprefix("1/")
    rooted = rest.startswith("sqrt(")
    inner = rest.removeprefix("sqrt").strip() if rooted else rest
    if inner.startswith("(") and inner.endswith(")"):
        inner = inner[1:-1]
    try:
        number = float(parse_expression(inner).evaluate(sizes))
        expected = math.sqrt(number) if rooted else number
        return _same_value(str(1 / expected if inverted else expected), value)
    except (AttnshapeError, KeyError, ValueError, ZeroDivisionError):
        return False


def _same_value(old: str, new: str) -> bool:
    if old == new:
        return True
    try:
        return math.isclose(float(old), float(new), rel_tol=_CLOSE)
    except ValueError:
        return False


def _same_axes(old: str, new: str, ranks: set[int]) -> bool:
    """Return whether two numbers of axes, or lists of them, are the same, though counted from other ends."""
    if not (_AXIS_NUMBERS.fullmatch(old) and _AXIS_NUMBERS.fullmatch(new)):
        return False
    one, other = ([int(number) for number in _INTEGER.findall(text)] for text in (old, new))
    return any(rank and [axis % rank for axis in one] == [axis % rank for axis in other] for rank in ranks)

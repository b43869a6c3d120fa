"""Indices and axes that don't exist."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from typing import Any

from attnshape.diagnostics.context import FailedOperand, FailureContext
from attnshape.diagnostics.diagnosis import Diagnosis, axis_is, count_axes, has_axes, quoted, size_of, swap_axes

_ALONG = {
    **dict.fromkeys(
        ("gather", "index_select", "scatter", "scatter_add", "index_add", "index_copy", "index_fill"), (0, 1, 2)
    ),
    "take_along_dim": (0, 2, 1),
}
"""The positions of the tensor, the axis and the indices among the arguments."""
_NARROWED = re.compile(r"start \((-?\d+)\) \+ length \((\d+)\) exceeds dimension size")
_RANGE = re.compile(r"Dimension out of range \(expected to be in range of \[(-?\d+), (-?\d+)\], but got (-?\d+)\)")
_TOO_MANY = re.compile(r"too many indices for tensor of dimension (\d+)")
_ORDER = re.compile(r"input\.dim\(\) = (\d+) is not equal to len\(dims\) = (\d+)")
_TAKES = re.compile(
    r"[Ee]xpected (.+?) input to (\w+), but got input of size|self must be a (matrix)|tensor with (<= 2) dim"
)
_SAME_RANK = "Index tensor must have the same number of dimensions"


def indices(context: FailureContext) -> Diagnosis | None:
    """Explain an index that is out of range."""
    if context.operation == "embedding":
        return _embedding(context)
    if context.operation in _ALONG:
        return _along(context)
    if context.operation in ("getitem", "setitem"):
        return _item(context)
    if context.operation == "narrow" and (match := _NARROWED.search(context.message)):
        operand, axis = context.operand(0, "input"), context.argument(1, "dim")
        if operand is not None and type(axis) is int and -operand.rank <= axis < operand.rank:
            return _out_of_range(operand, axis, f"narrow reads {match[1]} to {int(match[1]) + int(match[2]) - 1}")
    return None


def _out_of_range(operand: FailedOperand, axis: int, problem: str) -> Diagnosis:
    axis %= operand.rank
    return Diagnosis(
        f"{problem}: {axis_is(operand, axis)}, so its indices are 0 to {operand.shape[axis] - 1}",
        {operand.position: (axis,)},
    )


def embedding_operands(context: FailureContext) -> tuple[FailedOperand | None, FailedOperand | None]:
    """Return an embedding's indices and its table."""
    # torch.embedding takes them in the other order than torch.nn.functional.embedding
    positions = (1, 0) if context.failure.operation == "torch.embedding" else (0, 1)
    return context.operand(positions[0], "input", "indices"), context.operand(positions[1], "weight")


def _embedding(context: FailureContext) -> Diagnosis | None:
    ids, table = embedding_operands(context)
    if ids is None or table is None or ids.record.dtype not in ("int64", "int32") or not table.rank:
        return None
    outside = _outside(ids, 0, table.shape[0])
    rows = f"{size_of(table, 0)} rows, 0 to {table.shape[0] - 1}"
    explanation = f"{quoted(ids)} contains {outside}: the table {quoted(table)} has {rows}"
    return Diagnosis(explanation, {table.position: (0,)}) if outside is not None else None


def _along(context: FailureContext) -> Diagnosis | None:
    at, along, by = _ALONG[context.operation]
    operand, index = context.operand(at, "input"), context.operand(by, "index", "indices")
    axis = context.argument(along, "dim")
    if operand is None or index is None or type(axis) is not int or not -operand.rank <= axis < operand.rank:
        return None
    outside = _outside(index, 0, operand.shape[axis])
    return _out_of_range(operand, axis, f"{quoted(index)} contains {outside}") if outside is not None else None


def _outside(index: FailedOperand, start: int, stop: int) -> int | None:
    """Return the largest, else the smallest of some indices, if it isn't in a range."""
    return next(
        (int(extreme) for extreme in reversed(index.min_and_max or ()) if not start <= int(extreme) < stop), None
    )


def _item(context: FailureContext) -> Diagnosis | None:
    operand, key = context.operand(0), context.argument(1)
    parts = list(key) if isinstance(key, tuple) else [key]
    if operand is not None and "shape of the mask" in context.message:
        return _mask(context, operand, parts)
    if operand is None or "out of bounds" not in context.message:
        return None
    for axis, part in _parts_by_axis(context, operand, parts):
        length = operand.shape[axis]
        if type(part) is int and not -length <= part < length:
            return _out_of_range(operand, axis, f"the index is {part}")
        index = context.operand_of(part)
        if index is not None and index.record.dtype != "bool":
            outside = _outside(index, -length, length)
            if outside is not None:
                return _out_of_range(operand, axis, f"{quoted(index)} contains {outside}")
    return None


def _mask(context: FailureContext, operand: FailedOperand, parts: list[Any]) -> Diagnosis | None:
    for start, part in _parts_by_axis(context, operand, parts):
        mask = context.operand_of(part)
        if mask is None or mask.record.dtype != "bool":
            continue
        axes = range(min(mask.rank, operand.rank - start))
        wrong = tuple(axis for axis in axes if mask.shape[axis] != operand.shape[start + axis])
        if wrong:
            differ = ", ".join(f"{size_of(mask, axis)} for {size_of(operand, start + axis)}" for axis in wrong)
            return Diagnosis(
                f"a boolean mask must have the sizes of the axes that it indexes: {quoted(mask)} has {differ} of "
                f"{quoted(operand)}",
                {mask.position: wrong, operand.position: tuple(start + axis for axis in wrong)},
                # the number of selected elements depends on the data
                [replace(fix, inner=True) for fix in swap_axes(mask, 0, 1)] if mask.rank == 2 else (),
            )
    return None


def _parts_by_axis(context: FailureContext, operand: FailedOperand, parts: list[Any]) -> list[tuple[int, Any]]:
    """Return each part of an index with the first axis that it indexes."""
    counts = [_axes_indexed(context, part) for part in parts]
    rest = operand.rank - sum(counts)
    taken = [rest if part is Ellipsis else count for part, count in zip(parts, counts, strict=True)]
    indexed = zip(itertools.accumulate(taken, initial=0), parts, counts, strict=False)
    return [(axis, part) for axis, part, count in indexed if count and axis < operand.rank]


def _axes_indexed(context: FailureContext, part: Any) -> int:
    """Return the number of axes that one part of an index takes."""
    if part is None or part is Ellipsis or isinstance(part, bool):
        return 0
    index = context.operand_of(part)
    return index.rank if index is not None and index.record.dtype == "bool" else 1


def ranks(context: FailureContext) -> Diagnosis | None:
    """Explain an axis that doesn't exist, or a wrong number of axes."""
    if not context.operands:
        return None
    operand = context.operands[0]
    has = has_axes(operand)
    if match := _RANGE.search(context.message):
        return Diagnosis(f"{has}: {context.operation} is given axis {match[3]}, which doesn't exist")
    if match := _ORDER.search(context.message):
        return Diagnosis(f"{has}: {context.operation} is given {count_axes(int(match[2]))}")
    if _TOO_MANY.search(context.message):
        return Diagnosis(f"{has}, and the index names more")
    if match := _TAKES.search(context.message):
        takes = match[1] or ("2 axes" if match[3] else "at most 2 axes")
        return Diagnosis(f"{has}: {context.operation} takes {takes}{' input' if match[1] else ''}")
    if _SAME_RANK in context.message and len(context.operands) > 1:
        needs = f"the index of {context.operation} must have as many axes as the tensor that it indexes"
        return Diagnosis(f"{needs}: {has}, {has_axes(context.operands[1])}")
    return None

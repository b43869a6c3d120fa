"""What operations do that only change how numbers lie: reshapes, permutations, copies, concatenations."""

from __future__ import annotations

from math import prod

from attnshape.model import Step, TensorRecord, Trace
from attnshape.render.axes import HEADS, AxisSize, named, pairs, place
from attnshape.render.numbers import joined
from attnshape.render.text import visible


def reshape(trace: Trace, step: Step, result: TensorRecord, given: list[TensorRecord]) -> str | None:
    """Return which axis was split into which, or which were joined."""
    if not given:
        return None
    start, gone, come = _difference(pairs(given[0]), pairs(result))
    if prod(size for _, size in gone) != prod(size for _, size in come):
        return None
    if len(gone) == 1 and len(come) > 1:
        what = f"Splits {place(start, len(given[0].shape))}, {named(gone[0])}, into"
        if len(come) == 2 and come[0][0] in HEADS:
            return f"{what} {named(come[0])} heads of {named(come[1])} numbers each"
        return f"{what} {' × '.join(map(named, come))}"
    if len(come) == 1 and len(gone) > 1:
        return f"Joins the axes {joined(list(map(named, gone)))} into one of {named(come[0])}"
    if not gone and come:
        return f"Adds {_ones(len(come))}: {_becomes(given[0], result)}"
    if gone and not come:
        return f"Drops {_ones(len(gone))}: {_becomes(given[0], result)}"
    return f"Reads the same numbers as other axes: {_becomes(given[0], result)}" if gone else None


def permute(trace: Trace, step: Step, result: TensorRecord, given: list[TensorRecord]) -> str | None:
    """Return which axes were swapped, or the new order."""
    if not given or sorted(pairs(given[0])) != sorted(pairs(result)):
        return None
    before = list(zip(pairs(given[0]), given[0].stride, strict=True))
    after = list(zip(pairs(result), result.stride, strict=True))
    if sorted(before) != sorted(after) or len(set(before)) < len(before):
        return f"Reorders the axes: {_becomes(given[0], result)}"
    moved = [index for index, axis in enumerate(before) if axis != after[index]]
    if len(moved) == 2:
        first, second = (before[index][0] for index in moved)
        where = (
            "the last two axes" if moved == [len(before) - 2, len(before) - 1] else f"axes {moved[0]} and {moved[1]}"
        )
        return f"Swaps {where}, {named(first)} and {named(second)}"
    return f"Reorders the axes: {_becomes(given[0], result)}" if moved else "Leaves the axes in their order"


def copy(trace: Trace, step: Step, result: TensorRecord, given: list[TensorRecord]) -> str | None:
    """Return whether the numbers were copied."""
    if result.storage.kind == "same":
        return "Finds the numbers in row-major order already"
    if result.storage.kind != "new" or not given:
        return None
    numbers = f"{prod(result.shape):,} numbers"
    if result.contiguous and not given[0].contiguous:
        return f"Copies {numbers} into row-major order"
    return f"Copies {numbers}"


def join(trace: Trace, step: Step, result: TensorRecord, given: list[TensorRecord]) -> str | None:
    """Return along which axis tensors were concatenated."""
    if len(given) < 2 or len({len(tensor.shape) for tensor in (*given, result)}) > 1:
        return None
    rank = len(result.shape)
    grown = [index for index in range(rank) if any(one.shape[index] != result.shape[index] for one in given)]
    if len(grown) != 1 or sum(one.shape[grown[0]] for one in given) != result.shape[grown[0]]:
        return None
    parts = [named(pairs(one)[grown[0]]) for one in given]
    each = f"{len(given)} tensors of {parts[0]}" if len(set(parts)) == 1 else f"tensors of {joined(parts)}"
    return f"Concatenates {each} along {place(grown[0], rank)} into {named(pairs(result)[grown[0]])}"


def expand(trace: Trace, step: Step, result: TensorRecord, given: list[TensorRecord]) -> str | None:
    """Return which signature was expanded to which."""
    return f"Repeats axes of size 1 without a copy: {_becomes(given[0], result)}" if given else None


def _ones(number: int) -> str:
    return "an axis of size 1" if number == 1 else f"{number} axes of size 1"


def _becomes(before: TensorRecord, after: TensorRecord) -> str:
    return f"{visible(before.signature) or 'a scalar'} becomes {visible(after.signature) or 'a scalar'}"


def _difference(before: list[AxisSize], after: list[AxisSize]) -> tuple[int, list[AxisSize], list[AxisSize]]:
    """Return where two lists of axes part, and what stands there in each."""
    shortest = min(len(before), len(after))
    start = next((index for index in range(shortest) if before[index] != after[index]), shortest)
    rest = shortest - start
    end = next((index for index in range(rest) if before[-1 - index] != after[-1 - index]), rest)
    return start, before[start : len(before) - end], after[start : len(after) - end]

"""Elementwise operations, expansions and writes whose axes don't broadcast."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor

from attnshape.diagnostics.context import FailedOperand, FailureContext
from attnshape.diagnostics.diagnosis import (
    Diagnosis,
    Fix,
    axes_of,
    axis_from_the_right,
    change_operand,
    count_axes,
    has_axes,
    quoted,
    size_of,
    sized,
    swap_axes,
    unsqueeze,
)
from attnshape.model.formatting import pluralize
from attnshape.tracing.operations import ELEMENT_WRITES, EXPANSIONS, FUSED_ATTENTION, JOINS, PRODUCTS, REPEATS

_MASKS = {
    "masked_fill": (1, "mask"),
    "where": (0, "condition"),
    "masked_select": (1, "mask"),
    "masked_scatter": (1, "mask"),
}
"""The position and the keyword of the mask among the arguments."""
_NOT_POINTWISE = PRODUCTS | JOINS | EXPANSIONS | ELEMENT_WRITES
_MESSAGES = ("must match the size of tensor", "must match the existing size", "doesn't match the broadcast shape")
_WRITE_MESSAGES = ("must match", "number of sizes provided")
_MOST_ANCESTORS = 16


def broadcasting(context: FailureContext) -> Diagnosis | None:
    """Explain operands of an elementwise operation that don't broadcast."""
    if context.operation in FUSED_ATTENTION:
        return _fused_mask(context)
    if context.operation in _NOT_POINTWISE or not any(words in context.message for words in _MESSAGES):
        return None
    mask = _mask(context)
    for large, small in itertools.combinations(context.operands, 2):
        if small.rank > large.rank or large is mask:
            large, small = small, large
        large_axes, small_axes, problem = _disagreement(large.symbols, large.shape, quoted(large), small)
        if problem:
            return Diagnosis(
                f"{quoted(large)} and {quoted(small)} don't broadcast in {context.operation}: {problem}",
                {large.position: large_axes, small.position: small_axes},
                _fixes_to_shape_of(large, small, small is mask),
            )
    return _in_place(context)


def _fixes_to_shape_of(large: FailedOperand, small: FailedOperand, is_mask: bool) -> Iterator[Fix]:
    for fix in fixes_to_broadcast(small, large.rank, is_mask):
        yield replace(fix, accepts=lambda shape, operands: shape == operands[large.position])


def _mask(context: FailureContext) -> FailedOperand | None:
    if context.operation in _MASKS and (mask := context.operand(*_MASKS[context.operation])) is not None:
        return mask
    # an additive mask is only known by its name, or by the name of what it was computed from
    named = (operand for operand in context.operands if "mask" in operand.name.lower() and "(" not in operand.name)
    largest = max(operand.rank for operand in context.operands)
    computed = (operand for operand in context.operands if operand.rank < largest and _from_mask(context, operand))
    return next(named, None) or next(computed, None)


def _from_mask(context: FailureContext, operand: FailedOperand) -> bool:
    """Return whether an operand was computed from an input or a result whose name contains "mask"."""
    waiting = [context.failure.operands[operand.position].tensor.of]
    for _ in range(_MOST_ANCESTORS):
        of = waiting.pop() if waiting else None
        if of is None:
            break
        name = of.input
        if of.step is not None:
            step = context.steps[of.step - 1]
            name = step.outputs[of.output].name
            waiting += step.operands
        if name is not None and "mask" in name.lower():
            return True
    return False


def _disagreement(
    symbols: Sequence[str], shape: tuple[int, ...], what: str, operand: FailedOperand
) -> tuple[tuple[int, ...], tuple[int, ...], str]:
    """Return the axes of a shape and of an operand that don't broadcast, and a clause with their sizes.

    `what` names the tensor that has this shape and these symbols.
    """
    backs = [
        back
        for back in range(1, min(len(shape), operand.rank) + 1)
        if shape[-back] != operand.shape[-back] and 1 not in (shape[-back], operand.shape[-back])
    ]
    problem = "; ".join(
        f"{axis_from_the_right(len(shape) - back, len(shape))} is {sized(symbols[-back], shape[-back])} in {what} and "
        f"{size_of(operand, -back)} in {quoted(operand)}"
        for back in backs
    )
    return tuple(len(shape) - back for back in backs[::-1]), tuple(operand.rank - back for back in backs[::-1]), problem


def _in_place(context: FailureContext) -> Diagnosis | None:
    """Explain an in-place operation whose result would be larger than the tensor that it writes to."""
    if not context.operands or not (context.failure.operation or "").endswith("_"):
        return None
    target, *others = context.operands
    larger = next((operand for operand in others if math.prod(operand.shape) > math.prod(target.shape)), None)
    if larger is None:
        return None
    problem = f"an in-place operation can't change the shape of {quoted(target)}, which has {axes_of(target)}"
    return Diagnosis(f"{problem}: {has_axes(larger)}")


def fixes_to_broadcast(small: FailedOperand, rank: int, is_mask: bool) -> Iterator[Fix]:
    """Yield fixes that insert axes of size 1 into an operand, or reorder its axes, so that it may broadcast to a rank.

    The last axis of a mask is that of the keys and stays last.
    """
    shapes: set[tuple[int, ...]] = set()
    for more in range(1, rank - small.rank + 1):
        for inserted in itertools.combinations(range(1, small.rank + more), more):
            index = tuple(None if place in inserted else slice(None) for place in range(small.rank + more))
            sizes = iter(small.shape)
            shape = tuple(1 if part is None else next(sizes) for part in index)
            # beside an axis of size 1, it doesn't matter on which side another is inserted
            if (is_mask and index[-1] is None) or shape in shapes:
                continue
            shapes.add(shape)
            text = ", ".join("None" if part is None else ":" for part in index)
            yield from change_operand(small, f"[{text}]", partial(_indexed, index))
    yield from swap_axes(small, -2, -1, rank=2)
    if small.rank == rank > 2:
        yield from swap_axes(small, 1, 2, rank=2)
    if small.rank == 3:
        yield from change_operand(small, ".permute(2, 0, 1)", lambda tensor, _: tensor.permute(2, 0, 1), rank=3)


def _indexed(index: tuple[slice | None, ...], tensor: Tensor, _: list[Tensor]) -> Tensor:
    return tensor[index]


def _fused_mask(context: FailureContext) -> Diagnosis | None:
    """Explain a mask that doesn't broadcast to the scores, which fused attention doesn't show."""
    query, key, mask = context.operand(0, "query"), context.operand(1, "key"), context.operand(3, "attn_mask")
    if query is None or key is None or mask is None or min(query.rank, key.rank) < 2:
        return None
    scores, symbols = (*query.shape[:-1], key.shape[-2]), [*query.symbols[:-1], key.symbols[-2]]
    return not_broadcast(mask, scores, symbols, "the scores", fixes_to_broadcast(mask, len(scores), True))


def not_broadcast(
    operand: FailedOperand, shape: tuple[int, ...], symbols: Sequence[str], what: str, fixes: Iterable[Fix]
) -> Diagnosis | None:
    """Return the diagnosis of an operand that doesn't broadcast to the shape of the others; None if it does.

    `symbols` are the symbols of that shape; `what` names the tensor that has it.
    """
    _, axes, problem = _disagreement(symbols, shape, what.partition(" of ")[0], operand)
    explanation = f"{quoted(operand)} doesn't broadcast to {what}, {' '.join(symbols)}: {problem}"
    return Diagnosis(explanation, {operand.position: axes}, fixes) if problem else None


# expand and repeat


def expanding(context: FailureContext) -> Diagnosis | None:
    """Explain an expand or a repeat whose sizes don't fit its operand."""
    operand, new = context.operand(0, "input", "self"), context.integers(1, "size", "sizes", "repeats")
    if context.operation not in EXPANSIONS | REPEATS or operand is None or new is None:
        return None
    if operand.rank > len(new):
        return Diagnosis(f"{has_axes(operand)}: {context.operation} is given {pluralize(len(new), 'size')}")
    if context.operation in REPEATS:
        return None
    wrong = [
        axis
        for axis, (size, (_, number)) in enumerate(zip(operand.shape, new[len(new) - operand.rank :], strict=True))
        if number not in (-1, size) and size != 1
    ]
    if not wrong:
        return None
    parts = [
        f"{axis_from_the_right(axis, operand.rank)} of {quoted(operand)} is {size_of(operand, axis)} and can't become "
        f"{sized(*new[axis - operand.rank])}"
        for axis in reversed(wrong)
    ]
    axes = range(1, len(new)) if operand.rank + 1 == len(new) else ()
    return Diagnosis(
        f"{context.operation} only expands axes of size 1: {'; '.join(parts)}",
        {operand.position: tuple(wrong)},
        [fix for axis in axes for fix in unsqueeze(operand, axis)],
    )


# x[…] = y


def writing(context: FailureContext) -> Diagnosis | None:
    """Explain `x[…] = y` where the shape of `y` doesn't fit."""
    if context.operation != "setitem" or not any(words in context.message for words in _WRITE_MESSAGES):
        return None
    target, value = context.operand(0), context.operand(2)
    part = _indexed_axes(context, target) if target is not None else None
    if target is None or value is None or part is None:
        return None
    where = f"the part of {quoted(target)} that it is assigned to"
    if value.rank > len(part):
        return Diagnosis(f"{has_axes(value)}: {where} has {count_axes(len(part))}")
    backs = [back for back in range(1, value.rank + 1) if value.shape[-back] not in (1, part[-back][1])]
    if not backs:
        return None
    parts = [
        f"{axis_from_the_right(value.rank - back, value.rank)} is {part[-back][1]} in that part and "
        f"{size_of(value, -back)} in {quoted(value)}"
        for back in backs
    ]
    return Diagnosis(
        f"{quoted(value)} doesn't fit into {where}: {'; '.join(parts)}",
        {
            target.position: tuple(part[-back][0] for back in backs[::-1]),
            value.position: tuple(value.rank - back for back in backs[::-1]),
        },
    )


def _indexed_axes(context: FailureContext, target: FailedOperand) -> list[tuple[int, int]] | None:
    """Return each axis that an index of slices and integers keeps, with its size; None for other indices."""
    key = context.argument(1)
    parts = list(key) if isinstance(key, tuple) else [key]
    if Ellipsis not in parts:
        parts.append(Ellipsis)
    at = parts.index(Ellipsis)
    parts[at : at + 1] = [slice(None)] * (target.rank - len(parts) + 1)
    if len(parts) != target.rank or not all(isinstance(part, slice) or type(part) is int for part in parts):
        return None
    sliced = [(axis, part) for axis, part in enumerate(parts) if isinstance(part, slice)]
    try:
        return [(axis, len(range(*part.indices(target.shape[axis])))) for axis, part in sliced]
    except TypeError:  # a bound of a slice is a tensor
        return None

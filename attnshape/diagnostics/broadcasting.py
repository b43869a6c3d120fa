"""Elementwise operations, expansions and writes whose axes don't broadcast."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor

from attnshape.diagnostics.context import FailedOperand, FailureContext, flat_integers
from attnshape.diagnostics.diagnosis import (
    Accepts,
    Diagnosis,
    Fix,
    any_result,
    axes_of,
    axis_from_the_right,
    change_operand,
    counted,
    has_axes,
    quoted,
    size_of,
    sized,
    swap_axes,
    unsqueeze,
)
from attnshape.tracing.operations import ELEMENT_WRITES, EXPANSIONS, FUSED_ATTENTION, JOINS, PRODUCTS, REPEATS
from attnshape.tracing.raw import RawCall

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
    for one, other in itertools.combinations(context.operands, 2):
        if other.rank > one.rank or one is mask:
            one, other = other, one
        found = _differing(context, one, other, mask)
        if found is not None:
            return found
    return _in_place(context)


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


def _differing(
    context: FailureContext, large: FailedOperand, small: FailedOperand, mask: FailedOperand | None
) -> Diagnosis | None:
    large_axes, small_axes = _incompatible_axes(large.shape, small.shape)
    if not large_axes:
        return None
    parts = [
        f"{axis_from_the_right(one, large.rank)} is {size_of(large, one)} in {quoted(large)} and "
        f"{size_of(small, other)} in {quoted(small)}"
        for one, other in zip(reversed(large_axes), reversed(small_axes), strict=True)
    ]
    return Diagnosis(
        f"{quoted(large)} and {quoted(small)} don't broadcast in {context.operation}: {'; '.join(parts)}",
        {large.position: large_axes, small.position: small_axes},
        tuple(
            fixes_to_broadcast(
                small, large.rank, small is mask, lambda shape, operands: shape == operands[large.position]
            )
        ),
    )


def _incompatible_axes(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the axes of each that, counted from the right, are neither equal nor 1."""
    backs = [
        back
        for back in range(min(len(one), len(other)), 0, -1)
        if one[-back] != other[-back] and 1 not in (one[-back], other[-back])
    ]
    return tuple(len(one) - back for back in backs), tuple(len(other) - back for back in backs)


def _in_place(context: FailureContext) -> Diagnosis | None:
    """Explain an in-place operation whose result would be larger than the tensor that it writes to."""
    if not context.operands or not (context.failure.operation or "").endswith("_"):
        return None
    target, *others = context.operands
    for operand in others:
        if math.prod(target.shape) < math.prod(operand.shape):
            return Diagnosis(
                f"an in-place operation can't change the shape of {quoted(target)}, which has {axes_of(target)}: "
                f"{has_axes(operand)}"
            )
    return None


def fixes_to_broadcast(small: FailedOperand, rank: int, is_mask: bool, accepts: Accepts) -> Iterator[Fix]:
    """Yield fixes that insert axes of size 1 into an operand, or reorder its axes, so that it may broadcast.

    Args:
        small: The operand.
        rank: The rank that it should broadcast to.
        is_mask: Whether it is a mask, whose last axis is that of the keys and stays last.
        accepts: Which results to accept.
    """
    seen: set[tuple[int, ...]] = set()
    for more in range(1, rank - small.rank + 1):
        for inserted in itertools.combinations(range(1, small.rank + more), more):
            index = tuple(None if place in inserted else slice(None) for place in range(small.rank + more))
            sizes = iter(small.shape)
            shape = tuple(1 if part is None else next(sizes) for part in index)
            # beside an axis of size 1, it doesn't matter on which side another is inserted
            if (is_mask and index[-1] is None) or shape in seen:
                continue
            seen.add(shape)
            text = ", ".join("None" if part is None else ":" for part in index)
            for fix in change_operand(small, f"[{text}]", partial(_indexed, index)):
                yield replace(fix, accepts=accepts)
    reordered = swap_axes(small, -2, -1, rank=2)
    if small.rank == rank > 2:
        reordered += swap_axes(small, 1, 2, rank=2)
    if small.rank == 3:
        reordered += change_operand(small, ".permute(2, 0, 1)", lambda tensor, _: tensor.permute(2, 0, 1), rank=3)
    for fix in reordered:
        yield replace(fix, accepts=accepts)


def _indexed(index: tuple[slice | None, ...], tensor: Tensor, _: list[Tensor]) -> Tensor:
    return tensor[index]


def _fused_mask(context: FailureContext) -> Diagnosis | None:
    """Explain a mask that doesn't broadcast to the scores, which fused attention doesn't show."""
    query, key, mask = context.operand(0, "query"), context.operand(1, "key"), context.operand(3, "attn_mask")
    if query is None or key is None or mask is None or min(query.rank, key.rank) < 2:
        return None
    scores = (*query.shape[:-1], key.shape[-2])
    names = [axis.expression for axis in (*query.record.axes[:-1], key.record.axes[-2])]
    fixes = list(fixes_to_broadcast(mask, len(scores), True, any_result))
    return not_broadcast(mask, scores, names, "the scores", fixes)


def not_broadcast(
    operand: FailedOperand, shape: tuple[int, ...], names: Sequence[str], what: str, fixes: Sequence[Fix]
) -> Diagnosis | None:
    """Return the diagnosis of an operand that doesn't broadcast to a shape; None if it does.

    Args:
        operand: The operand.
        shape: The shape that the operation computes from its other operands.
        names: The symbols of that shape.
        what: What has that shape, in words.
        fixes: Fixes to try.
    """
    at_shape, at_operand = _incompatible_axes(shape, operand.shape)
    if not at_operand:
        return None
    short = what.partition(" of ")[0]
    parts = [
        f"{axis_from_the_right(one, len(shape))} is {sized(names[one], shape[one])} in {short} and "
        f"{size_of(operand, other)} in {quoted(operand)}"
        for one, other in zip(reversed(at_shape), reversed(at_operand), strict=True)
    ]
    return Diagnosis(
        f"{quoted(operand)} doesn't broadcast to {what}, {' '.join(names)}: {'; '.join(parts)}",
        {operand.position: at_operand},
        tuple(fixes),
    )


# expand and repeat


def expanding(context: FailureContext) -> Diagnosis | None:
    """Explain an expand or a repeat whose sizes don't fit its operand."""
    operand, new = context.operand(0, "input", "self"), _new_sizes(context.call)
    if context.operation not in EXPANSIONS | REPEATS or operand is None or new is None:
        return None
    if operand.rank > len(new):
        return Diagnosis(f"{has_axes(operand)}: {context.operation} is given {counted(len(new), 'size', 'sizes')}")
    if context.operation in REPEATS:
        return None
    wrong = [
        back
        for back in range(1, operand.rank + 1)
        if new[-back] not in (-1, operand.shape[-back]) and operand.shape[-back] != 1
    ]
    if not wrong:
        return None
    parts = [
        f"{axis_from_the_right(operand.rank - back, operand.rank)} of {quoted(operand)} is "
        f"{size_of(operand, operand.rank - back)} and can't become "
        f"{sized(context.formula(partial(_new_size, -back), new[-back]), new[-back])}"
        for back in wrong
    ]
    one_axis_less = operand.rank + 1 == len(new)
    return Diagnosis(
        f"{context.operation} only expands axes of size 1: {'; '.join(parts)}",
        {operand.position: tuple(operand.rank - back for back in reversed(wrong))},
        tuple(fix for axis in range(1, len(new) if one_axis_less else 1) for fix in unsqueeze(operand, axis)),
    )


def _new_sizes(call: RawCall | None) -> list[int] | None:
    if call is None:
        return None
    keywords = (call.keywords[word] for word in ("size", "sizes", "repeats") if word in call.keywords)
    try:
        return flat_integers(call.args[1:] or tuple(keywords))
    except TypeError:
        return None


def _new_size(place: int, call: RawCall) -> int:
    return (_new_sizes(call) or [])[place]


# x[…] = y


def writing(context: FailureContext) -> Diagnosis | None:
    """Explain `x[…] = y` where the shape of `y` doesn't fit."""
    if context.operation != "setitem" or not any(words in context.message for words in _WRITE_MESSAGES):
        return None
    target, value = context.operand(0), context.operand(2)
    part = _indexed_axes(context, target) if target is not None else None
    if target is None or value is None or part is None:
        return None
    if value.rank > len(part):
        return Diagnosis(
            f"{has_axes(value)}: the part of {quoted(target)} that it is assigned to has "
            f"{counted(len(part), 'axis', 'axes')}"
        )
    backs = [
        back for back in range(1, value.rank + 1) if part[-back][1] != value.shape[-back] and value.shape[-back] != 1
    ]
    if not backs:
        return None
    parts = [
        f"{axis_from_the_right(value.rank - back, value.rank)} is {part[-back][1]} in that part and "
        f"{size_of(value, value.rank - back)} in {quoted(value)}"
        for back in backs
    ]
    return Diagnosis(
        f"{quoted(value)} doesn't fit into the part of {quoted(target)} that it is assigned to: {'; '.join(parts)}",
        {
            target.position: tuple(sorted(part[-back][0] for back in backs)),
            value.position: tuple(value.rank - back for back in reversed(backs)),
        },
    )


def _indexed_axes(context: FailureContext, target: FailedOperand) -> list[tuple[int, int]] | None:
    """Return each axis that an index of slices and integers keeps, with its size; None for other indices."""
    key = context.argument(1)
    parts = list(key) if isinstance(key, tuple) else [key]
    given = sum(part is not Ellipsis for part in parts)
    if Ellipsis in parts:
        at = parts.index(Ellipsis)
        parts[at : at + 1] = [slice(None)] * (target.rank - given)
    parts += [slice(None)] * (target.rank - len(parts))
    if len(parts) != target.rank or not all(isinstance(part, slice) or type(part) is int for part in parts):
        return None
    try:
        return [
            (axis, len(range(*part.indices(target.shape[axis]))))
            for axis, part in enumerate(parts)
            if isinstance(part, slice)
        ]
    except TypeError:  # a bound of a slice is a tensor
        return None

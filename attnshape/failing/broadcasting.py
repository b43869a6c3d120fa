"""Elementwise operations, masks among them, whose axes don't broadcast."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor

from attnshape.failing.finding import Accepts, Candidate, Finding, any_result, on_operand, transposed
from attnshape.failing.scene import Party, Scene, numel
from attnshape.failing.words import axes, from_the_right, quoted, size, sized

_MASKS = {"masked_fill": (0, 1), "where": (1, 0), "masked_select": (0, 1), "masked_scatter": (0, 1)}
"""Where what is masked and its mask stand among the arguments."""
_NOT_ELEMENTWISE = ("expand", "broadcast_to", "setitem", "einsum", "cat", "stack", "linear", "addmm", "baddbmm")
_SAYS = ("must match the size of tensor", "must match the existing size", "doesn't match the broadcast shape")
_MOST_ANCESTORS = 16
_FUSED = "scaled_dot_product_attention"


def broadcasting(scene: Scene) -> Finding | None:
    """Explain operands of an elementwise operation that don't broadcast."""
    if scene.operation == _FUSED:
        return _fused_mask(scene)
    if scene.operation in _NOT_ELEMENTWISE or not any(words in scene.message for words in _SAYS):
        return None
    mask = _mask(scene)
    for one, other in itertools.combinations(scene.parties, 2):
        axes_of_one, axes_of_other = _differing(one.shape, other.shape)
        if axes_of_one:
            return _differ(scene, one, other, axes_of_one, axes_of_other, mask)
    return _grows(scene)


def _mask(scene: Scene) -> Party | None:
    places = _MASKS.get(scene.operation)
    mask = scene.operand(places[1], "mask", "condition") if places is not None else None
    if mask is not None:
        return mask
    # an additive mask is known by its name alone, or by that of what it was made of
    named = (party for party in scene.parties if "mask" in party.name.lower() and "(" not in party.name)
    largest = max(party.rank for party in scene.parties)
    made = (party for party in scene.parties if party.rank < largest and _made_of_mask(scene, party))
    return next(named, None) or next(made, None)


def _made_of_mask(scene: Scene, party: Party) -> bool:
    """Say whether an operand was computed from an input or a result that is called a mask."""
    waiting = [scene.failure.operands[party.place].tensor.of]
    for _ in range(_MOST_ANCESTORS):
        of = waiting.pop() if waiting else None
        if of is None:
            break
        name = of.input
        if of.step is not None:
            step = scene.steps[of.step - 1]
            name = step.outputs[of.output].name
            waiting += step.operands
        if name is not None and "mask" in name.lower():
            return True
    return False


def _differing(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the axes of each that are neither equal, counted from the right, nor 1."""
    backs = [
        back
        for back in range(1, min(len(one), len(other)) + 1)
        if one[-back] != other[-back] and 1 not in (one[-back], other[-back])
    ]
    return tuple(len(one) - back for back in reversed(backs)), tuple(len(other) - back for back in reversed(backs))


def _differ(
    scene: Scene,
    one: Party,
    other: Party,
    axes_of_one: tuple[int, ...],
    axes_of_other: tuple[int, ...],
    mask: Party | None,
) -> Finding:
    if other.rank > one.rank or one is mask:
        large, small, at_large, at_small = other, one, axes_of_other, axes_of_one
    else:
        large, small, at_large, at_small = one, other, axes_of_one, axes_of_other
    parts = [
        f"{from_the_right(first, large.rank)} is {size(large, first)} in {quoted(large)}, "
        f"{size(small, second)} in {quoted(small)}"
        for first, second in zip(reversed(at_large), reversed(at_small), strict=True)
    ]
    subject = f"{quoted(large)} and {quoted(small)}"
    return Finding(
        f"{subject} don't broadcast in {scene.operation}: {'; '.join(parts)}",
        {large.place: at_large, small.place: at_small},
        tuple(fitting(small, large.rank, small is mask, lambda shape, operands: shape == operands[large.place])),
    )


def _grows(scene: Scene) -> Finding | None:
    """What is written in place keeps its shape."""
    written = scene.parties[0] if scene.parties and (scene.failure.operation or "").endswith("_") else None
    for party in scene.parties[1:] if written is not None else ():
        if written is not None and numel(written.shape) < numel(party.shape):
            return Finding(
                f"{quoted(written)} is written in place and keeps its {axes(written)}: "
                f"{quoted(party)} has {axes(party)}"
            )
    return None


def fitting(small: Party, rank: int, is_mask: bool, accepts: Accepts) -> Iterator[Candidate]:
    """Yield ways to give an operand axes of size 1, or to put its axes in another order, so that it broadcasts.

    A mask's last axis is that of the keys, so it stays last.
    """
    seen: set[tuple[int, ...]] = set()
    for more in range(1, rank - small.rank + 1):
        for places in itertools.combinations(range(1, small.rank + more), more):
            index = tuple(None if place in places else slice(None) for place in range(small.rank + more))
            sizes = iter(small.shape)
            shape = tuple(1 if part is None else next(sizes) for part in index)
            if (is_mask and index[-1] is None) or shape in seen:
                continue
            # beside an axis of size 1 it doesn't matter where another is put
            seen.add(shape)
            written = ", ".join("None" if part is None else ":" for part in index)
            for one in on_operand(small, f"[{written}]", partial(_indexed, index)):
                yield replace(one, accepts=accepts)
    orders = transposed(small, -2, -1, rank=2)
    if small.rank == rank > 2:
        orders += transposed(small, 1, 2, rank=2)
    if small.rank == 3:
        orders += on_operand(small, ".permute(2, 0, 1)", lambda tensor, _: tensor.permute(2, 0, 1), rank=3)
    for one in orders:
        yield replace(one, accepts=accepts)


def _indexed(index: tuple[slice | None, ...], tensor: Tensor, _: list[Tensor]) -> Tensor:
    return tensor[index]


def _fused_mask(scene: Scene) -> Finding | None:
    """In fused attention the mask is added to scores that nobody sees."""
    query, key, mask = scene.operand(0, "query"), scene.operand(1, "key"), scene.operand(3, "attn_mask")
    if query is None or key is None or mask is None or min(query.rank, key.rank) < 2:
        return None
    scores = (*query.shape[:-1], key.shape[-2])
    names = [axis.expression for axis in (*query.record.axes[:-1], key.record.axes[-2])]
    return not_broadcast(mask, scores, names, "the scores", list(fitting(mask, len(scores), True, any_result)))


def not_broadcast(
    party: Party, shape: tuple[int, ...], names: Sequence[str], what: str, candidates: Sequence[Candidate]
) -> Finding | None:
    """Explain an operand that doesn't broadcast to what the operation makes of others; None where it does."""
    at_shape, at_party = _differing(shape, party.shape)
    if not at_party:
        return None
    parts = [
        f"{from_the_right(first, len(shape))} is {sized(names[first], shape[first])} there, "
        f"{size(party, second)} in {quoted(party)}"
        for first, second in zip(reversed(at_shape), reversed(at_party), strict=True)
    ]
    return Finding(
        f"{quoted(party)} doesn't broadcast to {what}, {' '.join(names)}: {'; '.join(parts)}",
        {party.place: at_party},
        tuple(candidates),
    )

"""Lays out what is known of queries, keys or values as the pairs of a query and a key that the weights are about."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from attnshape.checks.attention.cores import Core, FusedCore
from attnshape.checks.attention.elementwise import ElementwiseMap, MeasuredCore
from attnshape.checks.attention.operands import AttentionOperand
from attnshape.checks.attention.subject import Subject, once
from attnshape.checks.interventions.replay import OutputRef


def by_pair(subject: Subject, operand: AttentionOperand, numbers: Tensor) -> Tensor | None:
    """Return for each weight whether any number of its query, key or value is true; None if that can't be laid out.

    `numbers` has the operand's shape, the result that of the weights.
    """
    core = operand.core
    if isinstance(core, FusedCore):
        return _of_fused(core, operand, numbers)
    shape = core.weights.shape
    if operand.role == "value":
        return _arranged(numbers, _axes_of_values(core)).expand(shape)
    axes = core.scores.axes[operand.place]
    places = [_place(axes, out) for out in range(core.scores.result.ndim)]
    pairs = _arranged(numbers, places).expand(core.scores.result.shape)
    index = _indices_of_scores(subject)[core.softmax.ref]
    return pairs.reshape(-1)[index] if index is not None else None


def by_row(core: Core | FusedCore, pairs: Tensor) -> Tensor:
    """Return for each element of the context whether anything is true of a weight in its row.

    `pairs` has the shape of the weights.
    """
    if isinstance(core, FusedCore):
        return pairs.any(-1, keepdim=True).expand(core.event.values[0].shape)
    axes = core.value.axes[core.weights_place]
    result = core.value.result
    return _arranged(pairs, [_place(axes, out) for out in range(result.ndim)]).expand(result.shape)


def _of_fused(core: FusedCore, operand: AttentionOperand, numbers: Tensor) -> Tensor | None:
    shape = core.added.shape
    pairs = numbers.any(-1)
    if pairs.ndim > 1 and len(shape) > 2 and shape[-3] % pairs.shape[-2] == 0:  # heads of keys are fewer
        pairs = pairs.repeat_interleave(shape[-3] // pairs.shape[-2], -2)
    return pairs.unsqueeze(-1 if operand.role == "query" else -2).expand(shape)


def _axes_of_values(core: Core) -> list[int | None]:
    """Return for each axis of the weights the axis of the values that goes with it."""
    product = core.value
    ours, theirs = product.axes[core.weights_place], product.axes[core.values_place]
    keys = product.contracted(core.values_place)
    summed = product.contracted(core.weights_place)
    places: list[int | None] = []
    for axis, stays in enumerate(ours):
        if axis in summed and len(summed) == len(keys):
            places.append(keys[summed.index(axis)])
        else:
            places.append(next((place for place, other in enumerate(theirs) if stays & other), None))
    return places


def _place(axes: Sequence[frozenset[int]], out: int) -> int | None:
    """Return the axis of an operand that becomes an axis of the result."""
    return next((axis for axis, stays in enumerate(axes) if out in stays), None)


def _arranged(numbers: Tensor, places: Sequence[int | None]) -> Tensor:
    """Return a tensor with these axes, in this order, each None for an axis of size 1; `any` reduces all others."""
    kept = [place for place in places if place is not None]
    reduced = [axis for axis in range(numbers.ndim) if axis not in kept]
    pairs = numbers.any(dim=reduced) if reduced else numbers
    left = sorted(kept)
    pairs = pairs.permute([left.index(place) for place in kept])
    for axis, place in enumerate(places):
        if place is None:
            pairs = pairs.unsqueeze(axis)
    return pairs


@once
def _indices_of_scores(subject: Subject) -> dict[OutputRef, Tensor | None]:
    """Return `_index_of_scores` for each attention, by its weights: several may make one context together."""
    return {measured.core.softmax.ref: _index_of_scores(measured) for measured in subject.measured}


def _index_of_scores(measured: MeasuredCore) -> Tensor | None:
    """Return for each weight the flat index of its score; None if the code in between mixes them.

    A hidden score has the place of its weight, since it can't be followed.
    """
    core = measured.core
    shape = core.weights.shape
    same = core.scores.result.shape == core.softmax.scores.shape == shape
    index = torch.arange(core.weights.numel()).reshape(shape)
    for mapping in (measured.weights_map, measured.scores_map):
        index_or_none = _followed(index, mapping, same)
        if index_or_none is None:
            return None
        index = index_or_none
    return index


def _followed(index: Tensor, mapping: ElementwiseMap | None, same: bool) -> Tensor | None:
    if mapping is None or not mapping.elementwise:
        return index if same else None
    source = mapping.source.reshape(-1)[index]
    if bool((source < 0).any()) and not same:
        return None
    return torch.where(source < 0, index, source)

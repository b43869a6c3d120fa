"""Finds tensors that contexts are written to at some indices, as where only some of the queries attend."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from attnshape.checks.attention.cores import Core, FusedCore, moves_only
from attnshape.checks.attention.elementwise import index_along
from attnshape.checks.attention.products import recompute
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.replay import OutputRef, ReplayedCall
from attnshape.tracing.operations import FILLS, INDEXED_WRITES

_WRITES = FILLS | INDEXED_WRITES
_MOST_MOVES = 8
"""How many calls may move a context before it is written."""


@dataclass(frozen=True)
class WrittenContext:
    """A tensor that contexts were written to."""

    ref: OutputRef
    """The tensor after the last of the writes."""
    features: tuple[int, ...]
    """Its axes that hold the features of one head."""
    writes: frozenset[int]
    """The numbers of the calls that write to it."""


def feature_axes_of(subject: Subject, core: Core | FusedCore) -> list[int]:
    """Return the axes of a context that hold the features of one head."""
    last = subject.base.value(core.context).ndim - 1
    return [last] if isinstance(core, FusedCore) else sorted(core.value.free(core.values_place))


def written_context(subject: Subject, core: Core | FusedCore) -> WrittenContext | None:
    """Return the tensor that a context is written to, if each axis of its features is an axis of that tensor."""
    found: WrittenContext | None = None
    for event in subject.base.events[core.context.order :]:
        if event.name not in _WRITES or len(event.operands) < 2:
            continue
        if found is None:
            features = _features_after(subject, core, event)
            if features is not None:
                found = WrittenContext(event.refs[0], features, frozenset({event.order}))
        elif event.in_place and found.ref in event.sources[0]:
            found = WrittenContext(event.refs[0], found.features, found.writes | {event.order})
    return found


def _features_after(subject: Subject, core: Core | FusedCore, write: ReplayedCall) -> tuple[int, ...] | None:
    """Return the axes of what a call writes to that a context's features have there; None if it isn't written."""
    path: list[tuple[ReplayedCall, int]] = []
    place = len(write.operands) - 1
    sources = write.sources[place]
    while sources != (core.context,):
        if len(sources) > 1 or not isinstance(sources[0], OutputRef) or len(path) == _MOST_MOVES:
            return None
        event = subject.base.event(sources[0])
        if not moves_only(event) or event.in_place or not event.sources:
            return None
        path.append((event, sources[0].output))
        sources = event.sources[0]
    shape = tuple(subject.base.value(core.context).shape)
    numbers = torch.arange(subject.base.value(core.context).numel(), dtype=torch.float64).reshape(shape)
    for event, output in reversed(path):
        numbers = recompute(event, {0: numbers}, output)
    source = written_elements(write, place, numbers)
    if source is None:
        return None
    found = [_axis_of(source, index_along(source, shape, axis)) for axis in feature_axes_of(subject, core)]
    axes = tuple(axis for axis in found if axis is not None)
    return axes if axes and len(set(axes)) == len(found) else None


def written_elements(write: ReplayedCall, place: int, numbers: Tensor) -> Tensor | None:
    """Return what a call makes of a tensor of -1 if it writes these numbers; None if it doesn't just write them."""
    written = torch.full(write.operand_values[0].shape, -1.0, dtype=numbers.dtype)
    operands = iter([{0: written, place: numbers}.get(at, value) for at, value in enumerate(write.operand_values)])
    args, keywords = tree_map(
        lambda value: next(operands) if isinstance(value, Tensor) else value, (write.args, dict(write.keywords))
    )
    with torch.no_grad():
        result = write.function(*args, **keywords)
    source = (result if isinstance(result, Tensor) else written).long()
    return source if write.values[0].shape == source.shape else None


def _axis_of(source: Tensor, index: Tensor) -> int | None:
    """Return the axis along which the elements that come from somewhere have the given indices."""
    known = source >= 0
    for axis, size in enumerate(source.shape):
        along = torch.arange(size).reshape([-1 if other == axis else 1 for other in range(source.ndim)])
        if bool(known.any()) and bool((index == along)[known].all()):
            return axis
    return None

"""Looks for tokens that are laid out as a map of pixels in which the channels of a pixel come from several tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from attnshape.checks.attention.layouts import feature_axes, moves_only
from attnshape.checks.attention.perturbation import changed_indices
from attnshape.checks.attention.products import recompute
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.replay import OutputRef, ReplayedCall
from attnshape.tracing import operations as ops

_READERS = ops.CONVOLUTIONS | ops.POOLINGS
"""Operations that take the last axes for pixels and the one before these for channels."""
_MOST_TOKENS = 64
"""The most tokens that are followed one by one."""


@dataclass(frozen=True)
class ScrambledMap:
    """A map whose pixels mix the features of tokens."""

    reader: ReplayedCall
    """The call that reads the map."""
    at: OutputRef
    """The layout operation that tears the tokens apart."""
    tokens: tuple[int, ...]
    """The tokens from which the channels of one pixel come."""


def scrambled_maps(subject: Subject) -> Iterator[ScrambledMap]:
    """Yield the maps of pixels that are made of tokens by layout operations that tear these apart."""
    for reader in subject.base.events:
        if reader.name not in _READERS or not reader.operand_values:
            continue
        path = _layout_before(subject, reader)
        start = next((place for place, (event, _) in enumerate(path) if _reads_tokens(subject, event)), None)
        found = _scrambled(reader, path[start:]) if start is not None else None
        if found is not None:
            yield found


def _layout_before(subject: Subject, reader: ReplayedCall) -> list[tuple[ReplayedCall, int]]:
    """Return the layout operations through which a call reads its first operand, each with its output on the way."""
    path: list[tuple[ReplayedCall, int]] = []
    sources = reader.sources[0]
    while len(sources) == 1 and isinstance(sources[0], OutputRef):
        event = subject.base.event(sources[0])
        if not moves_only(event) or event.in_place or len(event.operand_values) != 1 or event.name in ops.DROPOUTS:
            break
        path.append((event, sources[0].output))
        sources = event.sources[0]
    return path[::-1]


def _reads_tokens(subject: Subject, event: ReplayedCall) -> bool:
    """Return whether the last axis of what a call reads holds the features of one token each.

    That is so where a projection or a norm returns it, or reads it elsewhere, over that axis.
    """
    (producer, *_), value = event.sources[0], event.operand_values[0]
    if value.ndim < 2 or not subject.graph.carries_data(event.sources[0]):
        return False
    if isinstance(producer, OutputRef):
        maker = subject.base.event(producer)
        if maker.name in ops.TOKEN_NORMS:
            return True
        if maker.name in ops.PRODUCTS and len(maker.operand_values) >= 2:
            return feature_axes(subject, maker) == (value.ndim - 1,)
    readers = [reader for reader, place in subject.graph.consumers.get(producer, []) if place == 0]
    return any(reader.name in ops.TOKEN_NORMS | {"linear"} for reader in readers)


def _scrambled(reader: ReplayedCall, path: list[tuple[ReplayedCall, int]]) -> ScrambledMap | None:
    """Return the map if its pixels mix the features of tokens; the path begins with what reads the tokens."""
    start = path[0][0].operand_values[0]
    count = start.numel() // start.shape[-1]
    followed = range(min(count, _MOST_TOKENS))
    numbers = torch.arange(count, dtype=start.dtype).reshape(*start.shape[:-1], 1).expand(start.shape).contiguous()
    at: OutputRef | None = None
    for event, output in path:
        numbers = recompute(event, {0: numbers}, output)
        if at is None and not all(_is_box(numbers == token) for token in followed):
            at = OutputRef(event.order, output)
    channels = numbers.ndim - _spatial_axes(reader) - 1
    if at is None or channels < 0:
        return None
    pixels = numbers.movedim(channels, -1)[numbers.amax(channels) != numbers.amin(channels)]
    spread = [int((numbers == token).any(channels).sum()) > 1 for token in followed]
    if not pixels.numel() or not all(spread):
        return None
    return ScrambledMap(reader, at, tuple(sorted({int(number) for number in pixels[0].tolist()})))


def _is_box(mask: Tensor) -> bool:
    """Return whether the true elements are all those at some indices of each axis."""
    return int(mask.sum()) == math.prod(len(changed_indices(mask, axis)) for axis in range(mask.ndim))


def _spatial_axes(reader: ReplayedCall) -> int:
    """Return how many axes of pixels a convolution or a pooling has: the number in its name."""
    return int(reader.name[-2])

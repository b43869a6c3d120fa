"""Looks for tokens laid out as a map whose pixels mix tokens, and for maps laid out as tokens that mix pixels."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attnshape.checks.attention.cores import moves_only
from attnshape.checks.attention.layouts import feature_axes
from attnshape.checks.attention.perturbation import changed_indices
from attnshape.checks.attention.products import recompute
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.replay import OutputRef, Producer, ReplayedCall
from attnshape.tracing import operations as ops

_READERS = ops.CONVOLUTIONS | ops.POOLINGS
"""Operations that take the last axes for pixels and the one before these for channels."""
_MAPS = _READERS | ops.CHANNEL_NORMS
"""Operations that return a map: batch, channels, and the axes of its pixels."""
_ELEMENTWISE = ops.NONLINEARITIES | ops.ADDITIONS | ops.SUBTRACTIONS | ops.SCALINGS | ops.DROPOUTS
"""Operations that leave every number in its place, if the result has the operand's shape."""
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


@dataclass(frozen=True)
class ScrambledTokens:
    """Tokens that mix the channels of a map's pixels."""

    reader: ReplayedCall
    """The call that reads the features of tokens."""
    at: OutputRef
    """The layout operation that tears the pixels apart."""
    pixels: tuple[int, ...]
    """The pixels from which the features of one token come, counted over the whole batch."""


def scrambled_tokens(subject: Subject) -> Iterator[ScrambledTokens]:
    """Yield the tokens that are made of a map by layout operations that tear its pixels apart.

    Each token may hold whole pixels, as windows do, or some channels of several pixels, always the same channels.
    """
    for reader in subject.base.events:
        if reader.name not in ops.TOKEN_NORMS | {"linear"} or reader.operand_values[0].ndim < 2:
            continue
        found = _map_before(subject, reader)
        tokens = _scrambled_tokens(reader, *found) if found is not None else None
        if tokens is not None:
            yield tokens


_Step = tuple[ReplayedCall, int, int]
"""A call on the way, the place of the operand that comes from the map, and the output that is read next."""


def _map_before(subject: Subject, reader: ReplayedCall) -> tuple[Tensor, list[_Step]] | None:
    """Return the map from which only layout operations and elementwise ones lead to a reader."""
    path: list[_Step] = []
    sources = reader.sources[0]
    while len(sources) == 1 and isinstance(sources[0], OutputRef):
        event, output = subject.base.event(sources[0]), sources[0].output
        if event.name in _MAPS:
            return (event.values[0], path[::-1]) if event.values[0].ndim > 2 and path else None
        data = [place for place, one in enumerate(event.sources) if subject.graph.carries_data(one)]
        if len(data) != 1 or event.in_place:
            return None
        keeps_shape = event.values[output].shape == event.operand_values[data[0]].shape
        if event.name not in _ELEMENTWISE and (moves_only(event) or event.name in ops.CONCATENATIONS):
            path.append((event, data[0], output))
        elif event.name not in _ELEMENTWISE or not keeps_shape:
            return None
        sources = event.sources[data[0]]
    given = subject.inputs.get(sources[0]) if len(sources) == 1 and isinstance(sources[0], str) else None
    is_map = given is not None and given.ndim > 3 and subject.is_channels_first
    return (given, path[::-1]) if given is not None and is_map and path else None


def _scrambled_tokens(reader: ReplayedCall, start: Tensor, path: Sequence[_Step]) -> ScrambledTokens | None:
    channels, pixels = start.shape[1], start.numel() // start.shape[1]
    # 0 stands for what doesn't come from the map
    numbers = torch.arange(pixels, dtype=start.dtype).reshape(start.shape[0], 1, *start.shape[2:]) * channels + 1
    numbers = (numbers + torch.arange(channels, dtype=start.dtype).reshape(-1, *[1] * (start.ndim - 2))).contiguous()
    at: OutputRef | None = None
    followed = range(min(pixels, _MOST_TOKENS))
    for event, place, output in path:
        blank = {other: torch.zeros_like(value) for other, value in enumerate(event.operand_values)}
        numbers = recompute(event, blank | {place: numbers}, output)
        if at is None and event.name in ops.RESHAPES:
            of_pixel = ((numbers - 1) // channels).where(numbers > 0, -1)
            if not all(_is_box(of_pixel == pixel) for pixel in followed):
                at = OutputRef(event.order, output)
    rows = numbers.reshape(-1, numbers.shape[-1]).long() - 1
    rows = rows[(rows >= 0).any(1)]
    if at is None or not len(rows):
        return None
    chosen = rows[torch.linspace(0, len(rows) - 1, _MOST_TOKENS).long()].tolist()
    torn = next((row for row in chosen if _is_torn({number for number in row if number >= 0}, channels)), None)
    if torn is None:
        return None
    return ScrambledTokens(reader, at, tuple(sorted({number // channels for number in torn if number >= 0})))


def _is_torn(row: set[int], channels: int) -> bool:
    """Return whether the numbers of a row aren't those of some channels of some pixels."""
    of_pixels, of_channels = {number // channels for number in row}, {number % channels for number in row}
    return len(of_pixels) * len(of_channels) != len(row)


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
    """Return whether the last axis of what a call reads holds the features of one token each."""
    (producer, *_), value = event.sources[0], event.operand_values[0]
    return value.ndim >= 2 and subject.graph.carries_data(event.sources[0]) and _are_tokens(subject, producer, value)


def _are_tokens(subject: Subject, producer: Producer, value: Tensor) -> bool:
    """Return whether a projection or a norm makes a tensor, or reads it elsewhere, over its last axis.

    A sum holds tokens if one of its terms does, as where an attention's result is added to the residual stream.
    """
    if isinstance(producer, OutputRef):
        maker = subject.base.event(producer)
        if maker.name in ops.TOKEN_NORMS:
            return True
        if maker.name in ops.PRODUCTS and len(maker.operand_values) >= 2:
            return feature_axes(subject, maker) == (value.ndim - 1,)
        if maker.name in ops.ADDITIONS:
            terms = zip(maker.sources, maker.operand_values, strict=True)
            return any(_are_tokens(subject, one[0], term) for one, term in terms if one and term.shape == value.shape)
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

"""Follows a change through a run: at which indices of each axis every later result has moved."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from attnshape.replaying.bench import Run
from attnshape.replaying.letters import holds
from attnshape.replaying.replay import Address, Event, Source

_SPREADS = {"expand", "expand_as", "broadcast_to"}


class Moved:
    """Where the results of a changed run differ from those of the unchanged one."""

    def __init__(self, base: Run, changed: Run, tolerance: float) -> None:
        self.base = base
        self.changed = changed
        self._tolerance = tolerance
        self._masks: dict[Address, Tensor] = {}

    @cached_property
    def comparable(self) -> bool:
        """Whether the change left the steps what they were."""
        return self.changed.follows(self.base)

    def mask(self, address: Address) -> Tensor:
        """Return for each element of a result whether it has moved."""
        if address not in self._masks:
            self._masks[address] = differs(self.base.value(address), self.changed.value(address), self._tolerance)
        return self._masks[address]

    def any(self, address: Address) -> bool:
        """Say whether anything of a result has moved."""
        return bool(self.mask(address).any())

    def indices(self, address: Address, axis: int) -> set[int]:
        """Return the indices of an axis at which anything has moved."""
        return along(self.mask(address), axis)

    def returned(self) -> list[tuple[str, Tensor]]:
        """Return for each tensor that the target returned where it has moved, with the path to it."""
        after = dict(self.changed.returned)
        return [
            (path, differs(value, after[path], self._tolerance))
            for path, value in self.base.returned
            if path in after and after[path].shape == value.shape
        ]


def differs(before: Tensor, after: Tensor, tolerance: float) -> Tensor:
    """Return for each element whether two tensors of one shape differ; not-a-number is equal to itself."""
    if before.shape != after.shape:
        return torch.ones(before.shape, dtype=torch.bool)
    if not before.is_floating_point():
        return before != after
    finite = before[torch.isfinite(before)]
    scale = float(finite.abs().max()) if finite.numel() else 1.0
    return ~torch.isclose(before, after, rtol=tolerance, atol=tolerance * max(min(scale, 1e3), 1e-3), equal_nan=True)


def along(mask: Tensor, axis: int) -> set[int]:
    """Return the indices of an axis at which a mask has anything."""
    others = [one for one in range(mask.ndim) if one != axis]
    return {int(one) for one in (mask.any(dim=others) if others else mask).nonzero().flatten()}


@dataclass(frozen=True)
class Parting:
    """The first result in which a change is at other indices than it should be."""

    event: Event
    address: Address
    axis: int
    """The axis that by its size stands for the symbol."""
    found: tuple[int, ...]
    """The indices there that have moved."""
    summary: Event | None = None
    """The call that summed the symbol's axis up before, where one did."""

    @property
    def places(self) -> str:
        """The indices, for people."""
        return f"{', '.join(map(str, self.found[:6]))}{', …' if len(self.found) > 6 else ''}"


def stays(mask: Tensor, letter: str, index: int, numbers: Mapping[str, int]) -> tuple[bool | None, int]:
    """Say whether what moved is one index of the axis that stands for a symbol, and which axis that is.

    None where no axis stands for it. An axis that no symbol explains, such as one of cached and new tokens, may stand
    for it as well.
    """
    wrong = None
    for axis, size in enumerate(mask.shape):
        if not holds(size, letter, numbers):
            continue
        found = along(mask, axis)
        number = numbers[letter]
        rest = size // number
        if any(
            rest % inner == 0 and {one // inner % number for one in found} == {index} for inner in range(1, rest + 1)
        ):
            return True, axis
        if wrong is None or size == number:
            wrong = axis
    if wrong is None:
        return None, -1
    others = [
        axis
        for axis, size in enumerate(mask.shape)
        if size > numbers[letter] and not any(holds(size, one, numbers) for one in numbers)
    ]
    if any(len(along(mask, axis)) == 1 for axis in others):
        return True, wrong
    return False, wrong


def partings(
    moved: Moved, letter: str, index: int, numbers: Mapping[str, int], start: Iterable[Source]
) -> Iterator[Parting]:
    """Yield where a change at one index of a symbol is first found at others, given whose change it is.

    What depends on such a result is passed over: from there on nothing more can be told.
    """
    aligned: set[Source] = set(start)
    parted: set[Source] = set()
    summaries: dict[Source, Event] = {}
    for event in moved.base.events:
        sources = {source for every in event.sources for source in every}
        if not sources & (aligned | parted):
            continue
        behind = bool(sources & parted)
        for address in event.addresses:
            if not moved.any(address):
                continue
            if behind:
                parted.add(address)
                continue
            mask = moved.mask(address)
            alone, axis = stays(mask, letter, index, numbers)
            summary = next((summaries[source] for source in sources if source in summaries), None)
            if summary is not None and event.name in _SPREADS:
                aligned.add(address)
                summaries[address] = summary
                continue
            if alone is False:
                yield Parting(event, address, axis, tuple(sorted(along(mask, axis))), summary)
                parted.add(address)
                continue
            aligned.add(address)
            if alone is None:
                summaries[address] = summary or event

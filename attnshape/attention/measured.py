"""What happens to the scores on their way: measured by putting known numbers in their place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from attnshape.attention.core import Core
from attnshape.replaying.bench import Bench, Change, Run
from attnshape.replaying.replay import Address

HIDES = -1e3
"""A number that is added to a score, below which the key gets no weight."""
_NOTHING = 1e-12
"""A factor that only rounding makes."""


@dataclass(frozen=True)
class Way:
    """What lies between a result and an operand further on, element by element."""

    factor: Tensor
    """What each element is multiplied by."""
    added: Tensor
    """What is added to each element."""
    source: Tensor
    """For each element, the flat index of the one that it is made of; -1 where none could be told."""
    elementwise: bool
    """Whether each element is a multiple of one other, plus what doesn't depend on it."""

    @property
    def known(self) -> Tensor:
        """Where the factor could be told."""
        return torch.isfinite(self.factor) & (self.factor != 0)

    @cached_property
    def one_factor(self) -> float | None:
        """The factor, where it is the same everywhere."""
        factors = self.factor[self.known]
        if not factors.numel() or not bool(torch.isclose(factors, factors[0], rtol=1e-6).all()):
            return None
        return float(factors[0])

    @property
    def hidden(self) -> Tensor:
        """Where what is added leaves no weight."""
        return ~(self.added > HIDES)


def ways(bench: Bench, starts: list[tuple[Address, Tensor | float]], read: list[tuple[int, int]]) -> list[Way | None]:
    """Return the way from each result to an operand of a later call, given by the call's number and the place.

    A start has with it what a product adds of its own. All are measured in the same four runs, since none lies on
    another's way.
    """

    def numbers(make: Callable[[Tensor], Tensor]) -> Run:
        results = {start: lambda t, own=own: make(t) + own for start, own in starts}
        return bench.run(Change(results=results))

    runs = (
        *(numbers(partial(torch.full_like, fill_value=number)) for number in (0.0, 1.0, 2.0)),
        numbers(lambda t: _shuffled(t.numel()).to(t.dtype).reshape(t.shape)),
    )
    found: list[Way | None] = []
    for (start, _), (order, place) in zip(starts, read, strict=True):
        same = all(
            len(run.events) >= order and run.events[order - 1].operation == bench.base.events[order - 1].operation
            for run in runs
        )
        given = [run.events[order - 1].given[place] for run in runs] if same else []
        found.append(_way(bench.base.value(start), *given) if same else None)
    return found


def _shuffled(count: int) -> Tensor:
    """Return the numbers up to a count in an order of which no mean of two is a third by rule."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(5))


def _way(start: Tensor, zero: Tensor, one: Tensor, two: Tensor, flat: Tensor) -> Way:
    zero, one, two, flat = (tensor.double() for tensor in (zero, one, two, flat))
    hidden = ~(zero > HIDES)
    factor = (one - zero).masked_fill(hidden, torch.nan)
    factor = torch.where(factor.abs() < _NOTHING, torch.zeros_like(factor), factor)
    straight = torch.isclose(two - zero, 2 * factor, rtol=1e-4, atol=1e-7) | hidden
    source = (flat - zero) / factor
    whole = source.round()
    certain = torch.isfinite(source) & torch.isclose(source, whole, rtol=1e-6, atol=1e-3)
    certain &= (whole >= 0) & (whole < start.numel())
    place = torch.empty(start.numel(), dtype=torch.long)
    place[_shuffled(start.numel())] = torch.arange(start.numel())
    found = torch.where(certain, whole, torch.zeros_like(whole)).nan_to_num(0).long()
    index = torch.where(certain, place[found], torch.full_like(found, -1))
    seen = torch.isfinite(factor) & (factor != 0)
    return Way(factor, zero, index, bool(straight.all()) and bool((certain | ~seen).all()))


def axis_behind(way: Way, start: tuple[int, ...], axis: int) -> int | None:
    """Return which axis of the operand a way leads to stands for an axis of the result that it starts from."""
    for candidate in range(way.source.ndim):
        if way.source.shape[candidate] != start[axis]:
            continue
        places = torch.stack(torch.unravel_index(way.source.clamp(min=0), start))
        known = way.source >= 0
        along = torch.arange(start[axis]).reshape([-1 if a == candidate else 1 for a in range(way.source.ndim)])
        if bool(known.any()) and bool((places[axis] == along)[known].all()):
            return candidate
    return None


@dataclass(frozen=True)
class MeasuredCore:
    """A core with what was measured of it."""

    core: Core
    before: Way | None
    """From the product to the softmax."""
    behind: Way | None
    """From the softmax to the value product."""

    def of_scores(self, axis: int) -> int | None:
        """Return which axis of the scores, as they are made, an axis of the weights stands for."""
        for first in range(self.core.scores.result.ndim):
            at_softmax = self._axis(self.before, self.core.scores.result, first, self.core.softmax.given)
            if at_softmax is None:
                continue
            if self._axis(self.behind, self.core.softmax.event.values[0], at_softmax, self.core.weights) == axis:
                return first
        return None

    @staticmethod
    def _axis(way: Way | None, start: Tensor, axis: int, end: Tensor) -> int | None:
        if way is not None and way.elementwise:
            return axis_behind(way, tuple(start.shape), axis)
        return axis if start.shape == end.shape else None


def measure(bench: Bench, cores: list[Core]) -> list[MeasuredCore]:
    """Return the cores with the ways of their scores and of their weights."""
    if not cores:
        return []
    before = ways(
        bench,
        [(core.scores.address, core.scores.added) for core in cores],
        [(core.softmax.owner.order, core.softmax.place) for core in cores],
    )
    behind = ways(
        bench,
        [(core.softmax.address, 0.0) for core in cores],
        [(core.value.first.order, core.weights_place) for core in cores],
    )
    return [MeasuredCore(*every) for every in zip(cores, before, behind, strict=True)]


def distinct(values: Tensor) -> list[float]:
    """Return the different numbers of a tensor, the smallest first."""
    return sorted(set(values.flatten().tolist()))

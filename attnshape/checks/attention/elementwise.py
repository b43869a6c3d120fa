"""Measures what happens to scores and weights between two calls, by replacing them with known numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from attnshape.checks.attention.cores import Core
from attnshape.checks.interventions.experiment import Experiment, Intervention, ReplayRun
from attnshape.checks.interventions.replay import OutputRef

HIDES = -1e3
"""A key gets no weight where less than this is added to its score."""
_NOTHING = 1e-12
"""Smaller factors come from rounding."""


@dataclass(frozen=True)
class ElementwiseMap:
    """How each element of a later operand depends on an element of a result: `operand = factor * result + added`."""

    factor: Tensor
    """The factor of each element."""
    added: Tensor
    """What is added to each element."""
    source: Tensor
    """For each element, the flat index of the result's element from which it comes; -1 if that is unknown."""
    elementwise: bool
    """Whether each element is a multiple of one element of the result, plus what doesn't depend on the result."""

    @property
    def known(self) -> Tensor:
        """Where the factor is known."""
        return torch.isfinite(self.factor) & (self.factor != 0)

    @cached_property
    def common_factor(self) -> float | None:
        """The factor, if it is the same everywhere."""
        factors = self.factor[self.known]
        same = factors.numel() and bool(torch.isclose(factors, factors[0], rtol=1e-6).all())
        return float(factors[0]) if same else None


def measure_maps(
    experiment: Experiment, starts: list[tuple[OutputRef, Tensor | float]], read: list[tuple[int, int]]
) -> list[ElementwiseMap | None]:
    """Return the map from each result to an operand of a later call, given by the call's number and the place.

    Each start comes with what its product adds by itself. All maps are measured in the same four runs, since none
    of the starts lies between another start and its operand.
    """

    def numbers(make: Callable[[Tensor], Tensor]) -> ReplayRun:
        results = {start: lambda t, own=own: make(t) + own for start, own in starts}
        return experiment.run(Intervention(results=results))

    runs = [numbers(partial(torch.full_like, fill_value=number)) for number in (0.0, 1.0, 2.0)]
    runs.append(numbers(lambda t: _shuffled(t.numel()).to(t.dtype).reshape(t.shape)))
    maps: list[ElementwiseMap | None] = []
    for (start, _), (order, place) in zip(starts, read, strict=True):
        operation = experiment.base.events[order - 1].operation
        same = all(len(run.events) >= order and run.events[order - 1].operation == operation for run in runs)
        given = [run.events[order - 1].operand_values[place] for run in runs] if same else []
        maps.append(_map_of(experiment.base.value(start), *given) if same else None)
    return maps


def _shuffled(count: int) -> Tensor:
    """Return the numbers up to a count, shuffled, so that the mean of two isn't systematically a third."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(5))


def _map_of(start: Tensor, zero: Tensor, one: Tensor, two: Tensor, flat: Tensor) -> ElementwiseMap:
    zero, one, two, flat = (tensor.double() for tensor in (zero, one, two, flat))
    hidden = ~(zero > HIDES)
    factor = (one - zero).masked_fill(hidden, torch.nan)
    factor = torch.where(factor.abs() < _NOTHING, 0.0, factor)
    straight = torch.isclose(two - zero, 2 * factor, rtol=1e-4, atol=1e-7) | hidden
    source = (flat - zero) / factor
    whole = source.round()
    certain = torch.isfinite(source) & torch.isclose(source, whole, rtol=1e-6, atol=1e-3)
    certain &= (whole >= 0) & (whole < start.numel())
    place = _shuffled(start.numel()).argsort()
    number = torch.where(certain, whole, 0.0).nan_to_num(0).long()
    index = torch.where(certain, place[number], -1)
    visible = torch.isfinite(factor) & (factor != 0)
    return ElementwiseMap(factor, zero, index, bool(straight.all()) and bool((certain | ~visible).all()))


def axis_after(mapping: ElementwiseMap, start: tuple[int, ...], axis: int) -> int | None:
    """Return the axis of a map's operand that corresponds to an axis of the result at its start."""
    source = mapping.source
    known = source >= 0
    place = torch.unravel_index(source.clamp(min=0), start)[axis]
    for candidate in range(source.ndim):
        if source.shape[candidate] == start[axis] and bool(known.any()):
            along = torch.arange(start[axis]).reshape([-1 if a == candidate else 1 for a in range(source.ndim)])
            if bool((place == along)[known].all()):
                return candidate
    return None


@dataclass(frozen=True)
class MeasuredCore:
    """A core with its measured maps."""

    core: Core
    scores_map: ElementwiseMap | None
    """From the product to the softmax."""
    weights_map: ElementwiseMap | None
    """From the softmax to the value product."""

    def axis_of_scores(self, axis: int) -> int | None:
        """Return the axis of the scores' product that corresponds to an axis of the weights."""
        core = self.core

        def after(mapping: ElementwiseMap | None, start: Tensor, axis: int, end: Tensor) -> int | None:
            if mapping is not None and mapping.elementwise:
                return axis_after(mapping, tuple(start.shape), axis)
            return axis if start.shape == end.shape else None

        for first in range(core.scores.result.ndim):
            at_softmax = after(self.scores_map, core.scores.result, first, core.softmax.scores)
            if at_softmax is None:
                continue
            if after(self.weights_map, core.softmax.event.values[0], at_softmax, core.weights) == axis:
                return first
        return None


def measure_cores(experiment: Experiment, cores: list[Core]) -> list[MeasuredCore]:
    """Return the cores with the maps of their scores and of their weights."""
    if not cores:
        return []
    before = measure_maps(
        experiment,
        [(core.scores.ref, core.scores.added) for core in cores],
        [(core.softmax.owner.order, core.softmax.place) for core in cores],
    )
    after = measure_maps(
        experiment,
        [(core.softmax.ref, 0.0) for core in cores],
        [(core.value.first.order, core.weights_place) for core in cores],
    )
    return list(map(MeasuredCore, cores, before, after))


def distinct(values: Tensor) -> list[float]:
    """Return the different numbers of a tensor, the smallest first."""
    return sorted(set(values.flatten().tolist()))

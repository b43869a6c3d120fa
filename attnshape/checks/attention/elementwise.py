"""Measures what happens to scores and weights between two calls, by replacing them with known numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from attnshape.checks.attention.cores import Core, FusedCore, RunGraph, between
from attnshape.checks.attention.simultaneous import run_simultaneously
from attnshape.checks.interventions.experiment import Experiment, Intervention, ReplayRun
from attnshape.checks.interventions.replay import OutputRef
from attnshape.inference.dataflow import Producers

HIDES = -1e3
"""A key gets no weight where less than this is added to its score."""
HIDES_BESIDE_SCORES = -50.0
"""Beside scores around 0 a key gets no weight that changes a sum, in float64 either, where its score is lower."""
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
    always_hidden: Tensor | None = None
    """If the numbers of the result decide which elements are hidden: those that are hidden whatever they are."""

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


@dataclass(frozen=True)
class _Section:
    """The calls from a result to an operand of a later call, of which a map is measured."""

    core: Core | FusedCore
    start: OutputRef
    added: Tensor | float
    """What the product that returns the start adds by itself."""
    read: tuple[int, int]
    """The number of the later call, and the operand's place."""
    inner: frozenset[OutputRef]
    """The results of the calls in between."""

    @property
    def replaced(self) -> set[OutputRef]:
        """What is replaced to measure it: the start, and the context, so that the run goes on as it was."""
        return {self.start, self.core.context}

    def overlaps(self, other: _Section) -> bool:
        """Return whether what is replaced for one section lies within the other one."""
        return bool(self.inner & other.replaced or other.inner & self.replaced)


def _measure_maps(
    experiment: Experiment, sections: Sequence[_Section], others: Iterable[OutputRef] = ()
) -> list[ElementwiseMap | None]:
    """Return the map of each section. All are measured in the same four runs, since they don't overlap.

    `others` are the contexts of other attentions, which what is replaced must not reach.
    """
    contexts = {*others, *(section.core.context for section in sections)}

    def numbers(make: Callable[[Tensor], Tensor]) -> ReplayRun:
        results = {section.start: lambda t, own=section.added: make(t) + own for section in sections}
        return run_simultaneously(experiment, contexts, Intervention(results=results)).run

    runs = [numbers(partial(torch.full_like, fill_value=number)) for number in (0.0, 1.0, 2.0)]
    runs.append(numbers(lambda t: shuffled(t.numel()).to(t.dtype).reshape(t.shape)))
    maps: list[ElementwiseMap | None] = []
    for section in sections:
        order, place = section.read
        operation = experiment.base.events[order - 1].operation
        same = all(len(run.events) >= order and run.events[order - 1].operation == operation for run in runs)
        given = [run.events[order - 1].operand_values[place] for run in runs] if same else []
        maps.append(elementwise_map(experiment.base.value(section.start).numel(), *given) if same else None)
    return maps


def shuffled(count: int) -> Tensor:
    """Return the numbers up to a count, shuffled, so that the mean of two isn't systematically a third."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(5))


def elementwise_map(count: int, zero: Tensor, one: Tensor, two: Tensor, flat: Tensor) -> ElementwiseMap:
    """Return how a later operand depends on results of `count` elements.

    The operand's values are given with the results replaced by 0, by 1, by 2 and by `shuffled(count)`.
    """
    zero, one, two, flat = (tensor.double() for tensor in (zero, one, two, flat))
    hidden = ~(zero > HIDES)
    # a large number plus a mask of -10,000 isn't small, and shows that the mask is added to it
    is_added = hidden & _is_number_below(count, (flat - zero) / (one - zero))
    others = [~(other > HIDES) for other in (one, two, flat.masked_fill(is_added, -torch.inf))]
    is_decided_by_numbers = any(bool((other != hidden).any()) for other in others)
    always = torch.stack([hidden, *others]).all(0) if is_decided_by_numbers else None
    factor = (one - zero).masked_fill(hidden, torch.nan)
    factor = torch.where(factor.abs() < _NOTHING, 0.0, factor)
    straight = torch.isclose(two - zero, 2 * factor, rtol=1e-4, atol=1e-7) | hidden
    source = (flat - zero) / factor
    certain = _is_number_below(count, source)
    place = shuffled(count).argsort()
    number = torch.where(certain, source.round(), 0.0).nan_to_num(0).long()
    index = torch.where(certain, place[number], -1)
    visible = torch.isfinite(factor) & (factor != 0)
    is_elementwise = bool(straight.all()) and bool((certain | ~visible).all())
    return ElementwiseMap(factor, zero, index, is_elementwise, always)


def _is_number_below(count: int, value: Tensor) -> Tensor:
    """Return where a value is a whole number from 0 to `count` - 1, up to rounding."""
    whole = value.round()
    return torch.isfinite(value) & torch.isclose(value, whole, rtol=1e-6, atol=1e-3) & (whole >= 0) & (whole < count)


def index_along(flat: Tensor, shape: Sequence[int], axis: int) -> Tensor:
    """Return the index along one axis of elements that are given by their flat indices.

    `torch.unravel_index` does the same, but its first call imports sympy, which takes longer than a whole check.

    >>> index_along(torch.tensor([0, 5, 11]), (2, 3, 2), 1)
    tensor([0, 2, 2])
    """
    return flat // math.prod(shape[axis + 1 :]) % shape[axis]


def axis_after(mapping: ElementwiseMap, start: tuple[int, ...], axis: int) -> int | None:
    """Return the axis of a map's operand that corresponds to an axis of the result at its start."""
    source = mapping.source
    known = source >= 0
    place = index_along(source.clamp(min=0), start, axis)
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


def measure_cores(experiment: Experiment, graph: RunGraph, cores: list[Core]) -> list[MeasuredCore]:
    """Return the cores with the maps of their scores and of their weights, all measured together where they can be."""
    sections = [section for core in cores for section in _sections(graph, core)]
    maps: dict[int, ElementwiseMap | None] = {}
    waiting = list(range(len(sections)))
    while waiting:
        together: list[int] = []
        for which in waiting:
            if not any(sections[which].overlaps(sections[other]) for other in together):
                together.append(which)
        waiting = [which for which in waiting if which not in together]
        maps |= zip(together, _measure_maps(experiment, [sections[which] for which in together]), strict=True)
    return [MeasuredCore(core, maps[2 * place], maps[2 * place + 1]) for place, core in enumerate(cores)]


def map_to_softmax(
    experiment: Experiment,
    graph: RunGraph,
    core: Core | FusedCore,
    contexts: Iterable[OutputRef],
    start: OutputRef,
    added: Tensor | float = 0.0,
) -> ElementwiseMap | None:
    """Return how the scores that a softmax reads, or a fused attention's mask, depend on an earlier result.

    `contexts` are those of all attentions; `added` is what the call that returns the start adds by itself.
    """
    if isinstance(core, FusedCore):
        place, order, sources = core.place("attn_mask"), core.event.order, core.sources("attn_mask")
    else:
        place, order, sources = core.softmax.place, core.softmax.owner.order, core.softmax.sources
    if place is None:
        return None
    inner = frozenset(ref for event in between(graph, start, sources) for ref in event.refs)
    (measured,) = _measure_maps(experiment, [_Section(core, start, added, (order, place), inner)], contexts)
    return measured


def _sections(graph: RunGraph, core: Core) -> tuple[_Section, _Section]:
    """Return the section from the product to the softmax, and the one from the softmax to the value product."""
    to_softmax = (core.softmax.owner.order, core.softmax.place)
    to_values = (core.value.first.order, core.weights_place)

    def inner(start: OutputRef, sources: Producers) -> frozenset[OutputRef]:
        return frozenset(ref for event in between(graph, start, sources) for ref in event.refs)

    scores, weights = core.scores.ref, core.softmax.ref
    return (
        _Section(core, scores, core.scores.added, to_softmax, inner(scores, core.softmax.sources)),
        _Section(core, weights, 0.0, to_values, inner(weights, core.value.sources(core.weights_place))),
    )


def distinct(values: Tensor) -> list[float]:
    """Return the different numbers of a tensor, the smallest first."""
    return sorted(set(values.flatten().tolist()))

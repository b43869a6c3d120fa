"""Follows the vectors of tokens through layout operations: do the features of one token stay together?

Projections and contexts are replaced by numbers that say where they are, and later tensors are read. This needs no axis
of the inputs, so it also holds deep in a model, and for tokens that lie along two axes.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from attnshape.checks.attention.cores import product
from attnshape.checks.attention.elementwise import elementwise_map, index_along, shuffled
from attnshape.checks.attention.operands import operands
from attnshape.checks.attention.subject import Subject, once
from attnshape.checks.attention.written_contexts import written_context
from attnshape.checks.interventions.experiment import Intervention, ReplayRun
from attnshape.checks.interventions.replay import OutputRef, Producer, Replace, ReplayedCall
from attnshape.tracing import operations as ops

ARITHMETIC = ops.ADDITIONS | ops.SUBTRACTIONS | ops.SCALINGS
"""What may leave every number where it is: a bias, a scale."""
_MOST_ELEMENTS = 1_000_000
"""The most numbers of a tensor that is followed."""


@dataclass(frozen=True)
class Factor:
    """A part of an axis: one of several that are folded in it, or the whole axis."""

    axis: int
    size: int
    inner: int
    """How many indices of the axis lie between two neighbours of the part."""

    def of(self, index: Tensor) -> Tensor:
        """Return the part's index for indices of the axis."""
        return index // self.inner % self.size

    def without(self, index: Tensor) -> Tensor:
        """Return the index of the rest of the axis."""
        return index // (self.inner * self.size) * self.inner + index % self.inner


def factors(shape: Sequence[int], axes: Iterable[int], sizes: Iterable[int]) -> Iterator[Factor]:
    """Yield the parts of some axes that may have one of these sizes; whole axes first."""
    folded = []
    for axis, size in itertools.product(axes, sorted(set(sizes) - {0, 1})):
        rest, remainder = divmod(shape[axis], size)
        if remainder == 0 and rest == 1:
            yield Factor(axis, size, 1)
        elif remainder == 0:
            folded += [Factor(axis, size, inner) for inner in range(1, rest + 1) if rest % inner == 0]
    yield from folded


def combined(shape: tuple[int, ...], axes: Iterable[int], without: Sequence[Factor] = ()) -> Tensor:
    """Return for each element of a tensor one index for some of its axes, with some parts of them left out."""
    flat = torch.arange(math.prod(shape))
    return _merge_axes([index_along(flat, shape, axis) for axis in range(len(shape))], shape, axes, without)


def _merge_axes(
    indices: Sequence[Tensor], shape: Sequence[int], axes: Iterable[int], without: Sequence[Factor]
) -> Tensor:
    left_out = {factor.axis: factor for factor in without}
    total = torch.zeros_like(indices[0])
    for axis in axes:
        factor = left_out.get(axis)
        index = indices[axis] if factor is None else factor.without(indices[axis])
        total = total * (shape[axis] if factor is None else shape[axis] // factor.size) + index
    return total


@dataclass(frozen=True)
class Grouping:
    """What the groups of a tensor's elements hold of the vectors of an earlier result."""

    whole: bool
    """Whether each group that has a feature of a vector has all of its features."""
    single: bool
    """Whether each group has features of one vector only."""


_MOST_VECTORS = 40
"""How many vectors are looked at; they are spread over the whole result."""


def _some_of(indices: Tensor) -> list[int]:
    """Return some of the different numbers, spread over all of them."""
    present = torch.unique(indices)
    return sorted(set(present[torch.linspace(0, len(present) - 1, _MOST_VECTORS).long()].tolist()))


def _grouping(vector: Tensor, feature: Tensor, group: Tensor) -> Grouping:
    """Return how vectors are spread over groups; all are given element by element."""
    features = int((torch.bincount(feature) > 0).sum())
    chosen = torch.zeros(int(vector.max()) + 1, dtype=torch.bool)
    chosen[_some_of(vector)] = True
    here = chosen[vector]
    pairs = group[here] * len(chosen) + vector[here]
    triples = {*zip(pairs.tolist(), feature[here].tolist(), strict=True)}
    counts = Counter(pair for pair, _ in triples)
    first = torch.full((int(group.max()) + 1,), -1)
    first[group[here]] = vector[here]
    of_group = first[group]
    single = bool(((of_group < 0) | (of_group == vector)).all())
    return Grouping(all(count == features for count in counts.values()), single)


@dataclass(frozen=True)
class Followed:
    """A tensor each of whose elements comes from an element of an earlier result, or from none."""

    start: tuple[int, ...]
    """The shape of the earlier result."""
    shape: tuple[int, ...]
    source: Tensor
    """For each element, flattened, that of the earlier result from which it comes; -1 for none."""

    @cached_property
    def _known(self) -> Tensor:
        return (self.source >= 0).nonzero().flatten()

    @cached_property
    def _indices(self) -> list[Tensor]:
        """For each axis, the indices of the elements that come from the earlier result."""
        return [index_along(self._known, self.shape, axis) for axis in range(len(self.shape))]

    def of(self, values: Tensor) -> Tensor:
        """Return for each element that comes from the earlier result what a tensor says of its source there."""
        return values[self.source[self._known]]

    def at(self, axes: Iterable[int], without: Sequence[Factor] = ()) -> Tensor:
        """Return for each element that comes from the earlier result one index for some axes, without some parts."""
        return _merge_axes(self._indices, self.shape, axes, without)

    def grouping(
        self, vector: Tensor, feature: Tensor, axes: Sequence[int], without: Sequence[Factor] = ()
    ) -> Grouping:
        """Return how vectors of the earlier result are spread over the groups that some axes make."""
        return _grouping(self.of(vector), self.of(feature), self.at(axes, without))

    def are_boxes(self, vector: Tensor) -> bool:
        """Return whether the elements of each vector are all those at some indices of each axis.

        Splitting an axis, merging adjacent ones and reordering axes leaves them so.
        """
        vectors = self.of(vector)
        for one in _some_of(vectors):
            elements = (vectors == one).nonzero().flatten()
            indices = (len(torch.unique(index[elements])) for index in self._indices)
            if len(elements) != math.prod(indices):
                return False
        return True

    def is_torn(self, vector: Tensor, feature: Tensor, axes: Sequence[int]) -> bool:
        """Return whether some groups that axes make hold other features of one vector than of another."""
        vectors, features, groups = self.of(vector), self.of(feature), self.at(axes)
        for group in _some_of(groups):
            held = groups == group
            pairs = {*zip(vectors[held].tolist(), features[held].tolist(), strict=True)}
            if len(pairs) != math.prod(len(set(part)) for part in zip(*pairs, strict=True)):
                return True
        return False


class Layouts:
    """The vectors of projections and contexts, and the tensors to which only layout operations move them."""

    def __init__(self, subject: Subject, starts: Sequence[OutputRef]) -> None:
        self._subject = subject
        self._starts = {ref: subject.base.value(ref) for ref in starts}
        self._offsets: dict[OutputRef, int] = {}
        self._count = 0
        for ref, value in self._starts.items():
            self._offsets[ref] = self._count
            self._count += value.numel()
        self._runs = [self._run(torch.full((self._count,), number)) for number in (0.0, 1.0, 2.0)]
        self._runs.append(self._run(shuffled(self._count)))

    def _run(self, numbers: Tensor) -> ReplayRun:
        results: dict[OutputRef, Replace] = {
            ref: partial(_put, numbers[offset : offset + self._starts[ref].numel()])
            for ref, offset in self._offsets.items()
        }
        return self._subject.perturb_each(Intervention(results=results)).run

    def followed(self, start: OutputRef, tensor: OutputRef | tuple[ReplayedCall, int]) -> Followed | None:
        """Return where the elements of a result, or of a call's operand, come from; None if they are computed."""
        if start not in self._starts or not all(run.follows(self._subject.base) for run in self._runs):
            return None
        if isinstance(tensor, OutputRef):
            values = [run.value(tensor) for run in self._runs]
        else:
            event, place = tensor
            values = [run.events[event.order - 1].operand_values[place] for run in self._runs]
        shape, value = tuple(values[0].shape), self._starts[start]
        if not 0 < values[0].numel() <= _MOST_ELEMENTS or any(tuple(one.shape) != shape for one in values):
            return None
        mapping = elementwise_map(self._count, *values)
        source = mapping.source.flatten() - self._offsets[start]
        own = (source >= 0) & (source < value.numel())
        if not mapping.elementwise or not bool(own.any()):
            return None
        return Followed(tuple(value.shape), shape, torch.where(own, source, -1))


def _put(numbers: Tensor, value: Tensor) -> Tensor:
    return numbers.to(value.dtype).reshape(value.shape)


@once
def layouts(subject: Subject) -> Layouts:
    """Return what can be followed from projections, contexts and tensors that contexts are written to.

    All of them are followed in the same few runs.
    """
    starts = {ref for operand in operands(subject) if (ref := projection_of(subject, operand.sources)) is not None}
    contexts = {core.context for core in subject.attentions}
    written = {found.ref for core in subject.attentions if (found := written_context(subject, core)) is not None}
    return Layouts(subject, sorted(starts | contexts | written))


def projection_of(subject: Subject, sources: tuple[Producer, ...]) -> OutputRef | None:
    """Return the last projection or convolution from which a tensor comes, if no product of two data comes later."""
    for event in subject.graph.upstream(sources):
        if event.name in ops.CONVOLUTIONS:
            return event.refs[0]
        if event.name in ops.PRODUCTS and len(event.operand_values) >= 2:
            return event.refs[0] if feature_axes(subject, event) is not None else None
    return None


def feature_axes(subject: Subject, event: ReplayedCall) -> tuple[int, ...] | None:
    """Return the axes of a projection's result that hold the features of one token; None if it is no projection."""
    if event.name in ops.CONVOLUTIONS:
        return (1,) if event.values[0].ndim == event.operand_values[1].ndim else (0,)
    found = product(event, subject.graph)
    data = [place for place in found.places if subject.graph.carries_data(found.sources(place))] if found else []
    if found is None or len(data) != 1:
        return None
    return tuple(sorted(found.free(found.other(data[0])))) or None

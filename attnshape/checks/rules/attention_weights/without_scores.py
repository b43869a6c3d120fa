"""Attention that sums up keys and values before the queries read them: do the weights that it implies sum to one?

Its context is linear in the values, so with every value set to 1 it is the sum of the weights of each query.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attnshape.checks.attention.cores import between, product
from attnshape.checks.attention.perturbation import differs
from attnshape.checks.attention.products import Product
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Intervention, ReplayRun
from attnshape.checks.interventions.replay import OutputRef, Producer, Replace, ReplayedCall
from attnshape.tracing import operations as ops

_LINEAR = ops.SAME_VALUES | ops.JOINS | ops.SUMS | ops.ADDITIONS | ops.SUBTRACTIONS | ops.SCALINGS | {"cumsum"}
"""Operations after which a result is still linear in the values."""
_MOVES = ops.SAME_VALUES | ops.JOINS
_SAME = 0.02
"""The relative difference up to which sums count as equal: code adds small numbers to what it divides by."""
_SMALL = 0.01
"""Larger numbers that are added to what is divided by are meant to keep the sums below one."""
_BOUNDS = ops.LOWER_BOUNDS | {"abs", "max"}


@dataclass(frozen=True)
class _State:
    """The products that sum up keys and values, and those in which the queries read the sums."""

    made: tuple[Product, ...]
    read: tuple[tuple[Product, int], ...]
    """Each with the place of the queries."""


@dataclass(frozen=True)
class WeightSums:
    """The sums of the weights that one attention implies, 0 for queries that see no key."""

    sums: Tensor
    at: OutputRef
    """The call that should make them one."""
    by_softmax: bool
    """Whether softmaxes of queries and keys should do so, else a division."""

    @property
    def are_equal(self) -> bool:
        """Whether the sums are one and the same number, or one for each index of a single axis, such as the heads."""
        return _is_constant(self.sums) or any(
            all(map(_is_constant, self.sums.unbind(axis))) for axis in range(1, self.sums.ndim - 2)
        )

    @property
    def are_one(self) -> bool:
        """Whether every sum is one."""
        sums = self.sums[self.sums != 0]
        return bool(torch.isclose(sums, torch.ones_like(sums), rtol=0, atol=1e-3).all())


def weight_sums(subject: Subject) -> Iterator[WeightSums]:
    """Yield the sums of the weights of each attention without scores that normalises its queries and keys."""
    state = _state(subject)
    if state is None:
        return
    divisions = _divisions(subject, state)
    if divisions:
        yield from _divided(subject, state, divisions)
    elif len(state.made) == len(state.read) == 1:
        yield from _of_softmaxes(subject, state.made[0], *state.read[0])


def _state(subject: Subject) -> _State | None:
    """Return the products of an attention without scores, if the target has one and no products besides."""
    graph = subject.graph
    found = [one for event in subject.base.events if event.name != "linear" and (one := product(event, graph))]
    found = [one for one in found if all(graph.carries_data(one.sources(place)) for place in one.places)]
    made: dict[OutputRef, Product] = {}
    read: list[tuple[Product, int]] = []
    earlier: list[Product] = []
    for one in found:
        before = {place: _reached_from(subject, earlier, one.sources(place)) for place in one.places}
        if not any(before.values()):
            earlier.append(one)
            continue
        queries = next((place for place in one.places if not before[place]), None)
        if queries is None:
            return None
        states = before[one.other(queries)]
        path = [call for start in states for call in between(graph, start.ref, one.sources(one.other(queries)))]
        if any(not _is_linear(subject, call) for call in path):
            return None
        made |= {start.ref: start for start in states}
        read.append((one, queries))
    return _State(tuple(made.values()), tuple(read)) if read else None


def _reached_from(subject: Subject, products: Sequence[Product], sources: tuple[Producer, ...]) -> list[Product]:
    upstream = {event.order for event in subject.graph.upstream(sources)}
    return [one for one in products if one.last.order in upstream]


def _is_linear(subject: Subject, call: ReplayedCall) -> bool:
    """Return whether a call keeps what it reads linear in the values, and is no gate that depends on the data."""
    if call.name not in _LINEAR:
        return False
    data = [sources for sources in call.sources if subject.graph.carries_data(sources)]
    return call.name not in ops.SCALINGS or len(data) <= 1


def _divisions(subject: Subject, state: _State) -> list[ReplayedCall]:
    """Return the divisions of what the queries read by something that depends on the data."""
    reached: set[Producer] = {one.ref for one, _ in state.read}
    found = []
    for event in subject.base.events:
        if not event.producers & reached:
            continue
        if event.name in ops.DIVISIONS and len(event.sources) == 2 and not reached.isdisjoint(event.sources[0]):
            if subject.graph.carries_data(event.sources[1]) and reached.isdisjoint(event.sources[1]):
                found.append(event)
        elif event.name in _MOVES:
            reached.update(event.refs)
    return found


def _divided(subject: Subject, state: _State, divisions: Sequence[ReplayedCall]) -> Iterator[WeightSums]:
    """Yield the sums where each division is by something that queries and keys make, and values don't."""
    divisor = _producers(subject, divisions[0].sources[1])
    if len(divisions) > 1 or _is_bounded(subject, divisions[0].sources[1]):
        return
    values: list[tuple[Product, int]] = []
    for one in state.made:
        places = [
            place
            for place in one.places
            if divisor.isdisjoint(one.sources(place)) and not divisor.isdisjoint(_moved(subject, one, one.other(place)))
        ]
        if len(places) != 1:
            return
        values.append((one, places[0]))
    if any(divisor.isdisjoint(_moved(subject, one, queries)) for one, queries in state.read):
        return
    run = _with_ones(subject, state, values)
    event = divisions[0]
    if run is None or _changes(subject, run, event, 1):
        return
    calls = subject.graph.upstream(event.sources[1])
    at = next((call for call in calls if call.name not in _MOVES | ops.ADDITIONS), event)
    sums = run.value(event.refs[0])
    if bool(torch.isfinite(sums).all()):
        yield WeightSums(sums, at.refs[0], by_softmax=False)


def _of_softmaxes(subject: Subject, made: Product, read: Product, queries: int) -> Iterator[WeightSums]:
    """Yield the sums where a softmax of the queries runs over the tokens, and another one makes the keys."""
    softmax = _softmax(subject, read.sources(queries))
    keys = [place for place in made.places if _softmax(subject, made.sources(place)) is not None]
    if softmax is None or len(keys) != 1:
        return
    operand = read.operand(queries)
    free = [axis for axis, stays in enumerate(read.axes[queries]) if stays & read.free(queries)]
    over_features = _is_constant(operand.sum(read.contracted(queries)))
    if not over_features and not any(_is_constant(operand.sum(axis)) for axis in free):
        return
    run = _with_ones(subject, _State((made,), ((read, queries),)), [(made, made.other(keys[0]))])
    if run is None:
        return
    found = WeightSums(run.value(read.ref), softmax.refs[0], by_softmax=True)
    # keys whose softmax runs over their features may be a feature map, if queries are weighed by theirs
    if found.are_one or not over_features:
        yield found


def _softmax(subject: Subject, sources: tuple[Producer, ...]) -> ReplayedCall | None:
    """Return the softmax whose numbers a tensor holds, perhaps scaled."""
    for event in subject.graph.upstream(sources):
        if event.name in ops.SOFTMAXES:
            return event
        if not _keeps_vectors(event):
            return None
    return None


def _producers(subject: Subject, sources: tuple[Producer, ...]) -> set[Producer]:
    """Return everything on which a tensor with these producers depends."""
    return {*sources, *(one for event in subject.graph.upstream(sources) for one in event.producers)}


def _moved(subject: Subject, one: Product, place: int) -> set[Producer]:
    """Return an operand's producer, and those before it from which it is only moved or scaled."""
    sources = one.sources(place)
    reached = set(sources)
    for event in subject.graph.upstream(sources):
        if not _keeps_vectors(event):
            break
        reached |= event.producers
    return reached


def _keeps_vectors(event: ReplayedCall) -> bool:
    """Return whether a call only moves numbers, or multiplies all of them by one."""
    return event.name in _MOVES or (event.name in ops.SCALINGS and len(event.operand_values) == 1)


def _is_bounded(subject: Subject, sources: tuple[Producer, ...]) -> bool:
    """Return whether what is divided by is kept away from zero by more than a small number."""
    for event in subject.graph.upstream(sources):
        if event.name in ops.ADDITIONS:
            numbers = [value for value in event.args if isinstance(value, (int, float))]
            if any(abs(number) > _SMALL for number in numbers):
                return True
        elif event.name in _BOUNDS:
            if differs(event.values[0], event.operand_values[0], subject.experiment.tolerance).any():
                return True
        elif event.name not in _MOVES:
            return False
    return False


def _with_ones(subject: Subject, state: _State, values: Sequence[tuple[Product, int]]) -> ReplayRun | None:
    """Return the run in which every value is 1; None if queries or keys aren't what they were then, or some are 0."""
    results: dict[OutputRef, Replace] = {}
    inputs: dict[str, Replace] = {}
    for one, place in values:
        producer, *written = one.sources(place)
        if written or not bool((one.operand(place) != 0).all()):
            return None
        if isinstance(producer, OutputRef):
            results[producer] = torch.ones_like
        elif producer in subject.inputs:
            inputs[producer] = torch.ones_like
        else:
            return None
    run = subject.experiment.run(Intervention(inputs=inputs, results=results))
    if not run.follows(subject.base):
        return None
    kept = [(one.first, one.other(place)) for one, place in values] + [(one.first, at) for one, at in state.read]
    ones = [run.events[one.first.order - 1].operand_values[place] for one, place in values]
    if any(_changes(subject, run, event, place) for event, place in kept) or any(
        bool((one != 1).any()) for one in ones
    ):
        return None
    return run


def _changes(subject: Subject, run: ReplayRun, event: ReplayedCall, place: int) -> bool:
    """Return whether a call reads other numbers in a run than in the unchanged one."""
    after = run.events[event.order - 1].operand_values[place]
    return bool(differs(event.operand_values[place], after, subject.experiment.tolerance).any())


def _is_constant(value: Tensor) -> bool:
    sums = value[value != 0]
    return not sums.numel() or bool(((sums - sums[0]).abs() <= _SAME * sums[0].abs()).all())

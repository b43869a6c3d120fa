"""Attention that sums up keys and values before the queries read them: do the weights that it implies sum to one?

Its context is linear in the values, so with every value set to 1 it is the sum of the weights of each query. Attention
in chunks adds what weights within a chunk give to what queries read from the sums of the chunks before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial

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
_INVERSES = ops.REVERSED_DIVISIONS | {"reciprocal"}
_NEAR = 3
"""How many calls may lie between a sum, its inverse, and what it multiplies."""
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
    is_multiplied: bool = False
    """Whether a multiplication is there instead of the division."""
    may_be_features: bool = False
    """Whether the softmaxes of both run over their features, which may be meant as a feature map."""

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
    found = list(_of_state(subject, state)) if state is not None else []
    yield from found or _of_chunks(subject)


def _of_state(subject: Subject, state: _State) -> Iterator[WeightSums]:
    normalisations = _normalisations(subject, state)
    if normalisations:
        yield from _divided(subject, state, normalisations)
        return
    lines = set()
    for read, queries in state.read:
        made = _reached_from(subject, state.made, read.sources(read.other(queries)))
        line = subject.source(read.ref)
        if len(made) == 1 and line not in lines:  # heads in a loop have one line
            lines.add(line)
            yield from _of_softmaxes(subject, made[0], read, queries)


def has_sums_of_keys(subject: Subject) -> bool:
    """Return whether keys and values are summed up before queries read them."""
    return _state(subject) is not None


def contexts_of_sums(subject: Subject) -> list[OutputRef]:
    """Return the contexts of an attention that sums up keys and values, after they are normalised."""
    state = _state(subject)
    return [one.event.refs[0] for one in _normalisations(subject, state)] if state is not None else []


def _state(subject: Subject) -> _State | None:
    """Return the products of an attention without scores, if the target has one and no products besides."""
    graph = subject.graph
    made: dict[OutputRef, Product] = {}
    read: list[tuple[Product, int]] = []
    earlier: list[Product] = []
    for one in _products(subject):
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


def _products(subject: Subject) -> list[Product]:
    """Return the products of data with data, in order."""
    graph = subject.graph
    found = [one for event in subject.base.events if event.name != "linear" and (one := product(event, graph))]
    return [one for one in found if all(graph.carries_data(one.sources(place)) for place in one.places)]


def _reached_from(subject: Subject, products: Sequence[Product], sources: tuple[Producer, ...]) -> list[Product]:
    upstream = {event.order for event in subject.graph.upstream(sources)}
    return [one for one in products if one.last.order in upstream]


def _is_linear(subject: Subject, call: ReplayedCall) -> bool:
    """Return whether a call keeps what it reads linear in the values, and is no gate that depends on the data."""
    if call.name == "pad":  # with zeros
        return int(call.values[0].count_nonzero()) == int(call.operand_values[0].count_nonzero())
    if call.name not in _LINEAR:
        return False
    data = [sources for sources in call.sources if subject.graph.carries_data(sources)]
    return call.name not in ops.SCALINGS or len(data) <= 1


@dataclass(frozen=True)
class _Normalisation:
    """A call that divides what the queries read, or multiplies it, by something that depends on the data."""

    event: ReplayedCall
    place: int
    """The place of what it divides or multiplies by."""

    @property
    def sources(self) -> tuple[Producer, ...]:
        """The producers of what it divides or multiplies by."""
        return self.event.sources[self.place]

    @property
    def is_division(self) -> bool:
        """Whether it divides."""
        return self.event.name in ops.DIVISIONS


def _normalisations(subject: Subject, state: _State) -> list[_Normalisation]:
    """Return the divisions of what the queries read, and its products with what both queries and keys make."""
    reached: set[Producer] = {one.ref for one, _ in state.read}
    # an einsum may multiply by the inverse of the sums in the same call
    found = [
        _Normalisation(one.first, place)
        for one, _ in state.read
        for place in range(len(one.first.sources))
        if place not in one.places and one.first.name not in ops.PRODUCTS_WITH_ADDEND
    ]
    for event in subject.base.events:
        if not event.producers & reached:
            continue
        if event.name in ops.SCALINGS and len(event.sources) == 2:
            places = [1] if event.name in ops.DIVISIONS else [0, 1]
            found += [
                _Normalisation(event, place)
                for place in places
                if not reached.isdisjoint(event.sources[1 - place]) and reached.isdisjoint(event.sources[place])
            ]
        elif event.name in _MOVES or (event.name in ops.ADDITIONS and not _adds_others(subject, event, reached)):
            reached.update(event.refs)
    found = [one for one in found if subject.graph.carries_data(one.sources)]
    return [one for one in found if one.is_division or _reads_both(subject, state, one)]


def _adds_others(subject: Subject, event: ReplayedCall, reached: Set[Producer]) -> bool:
    """Return whether a sum has other data in it than what the queries read."""
    return any(subject.graph.carries_data(sources) and reached.isdisjoint(sources) for sources in event.sources)


def _reads_both(subject: Subject, state: _State, found: _Normalisation) -> bool:
    """Return whether what a call multiplies by depends on what is read from queries, and on what the sums are made of.

    A gate may come from the same input as the queries, but not from the queries themselves.
    """
    behind = _producers(subject, found.sources)
    of_queries = all(not behind.isdisjoint(_moved(subject, one, queries)) for one, queries in state.read)
    made = [{place: _before_features(subject, one, place) for place in one.places} for one in state.made]
    return of_queries and all(any(not behind.isdisjoint(own) for own in places.values()) for places in made)


def _divided(subject: Subject, state: _State, found: Sequence[_Normalisation]) -> Iterator[WeightSums]:
    """Yield the sums where each division is by something that queries and keys make, and values don't."""
    divisor = _producers(subject, found[0].sources)
    if len(found) > 1 or _is_bounded(subject, found[0].sources):
        return
    moved = {one.ref: {place: _moved(subject, one, place) for place in one.places} for one in state.made}
    known = _values_of(state, moved, divisor)
    if not known:  # sums of keys may lack what features are made of them
        moved = {one.ref: {place: _before_features(subject, one, place) for place in one.places} for one in state.made}
        known = _values_of(state, moved, divisor)
    # of several terms that are added, some may be left out of what divides them
    of_values = {producer for one, place in known for producer in moved[one.ref][place]}
    values = [
        (one, place) for one in state.made for place in one.places if not of_values.isdisjoint(moved[one.ref][place])
    ]
    if len({one.ref for one, _ in values}) != len(state.made) or len(values) != len(state.made):
        return
    if all(divisor.isdisjoint(_moved(subject, one, queries)) for one, queries in state.read):
        return
    run = _with_values(subject, state, values, 1.0)
    event, sources = found[0].event, found[0].sources
    if run is None or _changes(subject, run, event, found[0].place):
        return
    is_inverted = found[0].is_division or _is_inverse(subject, sources)
    sums = run.value(event.refs[0])
    if bool(torch.isfinite(sums).all()):
        yield WeightSums(sums, _divisor(subject, found[0]), by_softmax=False, is_multiplied=not is_inverted)


def _values_of(
    state: _State, moved: Mapping[OutputRef, Mapping[int, set[Producer]]], divisor: set[Producer]
) -> list[tuple[Product, int]]:
    """Return the products that sum up values, with the place of the operand on which what divides them doesn't depend.

    `moved` has the producers of the numbers of each operand.
    """
    known: list[tuple[Product, int]] = []
    for one in state.made:
        own = moved[one.ref]
        places = [
            place
            for place in one.places
            if divisor.isdisjoint(own[place]) and not divisor.isdisjoint(own[one.other(place)])
        ]
        known += [(one, place) for place in places if len(places) == 1]
    return known


def _before_features(subject: Subject, one: Product, place: int) -> set[Producer]:
    """Return an operand's producers, back to its projection, or to where it is split off."""
    wanted, found = list(one.sources(place)), set[Producer]()
    while wanted:
        source = wanted.pop()
        if source in found:
            continue
        found.add(source)
        event = subject.base.event(source) if isinstance(source, OutputRef) else None
        if event is not None and event.name not in ops.PRODUCTS | ops.CONVOLUTIONS | ops.SPLITS | ops.SELECTIONS:
            wanted += event.producers
    return found


def _is_inverse(subject: Subject, sources: tuple[Producer, ...]) -> bool:
    return any(call.name in _INVERSES for call in list(subject.graph.upstream(sources))[:_NEAR])


def _divisor(subject: Subject, found: _Normalisation) -> OutputRef:
    """Return the call that makes what is divided by, before small numbers are added to it."""
    calls = subject.graph.upstream(found.sources)
    at = next((call for call in calls if call.name not in _MOVES | ops.ADDITIONS | _INVERSES), found.event)
    return at.refs[0]


@dataclass
class _Chunk:
    """What is divided in one call: the products behind it, by what they do."""

    scores: list[Product] = field(default_factory=list)
    """Those of queries and keys, on both of which the divisor depends."""
    values: list[tuple[Product, int]] = field(default_factory=list)
    """Those of values with keys or weights, each with the place of the values, on which the divisor doesn't depend."""
    read: list[tuple[Product, int]] = field(default_factory=list)
    """Those of queries with sums of keys and values, each with the place of the queries."""

    @property
    def linear(self) -> list[Product]:
        """Those whose results are linear in the values."""
        return [one for one, _ in (*self.values, *self.read)]


def _of_chunks(subject: Subject) -> Iterator[WeightSums]:
    """Yield the sums for each line that divides what weights within a chunk and the sums of earlier chunks give."""
    products = _products(subject)
    found: dict[OutputRef, tuple[_Normalisation, _Chunk]] = {}
    for one in _divisions(subject) if len(products) > 2 else ():
        chunk = _chunk(subject, products, one)
        if chunk is not None and not _is_bounded(subject, one.sources):
            found[one.event.refs[0]] = one, chunk
    chunks = [chunk for _, chunk in found.values()]
    if not any(chunk.scores and chunk.values for chunk in chunks) or not any(chunk.read for chunk in chunks):
        return
    values = [one for chunk in chunks for one in chunk.values]
    state = _State(tuple(one for one, _ in values), tuple(one for chunk in chunks for one in chunk.read))
    ones, zeros = (_with_values(subject, state, values, number) for number in (1.0, 0.0))
    if ones is None or zeros is None:
        return
    by_line: dict[object, list[tuple[Tensor, OutputRef]]] = {}
    for ref, (one, _) in found.items():
        # what is left without values isn't theirs
        if _changes(subject, ones, one.event, one.place) or bool((zeros.value(ref) != 0).any()):
            return
        by_line.setdefault(subject.source(ref), []).append((ones.value(ref).flatten(), _divisor(subject, one)))
    for sums in by_line.values():
        every = torch.cat([own for own, _ in sums])
        if bool(torch.isfinite(every).all()):
            yield WeightSums(every, sums[-1][1], by_softmax=False)


def _divisions(subject: Subject) -> Iterator[_Normalisation]:
    """Yield the calls that divide data by data, or multiply it by the inverse of data."""
    for event in subject.base.events:
        if event.name not in ops.SCALINGS or len(event.sources) != 2:
            continue
        for place in (1,) if event.name in ops.DIVISIONS else (0, 1):
            one = _Normalisation(event, place)
            if all(map(subject.graph.carries_data, event.sources)) and (
                one.is_division or _is_inverse(subject, one.sources)
            ):
                yield one


def _chunk(subject: Subject, products: Sequence[Product], division: _Normalisation) -> _Chunk | None:
    """Return what the products behind the numerator of a division do; None if one of them does something else."""
    graph = subject.graph
    divisor, numerator = _producers(subject, division.sources), division.event.sources[1 - division.place]
    chunk = _Chunk()
    for one in _reached_from(subject, products, numerator):
        carried = [place for place in one.places if _reached_from(subject, chunk.linear, one.sources(place))]
        known = [
            place
            for place in one.places
            if not divisor.isdisjoint(_moved(subject, one, place))
            or _reached_from(subject, chunk.scores, one.sources(place))
        ]
        if len(known) == 2 and not carried:
            chunk.scores.append(one)
        elif len(known) != 1 or known == carried or len(carried) > 1:
            return None
        elif carried:
            chunk.read.append((one, known[0]))
        else:
            chunk.values.append((one, one.other(known[0])))
    calls = {event.order for one in chunk.linear for event in (one.first, one.last)}
    path = [call for one in chunk.linear for call in between(graph, one.ref, numerator) if call.order not in calls]
    return chunk if chunk.values and all(_is_linear(subject, call) for call in path) else None


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
    run = _with_values(subject, _State((made,), ((read, queries),)), [(made, made.other(keys[0]))], 1.0)
    if run is None:
        return
    sums = run.value(read.ref)
    found = WeightSums(sums, softmax.refs[0], by_softmax=True)
    # keys whose softmax runs over their features may be a feature map, if queries are weighed by theirs
    if found.are_one or not over_features:
        yield found
    elif _are_of_features(subject, made, keys[0], read, queries):
        of_keys = _softmax(subject, made.sources(keys[0]))
        assert of_keys is not None
        yield WeightSums(sums, of_keys.refs[0], by_softmax=True, may_be_features=True)


def _are_of_features(subject: Subject, made: Product, keys: int, read: Product, queries: int) -> bool:
    """Return whether keys sum to one over features only, all of them are summed, and nothing normalises the context."""
    operand, summed = made.operand(keys), made.contracted(keys)
    kept = [axis for axis, stays in enumerate(made.axes[keys]) if stays & made.free(keys)]
    if any(_is_constant(operand.sum(axis)) for axis in summed) or not any(
        _is_constant(operand.sum(axis)) for axis in kept
    ):
        return False
    path = between(subject.graph, made.ref, read.sources(read.other(queries)))
    return not any(call.name in ops.RUNNING for call in path) and not _is_normed(subject, read.ref)


def _is_normed(subject: Subject, ref: OutputRef) -> bool:
    """Return whether a norm reads a result, perhaps at other places."""
    for event, _ in subject.graph.consumers.get(ref, []):
        if event.name in ops.NORMS | ops.CHANNEL_NORMS | ops.VECTOR_NORMS | ops.POWERS:
            return True
        if event.name in _MOVES and any(_is_normed(subject, own) for own in event.refs):
            return True
    return False


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
        # one projection may make queries, keys and values together, which are split then
        if not _keeps_vectors(event) or event.name in ops.SPLITS:
            break
        reached |= event.producers
    return reached


def _keeps_vectors(event: ReplayedCall) -> bool:
    """Return whether a call only moves numbers, or multiplies all of them by one."""
    if event.name in ops.JOINS or event.name in ops.SCALINGS:
        # a rotation joins a vector's turned parts
        return len(event.operand_values) == 1
    return event.name in _MOVES


def _is_bounded(subject: Subject, sources: tuple[Producer, ...]) -> bool:
    """Return whether what is divided by is kept away from zero by more than a small number."""
    for event in subject.graph.upstream(sources):
        if event.name in ops.ADDITIONS:
            numbers = [value for value in event.args if isinstance(value, (int, float))]
            if any(abs(number) > _SMALL for number in numbers):
                return True
        elif event.name in _BOUNDS:
            raised = differs(event.values[0], event.operand_values[0], subject.experiment.tolerance)
            if bool((event.values[0][raised].abs() > _SMALL).any()):
                return True
        elif not _keeps_vectors(event) and event.name not in _INVERSES:
            return False
    return False


def _with_values(
    subject: Subject, state: _State, values: Sequence[tuple[Product, int]], number: float
) -> ReplayRun | None:
    """Return the run in which every value is one number.

    None if queries or keys aren't what they were then, or some values are 0 by themselves.
    """
    fill = partial(torch.full_like, fill_value=number)
    results: dict[OutputRef, Replace] = {}
    inputs: dict[str, Replace] = {}
    for one, place in values:
        producer, *written = one.sources(place)
        if written or not bool((one.operand(place) != 0).all()):
            return None
        if isinstance(producer, OutputRef):
            results[producer] = fill
        elif producer in subject.inputs:
            inputs[producer] = fill
        else:
            return None
    run = subject.experiment.run(Intervention(inputs=inputs, results=results))
    if not run.follows(subject.base):
        return None
    kept = [(one.first, one.other(place)) for one, place in values] + [(one.first, at) for one, at in state.read]
    given = [run.events[one.first.order - 1].operand_values[place] for one, place in values]
    if any(_changes(subject, run, event, place) for event, place in kept) or any(
        bool((one != number).any()) for one in given
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

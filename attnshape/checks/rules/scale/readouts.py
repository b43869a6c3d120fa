"""The factor with which queries read a state into which keys and values are summed up, as in linear attention.

Without a softmax there are no scores to read the factor from. What a query reads is linear in it: the factor is that of
the query, after the last operation that does more than multiply it by a number, and of what it reads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from attnshape.checks.attention.cores import product
from attnshape.checks.attention.products import Product
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.replay import OutputRef, Producer, ReplayedCall
from attnshape.tracing import operations as ops

_MOVES = ops.SAME_VALUES | ops.JOINS | ops.FILLS
_CLOSE = 1e-4


@dataclass(frozen=True)
class Readout:
    """How all queries read a state."""

    factor: float
    width: int
    """The number of features of a query."""


def readout(subject: Subject) -> Readout | None:
    """Return how the queries read a state; None without a state, or if their factors differ or depend on the data."""
    graph = subject.graph
    found = [one for event in subject.base.events if event.name != "linear" and (one := product(event, graph))]
    found = [one for one in found if all(graph.carries_data(one.sources(place)) for place in one.places)]
    read = list(_readouts(subject, found))
    counted: set[int] = set()
    factors = [_factor(subject, one, queries, counted) for one, queries in read]
    if not factors or any(factor is None or not math.isclose(factor, factors[0] or 0) for factor in factors):
        return None
    # keys or the state may have a factor too
    for event in graph.upstream(tuple(one.ref for one, _ in read)):
        number = _number(subject, event) if event.order not in counted else None
        if number is not None and not math.isclose(abs(number), 1.0):
            return None
    one, queries = read[-1]
    contracted = one.contracted(queries)
    return Readout(factors[0] or 0.0, one.operand(queries).shape[contracted[0]]) if len(contracted) == 1 else None


def _readouts(subject: Subject, found: Sequence[Product]) -> Iterator[tuple[Product, int]]:
    """Yield the last products of data, with the place of the operand that isn't made by multiplying data by data."""
    graph = subject.graph
    multiplying = {
        event.refs[0]
        for event in subject.base.events
        if event.name in ops.MULTIPLICATIONS | ops.PRODUCTS and sum(map(graph.carries_data, event.sources)) > 1
    }
    made = {one.ref for one in found}
    read_again: set[Producer] = set()
    for one in reversed(found):
        before = {place: _refs_before(subject, one.sources(place)) for place in one.places}
        read_again |= made & {ref for refs in before.values() for ref in refs}
        queries = [place for place, refs in before.items() if multiplying.isdisjoint(refs)]
        if one.ref not in read_again and len(queries) == 1:
            yield one, queries[0]


def _refs_before(subject: Subject, sources: tuple[Producer, ...]) -> set[OutputRef]:
    return {ref for event in subject.graph.upstream(sources) for ref in event.refs}


def _factor(subject: Subject, one: Product, queries: int, counted: set[int]) -> float | None:
    """Return the factor of a query before a product, and of the product after it; None if data is a factor too.

    The numbers of the calls that make it are added to `counted`.
    """
    factor = 1.0
    wanted: set[Producer] = set(one.sources(queries))
    for event in subject.graph.upstream(one.sources(queries)):
        if not wanted.intersection(event.refs):
            continue
        own = 1.0 if event.name in _MOVES else _number(subject, event)
        if own is None and event.name in ops.SCALINGS:
            return None
        if own is not None:
            factor *= own
            counted.add(event.order)
            wanted |= event.producers
    reached: set[Producer] = {one.ref}
    for event in subject.base.events[one.last.order :]:
        if not event.producers & reached:
            continue
        own = 1.0 if event.name in _MOVES else _number(subject, event)
        if own is not None:
            factor *= own
            reached.update(event.refs)
    return factor


def _number(subject: Subject, event: ReplayedCall) -> float | None:
    """Return the number by which a call multiplies the only operand that depends on the data; None if it does more."""
    data = [place for place, sources in enumerate(event.sources) if subject.graph.carries_data(sources)]
    if event.name not in ops.SCALINGS or len(data) != 1:
        return None
    before, after = event.operand_values[data[0]], event.values[0]
    if before.shape != after.shape or not bool(before.any()):
        return None
    ratios = (after / before)[before != 0].double()
    return float(ratios[0]) if bool(torch.isclose(ratios, ratios[0], rtol=_CLOSE).all()) else None

"""Do queries and keys get their random features from one draw?

Random features (Rahimi and Recht 2007; Performer, Choromanski et al. 2021, https://arxiv.org/abs/2009.14794, section
2.3) approximate a kernel of a query and a key only if one random matrix projects both.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from attnshape.checks.attention.cores import product
from attnshape.checks.attention.products import Product
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.replay import OutputRef, Producer
from attnshape.checks.rules.protocol import Violation
from attnshape.tracing.operations import DRAWS


@dataclass(frozen=True)
class _Features:
    """A product of vectors of data and a matrix that a call draws."""

    drawn: frozenset[OutputRef]
    """The draws that the matrix comes from."""
    matrix: Tensor
    count: int
    """How many features there are."""


def check_draws(subject: Subject) -> Iterator[Violation]:
    """Compare the matrices that make the features over which queries and keys are multiplied."""
    drawn = [event for event in subject.base.events if event.name in DRAWS]
    if not drawn:
        return
    for event in subject.base.events:
        one = product(event, subject.graph)
        if one is None or any(not subject.graph.carries_data(one.sources(place)) for place in one.places):
            continue
        contracted = [one.operand(place).shape[axis] for place in one.places for axis in one.contracted(place)]
        left, right = (list(_features(subject, one, place, contracted)) for place in one.places)
        if _are_apart(left, right):
            at = max(ref for features in (*left, *right) for ref in features.drawn)
            message = "queries and keys are projected by different random matrices: their features don't match"
            hint = "draw the matrix once, and project both queries and keys by it"
            evidence = "followed both operands of their product back to the calls that draw the matrices"
            yield Violation("AS814", message, at, hint, evidence, "measured")
            return


def _are_apart(left: list[_Features], right: list[_Features]) -> bool:
    """Return whether two matrices of one shape come from different draws, and no matrix is on both sides."""
    pairs = [(one, other) for one, other in itertools.product(left, right) if one.matrix.shape == other.matrix.shape]
    # with equal draws they may be parts of one
    return any(one.drawn != other.drawn for one, other in pairs) and not any(
        torch.equal(one.matrix, other.matrix) for one, other in pairs
    )


def _features(subject: Subject, whole: Product, place: int, contracted: list[int]) -> Iterator[_Features]:
    """Yield the random features that a product sums over, those too that keys have in a sum of keys and values.

    What makes the vectors themselves isn't looked at.
    """
    graph = subject.graph
    waiting: list[tuple[Producer, bool]] = [(source, True) for source in whole.sources(place)]
    seen: set[Producer] = set()
    while waiting:
        source, may_be_sum = waiting.pop()
        if source in seen or not isinstance(source, OutputRef):
            continue
        seen.add(source)
        event = subject.base.event(source)
        one = product(event, graph)
        data = [other for other in one.places if graph.carries_data(one.sources(other))] if one is not None else []
        if one is not None and len(data) == 1:
            found = _drawn(subject, one, data[0])
            if found is not None and any(size % found.count == 0 for size in contracted):
                yield found
        elif one is None or (len(data) == 2 and may_be_sum):
            goes_on = may_be_sum and one is None
            waiting += [(other, goes_on) for own in event.sources if graph.carries_data(own) for other in own]


def _drawn(subject: Subject, one: Product, data: int) -> _Features | None:
    """Return the random features that a product makes of vectors, None for a sum over tokens, or without a draw."""
    graph, other = subject.graph, one.other(data)
    events = graph.upstream(one.sources(other))
    drawn = frozenset(ref for event in events if event.name in DRAWS for ref in event.refs)
    width = [one.operand(data).shape[axis] for axis in one.contracted(data)]
    lengths = {subject.numbers[symbol] for symbol in subject.lengths}
    free = [one.result.shape[axis] for axis in one.free(other)]
    if not drawn or len(width) != 1 or not lengths.isdisjoint(width) or len(free) != 1:
        return None
    return _Features(drawn, one.operand(other), free[0])

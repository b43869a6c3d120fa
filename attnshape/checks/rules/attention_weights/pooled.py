"""Weights of a softmax whose scores no product makes, as those that pool tokens: are some set to zero behind it?"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from attnshape.checks.attention.cores import Softmax, between, softmaxes, sum_to_one, value_product
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.replay import ReplayedCall
from attnshape.checks.rules.protocol import Violation
from attnshape.tracing import operations as ops

_HIDES = ops.MASKS | ops.ELEMENT_WRITES | ops.MULTIPLICATIONS


def check_pooled(subject: Subject) -> Iterator[Violation]:
    """Yield a violation for a mask between the softmax and the values, behind which rows sum to less than one."""
    with_scores = {core.softmax.ref for core in subject.cores}
    for softmax in softmaxes(subject.graph):
        at = _late_mask(subject, softmax) if softmax.ref not in with_scores and not softmax.deferred else None
        if at is not None:
            message = "the mask is applied after the softmax: rows of weights sum to less than one"
            hint = "mask the scores with -inf before the softmax"
            evidence = "compared the weights of the softmax with those that multiply the values"
            yield Violation("AS303", message, at.refs[0], hint, evidence, "measured")
            return


def _late_mask(subject: Subject, softmax: Softmax) -> ReplayedCall | None:
    """Return the call that sets weights to zero, in places that don't depend on the data, if the others stay as is."""
    found = value_product(softmax, subject.graph)
    if found is None or not softmax.axes:
        return None
    product, place = found
    weights, keys = product.operand(place), product.contracted(place)
    kept = weights[weights != 0]
    if not keys or sum_to_one(weights, keys) is not False or bool((softmax.event.values[0] == 0).any()):
        return None
    if kept.numel() == weights.numel() or not bool(torch.isin(kept, softmax.event.values[0]).all()):
        return None
    downstream = subject.graph.downstream_of(softmax.ref)
    for event in between(subject.graph, softmax.ref, product.sources(place)):
        if event.name in _HIDES and bool((event.values[0] == 0).any()):
            others = [sources for sources in event.sources if downstream.isdisjoint(sources)]
            return None if any(map(subject.graph.carries_data, others)) else event
    return None

"""Does each weight of the best keys meet the value that was chosen with its key?

Where only the largest scores are kept, their indices choose the values. Weights and values must stay in one order.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from attnshape.checks.attention.cores import between
from attnshape.checks.attention.operands import AttentionOperand, operands_of
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Intervention
from attnshape.checks.interventions.replay import OutputRef, Producer, Replace, ReplayedCall
from attnshape.checks.rules.protocol import Violation
from attnshape.tracing.operations import DATA_MOVEMENT, GATHERS, JOINS, PRODUCTS

_RANKINGS = frozenset({"topk", "sort"})
_ORDERS = _RANKINGS | {"argsort", "flip", "roll"}


def check_ranked(subject: Subject) -> Iterator[Violation]:
    """Give each value the number of its token, and compare the numbers that weights meet with the chosen indices."""
    for measured in subject.measured:
        core, value = measured.core, operands_of(measured)[2]
        chain = between(subject.graph, core.scores.ref, core.softmax.sources)
        rankings = [event for event in chain if event.name in _RANKINGS]
        indices = _indices(rankings[0], core.softmax.scores.squeeze()) if len(rankings) == 1 else None
        numbers = _numbers_of_values(subject, value, rankings[0]) if indices is not None else None
        if indices is None or numbers is None or numbers.shape != indices.shape or torch.equal(numbers, indices):
            continue
        if torch.equal(numbers.sort(-1).values, indices.sort(-1).values):
            slot = tuple((numbers != indices).nonzero()[0].tolist())
            message = (
                f"weights and values are in different orders: that of key {int(indices[slot])} meets the value of "
                f"key {int(numbers[slot])}"
            )
            hint = "gather the values at the indices as topk or sort returns them, in the order of the scores"
            evidence = "gave each value the number of its token, and compared with the indices of the largest scores"
            at = _rearrangement(subject, value, rankings[0]) or core.context
            yield Violation("AS107", message, at, hint, evidence)


def _indices(ranking: ReplayedCall, scores: Tensor) -> Tensor | None:
    """Return the index of the key of each score of a softmax, without axes of size 1; None if that can't be told.

    A sort has all keys, of which the first or the last ones are kept, as they are or from the last one on.
    """
    best, indices = (value.squeeze() for value in ranking.values)
    if indices.ndim != scores.ndim or not indices.ndim or indices.shape[-1] < scores.shape[-1]:
        return None
    count, size = scores.shape[-1], indices.shape[-1]
    for kept in (slice(count), slice(size - count, size)):
        for axes in ((), (-1,)):
            if _are_multiples(scores, best[..., kept].flip(axes)):
                return indices[..., kept].flip(axes)
    return None


def _are_multiples(scores: Tensor, others: Tensor) -> bool:
    """Return whether scores are others times one number."""
    if scores.shape != others.shape or not bool((others != 0).all()):
        return False
    ratios = scores.double() / others.double()
    return bool(torch.isclose(ratios, ratios.flatten()[0]).all())


def _numbers_of_values(subject: Subject, value: AttentionOperand, ranking: ReplayedCall) -> Tensor | None:
    """Return the number of the token whose value each weight meets, without axes of size 1.

    None if that can't be told.
    """
    count, width = ranking.operand_values[0].shape[-1], value.value.shape[-1]
    for ref in _before_choice(subject, value.sources):
        axes = [axis for axis, size in enumerate(subject.base.value(ref).shape) if size == count]
        if len(axes) != 1:
            continue
        run = subject.experiment.run(Intervention(results={ref: _numbered(axes[0])}))
        if not run.follows(subject.base) or not torch.equal(run.event(ranking.refs[0]).values[1], ranking.values[1]):
            continue
        met = value.of(run)
        features = [axis for axis in range(met.ndim) if met.shape[axis] == width]
        if not features:
            continue
        least, most = met.amin(features[-1]), met.amax(features[-1])
        if torch.equal(least, most):
            return least.squeeze().round().long()
    return None


def _before_choice(subject: Subject, sources: tuple[Producer, ...]) -> Iterator[OutputRef]:
    """Yield the results whose numbers are moved to a tensor: that among which indices choose, then those before it."""
    chosen = False
    while len(sources) == 1 and isinstance(source := sources[0], OutputRef):
        event = subject.base.event(source)
        if event.name in PRODUCTS:
            yield source
            return
        if event.name not in DATA_MOVEMENT | GATHERS:
            return
        if chosen:
            yield source
        chosen = chosen or (len(event.sources) > 1 and event.name not in JOINS)
        sources = event.sources[0]


def _numbered(axis: int) -> Replace:
    """Return a replacement that gives each vector the number of its token."""

    def change(value: Tensor) -> Tensor:
        shape = [value.shape[axis] if place == axis else 1 for place in range(value.ndim)]
        return torch.arange(value.shape[axis], dtype=value.dtype).reshape(shape).expand(value.shape).clone()

    return change


def _rearrangement(subject: Subject, value: AttentionOperand, ranking: ReplayedCall) -> OutputRef | None:
    """Return the last call that gives the indices of the values an order of their own."""
    upstream = subject.graph.upstream(value.sources)
    orders = (event for event in upstream if event.name in _ORDERS and event.order != ranking.order)
    return next((event.refs[-1] for event in orders if not event.values[-1].is_floating_point()), None)

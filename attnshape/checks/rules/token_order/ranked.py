"""Does each weight of the best keys meet the value that was chosen with its key?

Where only the largest scores are kept, their indices choose the values. Weights and values must stay in one order.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from attnshape.checks.attention.cores import between
from attnshape.checks.attention.elementwise import MeasuredCore
from attnshape.checks.attention.operands import operands_of
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Intervention
from attnshape.checks.interventions.replay import OutputRef, Producer, Replace, ReplayedCall
from attnshape.checks.rules.protocol import Violation
from attnshape.tracing.operations import DATA_MOVEMENT, GATHERS, PRODUCTS

_RANKINGS = frozenset({"topk", "sort"})


def check_ranked(subject: Subject) -> Iterator[Violation]:
    """Give each value the number of its token, and compare the numbers that weights meet with the chosen indices."""
    for measured in subject.measured:
        core = measured.core
        chain = between(subject.graph, core.scores.ref, core.softmax.sources)
        rankings = [event for event in chain if event.name in _RANKINGS]
        if len(rankings) != 1 or rankings[0].values[0].shape != core.weights.shape:
            continue
        (ranking,) = rankings
        numbers = _numbers_of_values(subject, measured, ranking)
        indices = ranking.values[1]
        if numbers is None or numbers.shape != indices.shape or torch.equal(numbers, indices):
            continue
        if torch.equal(numbers.sort(-1).values, indices.sort(-1).values):
            slot = tuple((numbers != indices).nonzero()[0].tolist())
            message = (
                f"weights and values are in different orders: that of key {int(indices[slot])} meets the value of "
                f"key {int(numbers[slot])}"
            )
            hint = "gather the values at the indices as topk or sort returns them, in the order of the scores"
            evidence = "gave each value the number of its token, and compared with the indices of the largest scores"
            yield Violation("AS107", message, _rearrangement(subject, ranking) or core.context, hint, evidence)


def _numbers_of_values(subject: Subject, measured: MeasuredCore, ranking: ReplayedCall) -> Tensor | None:
    """Return the number of the token whose value each weight meets; None if that can't be told."""
    core, value = measured.core, operands_of(measured)[2]
    ref = _projection(subject, value.sources)
    before = {one for event in subject.graph.upstream(core.scores.sources(core.scores.left)) for one in event.refs}
    before |= {one for event in subject.graph.upstream(core.scores.sources(core.scores.right)) for one in event.refs}
    if ref is None or ref in before:
        return None
    count = ranking.operand_values[0].shape[-1]
    shape = subject.base.value(ref).shape
    axes = [axis for axis, size in enumerate(shape) if size == count]
    if len(axes) != 1:
        return None
    run = subject.experiment.run(Intervention(results={ref: _numbered(axes[0])}))
    if not run.follows(subject.base):
        return None
    met = value.of(run)
    feature = [axis for axis in range(met.ndim) if met.shape[axis] == value.value.shape[-1]]
    if met.ndim != ranking.values[1].ndim + 1 or not feature:
        return None
    least, most = met.amin(feature[-1]), met.amax(feature[-1])
    return least.round().long() if torch.equal(least, most) else None


def _projection(subject: Subject, sources: tuple[Producer, ...]) -> OutputRef | None:
    """Return the projection whose numbers are moved to a tensor; indices that choose them don't count."""
    while len(sources) == 1 and isinstance(source := sources[0], OutputRef):
        event = subject.base.event(source)
        if event.name in PRODUCTS:
            return source
        if event.name not in DATA_MOVEMENT | GATHERS:
            return None
        sources = event.sources[0]
    return None


def _numbered(axis: int) -> Replace:
    """Return a replacement that gives each vector the number of its token."""

    def change(value: Tensor) -> Tensor:
        shape = [value.shape[axis] if place == axis else 1 for place in range(value.ndim)]
        return torch.arange(value.shape[axis], dtype=value.dtype).reshape(shape).expand(value.shape).clone()

    return change


def _rearrangement(subject: Subject, ranking: ReplayedCall) -> OutputRef | None:
    """Return the call that gives the indices another order."""
    reached = {OutputRef(ranking.order, 1)}
    for event in subject.base.events[ranking.order :]:
        if event.name in _RANKINGS | {"flip", "roll", "argsort"} and event.producers & reached:
            return event.refs[0]
        if event.producers & reached and not event.values[0].is_floating_point():
            reached.update(event.refs)
    return None

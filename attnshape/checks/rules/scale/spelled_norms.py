"""Norms of queries and keys that are spelled out, behind which a claimed scale is measured.

Query and key normalisation (Henry et al. 2020, https://arxiv.org/abs/2010.04245) is often written by hand, as a mean
square, its inverse root and a product with learned gains. What is normalised stays the same where what it is made of is
twice as large.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from attnshape.checks.attention.cores import between
from attnshape.checks.attention.operands import AttentionOperand, projection
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Intervention
from attnshape.checks.interventions.replay import OutputRef, ReplayedCall
from attnshape.tracing.operations import ADDITIONS, MULTIPLICATIONS

_SAME = 1e-3
"""The relative difference that the small number in a norm's denominator may make."""


def spelled_norm(subject: Subject, operand: AttentionOperand) -> OutputRef | None:
    """Return the result of the norm between a projection and the query or key, gains included; None without a norm."""
    ref = projection(subject, operand.sources)
    if ref is None:
        return None
    doubled = subject.experiment.run(Intervention(results={ref: lambda value: 2 * value}))
    if not doubled.follows(subject.base):
        return None
    calls = sorted(between(subject.graph, ref, operand.sources), key=lambda call: call.order)
    width = operand.width

    def is_normalised(call: ReplayedCall) -> bool:
        before, after = call.values[0], doubled.value(call.refs[0])
        has_features = before.ndim > 1 and before.is_floating_point() and before.shape[-1] % width == 0
        return has_features and torch.allclose(before, after, rtol=_SAME, atol=_SAME * float(before.abs().max()))

    start = next((call for call in calls if call.order != ref.order and is_normalised(call)), None)
    if start is None:
        return None
    return max([start.refs[0], *(call.refs[0] for call in _gains(subject, start, calls))])


def _gains(subject: Subject, start: ReplayedCall, calls: list[ReplayedCall]) -> Iterator[ReplayedCall]:
    """Yield the calls that multiply what is normalised by parameters, or add these, feature by feature."""
    downstream = subject.graph.downstream_of(start.refs[0])
    for call in calls:
        if call.order <= start.order or call.name not in MULTIPLICATIONS | ADDITIONS or call.refs[0] not in downstream:
            continue
        for value, sources in zip(call.operand_values, call.sources, strict=True):
            if (
                value.numel() > 1
                and subject.graph.origins(sources) & subject.experiment.parameters
                and (not subject.graph.carries_data(sources))
            ):
                yield call

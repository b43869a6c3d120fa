"""The slopes of linear biases, and the calls that add them to the scores."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from attnshape.checks.attention.cores import Core, FusedCore, between
from attnshape.checks.attention.subject import Subject
from attnshape.checks.attention.visibility import VisibleKeys
from attnshape.checks.interventions.replay import OutputRef, Producer, ReplayedCall
from attnshape.checks.rules.biases.terms import behind
from attnshape.tracing import operations as ops

_SAME = 1e-5
_ADDS = ops.ADDITIONS | ops.SUBTRACTIONS | ops.REVERSED_SUBTRACTIONS


def slopes_of(visible: VisibleKeys, base: float = 1.0) -> list[float] | None:
    """Return the size of the step from key to key in each head that has a bias; None if a head's steps differ.

    With the base of the softmax's exponential, it is that of the natural one.
    """
    both = visible.keys[..., 1:] & visible.keys[..., :-1]
    steps = (visible.added[..., 1:] - visible.added[..., :-1]).abs()
    slopes: list[float] = []
    for head in range(both.shape[1]):
        sizes = steps[:, head][both[:, head]]
        if not sizes.numel() or float(sizes.max() - sizes.min()) > _SAME * float(sizes.max()):
            return None
        slopes.append(float(sizes.mean()) * base)
    return [slope for slope in slopes if slope > 0] or None


def sums(subject: Subject, core: Core) -> Iterator[tuple[OutputRef, int, ReplayedCall]]:
    """Yield the additions of something else to the scores, with its place among the operands."""
    graph = subject.graph
    if core.scores.last.name in ops.PRODUCTS_WITH_ADDEND:
        yield core.scores.ref, 0, core.scores.last
    scores = graph.downstream_of(core.scores.ref)
    for event in between(graph, core.scores.ref, core.softmax.sources):
        if event.name in _ADDS and len(event.operand_values) == 2:
            of_scores = [not scores.isdisjoint(sources) for sources in event.sources]
            if of_scores.count(False) == 1:
                yield event.refs[0], of_scores.index(False), event


def additions(subject: Subject, core: Core, visible: VisibleKeys) -> Iterator[tuple[OutputRef, tuple[Producer, ...]]]:
    """Yield the sums of the scores and what differs between the visible keys of a query, with its producers."""
    for ref, place, event in sums(subject, core):
        bias = visible.laid_out(event.operand_values[place].double())
        if bias is not None and _differs(bias, visible.keys):
            yield ref, event.sources[place]


def are_given(subject: Subject, visible: VisibleKeys) -> bool:
    """Return whether the bias depends on parameters, or on inputs other than masks, so that its slopes may be any."""
    given = {producer for bias in _biases(subject, visible) for producer in behind(subject, bias)}
    return not given.isdisjoint(
        subject.experiment.parameters | (subject.base.inputs.keys() - subject.claims.arguments.keys())
    )


def _biases(subject: Subject, visible: VisibleKeys) -> list[tuple[Producer, ...]]:
    """Return the producers of what is added to the scores and differs between the visible keys of a query."""
    core = visible.core
    if isinstance(core, FusedCore):
        return [core.sources("attn_mask")]
    return [bias for _, bias in additions(subject, core, visible)]


def _differs(bias: Tensor, keep: Tensor) -> bool:
    most = bias.masked_fill(~keep, -torch.inf).amax(-1)
    least = bias.masked_fill(~keep, torch.inf).amin(-1)
    return bool((most - least > _SAME)[keep.any(-1)].any())

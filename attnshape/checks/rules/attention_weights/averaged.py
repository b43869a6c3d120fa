"""Values that are multiplied by a softmax's weights and then averaged: the weights sum to one already."""

from __future__ import annotations

from collections.abc import Iterator

from attnshape.checks.attention.cores import softmaxes
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.replay import ReplayedCall
from attnshape.checks.rules.attention_weights.indexed_sums import readers_after_moves
from attnshape.checks.rules.protocol import Violation
from attnshape.tracing import operations as ops


def check_averaged(subject: Subject) -> Iterator[Violation]:
    """Yield a violation for a mean, over the keys, of values that are multiplied by the weights of a softmax."""
    graph = subject.graph
    for softmax in softmaxes(graph):
        downstream = graph.downstream_of(softmax.ref)
        counts = {softmax.event.values[0].shape[axis] for axis in softmax.axes}
        for event in readers_after_moves(subject, softmax.event):
            if event.name not in ops.MULTIPLICATIONS or len(event.sources) != 2:
                continue
            others = [sources for sources in event.sources if downstream.isdisjoint(sources)]
            if len(others) != 1 or not graph.carries_data(others[0]):
                continue
            for mean in readers_after_moves(subject, event):
                if mean.name == "mean" and _averaged(mean) in counts:
                    yield _violation(mean)
                    return


def _averaged(mean: ReplayedCall) -> int:
    """Return of how many numbers a mean is taken."""
    return mean.operand_values[0].numel() // max(mean.numel, 1)


def _violation(mean: ReplayedCall) -> Violation:
    count = _averaged(mean)
    message = f"values are averaged over {count} keys after they are multiplied by weights, which sum to one already"
    hint = "sum the weighted values over the keys: (weights * values).sum(dim)"
    evidence = "followed the weights of the softmax to the product with the values, and to the mean over the keys"
    return Violation("AS302", message, mean.refs[0], hint, evidence)

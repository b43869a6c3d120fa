"""Classifies layout operations through which a change reaches indices that it should not."""

from __future__ import annotations

from collections.abc import Callable

from attnshape.checks.attention.cores import between
from attnshape.checks.attention.perturbation import Divergence, changed_indices
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Intervention
from attnshape.tracing.operations import DATA_MOVEMENT, JOINS, SELECTIONS, SPLITS


def splits_fused_projection(subject: Subject, divergence: Divergence) -> bool:
    """Return whether a layout operation splits a projection that holds queries, keys and values, or keys and values."""
    event = divergence.event
    shape = event.values[divergence.ref.output].shape
    width = subject.numbers.get("H", 0) * subject.numbers.get("Dk", 0) or subject.numbers.get("D", 0)
    last = event.given[0].shape[-1] if event.given and event.given[0].ndim else 0
    return width > 0 and any(last == parts * width and (parts in shape or event.name in SPLITS) for parts in (2, 3))


def scrambles(
    subject: Subject, divergence: Divergence, symbol: str, index: int, change: Callable[[int], Intervention]
) -> bool:
    """Return whether a call moves one token to several places, or two tokens to one place.

    A token that is alone at another place was moved as a whole, as by a shift.
    """
    event, summary = divergence.event, divergence.summary
    data = subject.graph.depends_on_data
    # the data decides what is selected, as when tokens are sorted or sent to experts
    chosen = event.name in SELECTIONS and any(not data.isdisjoint(sources) for sources in event.sources[1:])
    if event.name in JOINS or chosen:
        return False
    if summary is not None:
        path = [call for start in summary.refs for call in between(subject.graph, start, tuple(event.producers))]
        if any(call.name not in DATA_MOVEMENT for call in (summary, *path)):
            return False
    if len(divergence.indices) > 1:
        return True
    size = event.values[divergence.ref.output].shape[divergence.axis]
    for beside in (index - 1, index + 1):
        if 0 <= beside < min(size, subject.numbers[symbol]):
            diff = subject.perturb(change(beside))
            if diff.comparable and not changed_indices(diff.mask(divergence.ref), divergence.axis).isdisjoint(
                divergence.indices
            ):
                return True
    return False

"""Classifies layout operations through which a change reaches indices that it should not."""

from __future__ import annotations

from collections.abc import Callable

from attnshape.checks.attention.cores import between
from attnshape.checks.attention.perturbation import Divergence, PerturbationDiff, changed_indices
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Intervention
from attnshape.checks.interventions.replay import ReplayedCall
from attnshape.tracing.operations import DATA_MOVEMENT, JOINS, SELECTIONS, SPLITS


def splits_fused_projection(subject: Subject, divergence: Divergence) -> bool:
    """Return whether a layout operation splits a projection that holds queries, keys and values, or keys and values."""
    event = divergence.event
    given = event.given[0].shape if event.given else ()
    shape = event.values[divergence.ref.output].shape
    width = subject.numbers.get("H", 0) * subject.numbers.get("Dk", 0) or subject.numbers.get("D", 0)
    if not given or not width:
        return False
    parts = given[-1] // width if given[-1] % width == 0 else 0
    return parts in (2, 3) and (parts in shape or event.name in SPLITS)


def scrambles(
    subject: Subject, divergence: Divergence, symbol: str, index: int, change: Callable[[int], Intervention]
) -> bool:
    """Return whether a call moves one token to several places, or two tokens to one place.

    A token that is alone at another place was moved as a whole, as by a shift.
    """
    if divergence.event.name in JOINS or _is_chosen_by_data(subject, divergence.event):
        return False
    if divergence.summary is not None and not _by_moves_only(subject, divergence.summary, divergence):
        return False
    if len(divergence.indices) > 1:
        return True
    size = divergence.event.values[divergence.ref.output].shape[divergence.axis]
    for beside in (index - 1, index + 1):
        if not 0 <= beside < min(size, subject.numbers[symbol]):
            continue
        diff: PerturbationDiff = subject.perturb(change(beside))
        if diff.comparable and changed_indices(diff.mask(divergence.ref), divergence.axis) & set(divergence.indices):
            return True
    return False


def _is_chosen_by_data(subject: Subject, event: ReplayedCall) -> bool:
    """Return whether the data decides what is selected, as when tokens are sorted or sent to experts."""
    data = subject.graph.depends_on_data
    return event.name in SELECTIONS and any(source in data for sources in event.sources[1:] for source in sources)


def _by_moves_only(subject: Subject, summary: ReplayedCall, divergence: Divergence) -> bool:
    """Return whether only data movement lies from one call to another, both included."""
    sources = tuple(source for every in divergence.event.sources for source in every)
    way = [event for start in summary.refs for event in between(subject.graph, start, sources)]
    return all(event.name in DATA_MOVEMENT for event in (summary, *way))

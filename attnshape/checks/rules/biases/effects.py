"""Does a claimed bias reach the scores at all?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attnshape.checks.attention.cores import FusedCore
from attnshape.checks.attention.dead_ends import is_dropped
from attnshape.checks.attention.perturbation import PerturbationDiff, other_numbers
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Intervention
from attnshape.checks.interventions.replay import OutputRef, Producer, ReplayedCall
from attnshape.checks.rules.protocol import Violation

_HINT = "add it to the scores before the softmax"


def check_effects(subject: Subject, names: Sequence[str]) -> Iterator[Violation]:
    """Put other numbers into each claimed bias: the scores that a softmax reads must change."""
    for name in names:
        if name not in subject.base.inputs or name in subject.unvaried or not subject.attentions:
            continue
        moved = subject.perturb(Intervention(inputs={name: other_numbers}))
        if not moved.has_no_effect or not moved.returned() or subject.base.has_nan or _changes_scores(subject, moved):
            continue
        carriers = list(_carriers(subject, moved, name))
        # a statement that drops what is computed from it has a finding of its own
        if any(is_dropped(subject, event.refs[0]) for event in carriers):
            continue
        message = f"{name} never reaches the scores: with other numbers in it they are the same"
        evidence = f"changed all of {name}: no result changes"
        at = _last_reader(subject, name, carriers)
        yield Violation("AS708", message, at, _HINT, evidence, claims=(name,))


def _changes_scores(subject: Subject, moved: PerturbationDiff) -> bool:
    """Return whether what a softmax reads changes, though the results don't: the softmax cancels it."""
    read: list[Producer] = []
    for core in subject.attentions:
        read += core.sources("attn_mask") if isinstance(core, FusedCore) else core.softmax.sources
    return any(isinstance(ref, OutputRef) and moved.any(ref) for ref in read)


def _carriers(subject: Subject, moved: PerturbationDiff, name: str) -> Iterator[ReplayedCall]:
    """Yield the calls whose results change with an input, in order."""
    reached: set[Producer] = {name}
    for event in subject.base.events:
        if event.producers & reached and any(map(moved.any, event.refs)):
            reached.update(event.refs)
            yield event


def _last_reader(subject: Subject, name: str, carriers: Sequence[ReplayedCall]) -> OutputRef:
    """Return the last call that reads a bias, or only its shape, and doesn't depend on it, else the first softmax."""
    held: set[Producer] = {name, *(ref for event in carriers for ref in event.refs)}
    ignoring = [event for event in subject.base.events if event.producers & held and held.isdisjoint(event.refs)]
    if ignoring:
        return ignoring[-1].refs[0]
    first = subject.attentions[0]
    return first.context if isinstance(first, FusedCore) else first.softmax.ref

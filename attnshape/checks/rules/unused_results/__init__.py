"""Is what the code computes from its inputs used, rather than discarded?"""

from __future__ import annotations

from collections.abc import Iterator

from attnshape.checks.attention.dead_ends import (
    DeadEnd,
    dead_ends,
    discarded_identities,
    holds_attention,
    live_results,
)
from attnshape.checks.attention.perturbation import other_numbers
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Intervention
from attnshape.checks.rules.protocol import Outcome, Verification, Violation
from attnshape.model.report import Level
from attnshape.tracing.raw import SourceLocation

CODES: tuple[str, ...] = ("AS809",)
TOPIC = "unused results"


def check(subject: Subject) -> Iterator[Outcome]:
    """Report the results that a statement discards, and those whose variable is bound again or never read."""
    places: list[SourceLocation | None] = []
    for end in [*dead_ends(subject), *discarded_identities(subject)]:
        if end.place in places or not (end.fate == "discarded" or _is_bound_in_vain(subject, end)):
            continue
        if subject.perturb(Intervention(results={end.ref: other_numbers})).has_no_effect:
            places.append(end.place)
            yield _violation(subject, end)
    if not places and not dead_ends(subject):
        yield Verification("every floating-point result that the code computes from its inputs is used or kept")


def _is_bound_in_vain(subject: Subject, end: DeadEnd) -> bool:
    """Return whether a variable is bound in vain, and no parameter has a finding for it."""
    if end.is_leftover or end.fate == "ignored":
        return False
    live, parameters = live_results(subject), subject.experiment.parameters
    return not any(name in parameters and name not in live for name in subject.graph.origins((end.ref,)))


def _violation(subject: Subject, end: DeadEnd) -> Violation:
    if end.fate == "discarded":
        expression = end.place.expression if end.place is not None else ""
        name = subject.base.event(end.ref).short_name if "\n" in expression or len(expression) > 40 else expression
        message = f"the result of {name} is discarded, and nothing is changed in place"
        hint = "assign the result to the variable that the next lines read"
    else:
        why = "bound again before it is read" if end.fate == "overwritten" else "never read"
        message = f"{end.variable} is computed and has no effect on the result: it is {why}"
        hint = f"use {end.variable}, or remove what computes it"
    level: Level = "error" if end.fate != "unread" or holds_attention(subject, end) else "notice"
    evidence = "changed this result, and no result of the target changes"
    return Violation("AS809", message, end.ref, hint, evidence, place=end.place, level=level)

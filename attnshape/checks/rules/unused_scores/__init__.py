"""Checks that the scaled or masked scores are used."""

from __future__ import annotations

from collections.abc import Iterator

from attnshape.checks.attention.cores import Core, between
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.replay import OutputRef, Producer, ReplayedCall
from attnshape.checks.rules.protocol import Outcome, Undecided, Verification, Violation
from attnshape.inference.dataflow import reads_numbers
from attnshape.tracing.operations import MASKS, SCALINGS
from attnshape.tracing.storage import memory_of

CODES: tuple[str, ...] = ("AS206", "AS404")
TOPIC = "unused scores"


def check(subject: Subject) -> Iterator[Outcome]:
    """Report scaled or masked scores that no other call reads."""
    if not subject.cores:
        yield Undecided(TOPIC, "the code computes no scores of its own")
        return
    events = [event for core in subject.cores for event in unread_calls(subject, core)]
    for event in events:
        yield _violation(event, subject.claims.masks if event.name in MASKS else ())
    if not events:
        yield Verification("scaled and masked scores are used")


def unread_calls(subject: Subject, core: Core) -> Iterator[ReplayedCall]:
    """Yield the calls that scale or mask the scores but whose result is never read."""
    path = between(subject.graph, core.scores.ref, core.softmax.sources)
    starts: list[Producer] = [core.scores.ref, *(ref for event in path for ref in event.refs)]
    for place in core.scores.places:
        starts += core.scores.sources(place)
    returned = set(map(memory_of, subject.base.results)) - {None}
    readers = [event for start in dict.fromkeys(starts) for event, _ in subject.graph.consumers.get(start, [])]
    for event in readers:
        is_read = any(map(reads_numbers, subject.graph.readers(event)))
        is_returned = returned & set(map(memory_of, event.outputs))
        if event.name in MASKS | SCALINGS and not event.in_place and not is_read and not is_returned:
            yield event


def _violation(event: ReplayedCall, claims: tuple[str, ...]) -> Violation:
    code, what = ("AS404", "masked") if event.name in MASKS else ("AS206", "scaled")
    message = f"the {what} scores are computed but never used: the softmax gets the others"
    hint = f"assign the result of {event.short_name}: scores = scores.{event.short_name}(…)"
    return Violation(code, message, OutputRef(event.order), hint, "no other call reads this result", claims=claims)

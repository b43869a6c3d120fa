"""Whether scores are scaled or masked into a result that nothing reads."""

from __future__ import annotations

from collections.abc import Iterator

from attnshape.attention.chain import between, dead_ends
from attnshape.attention.core import Core
from attnshape.attention.outcome import Mistake, NotExamined, Outcome, Proved
from attnshape.attention.subject import Subject
from attnshape.inference.kinds import MASK, SCALE
from attnshape.replaying.replay import Address, Event, Source

CODES = ("AS206", "AS404")
WHAT = "unused scores"


def examine(subject: Subject) -> Iterator[Outcome]:
    """Look at what is made of the scores on their way to the softmax, and whether anything reads it."""
    if not subject.cores:
        yield NotExamined(WHAT, "no scores can be seen")
        return
    found = False
    for core in subject.cores:
        for event in unread(subject, core):
            found = True
            yield _mistake(subject, event)
    if not found:
        yield Proved("scores that are scaled or masked are used")


def unread(subject: Subject, core: Core) -> Iterator[Event]:
    """Yield what is scaled or masked of an attention's scores, and read by nothing."""
    way = between(subject.flow, core.scores.address, core.softmax.sources)
    starts: list[Source] = [core.scores.address, *(address for event in way for address in event.addresses)]
    for place in (core.scores.left, core.scores.right):
        starts += core.scores.sources(place)
    for start in dict.fromkeys(starts):
        for event in dead_ends(subject.flow, start, subject.returned_memory):
            if event.name in MASK | SCALE:
                yield event


def _mistake(subject: Subject, event: Event) -> Mistake:
    masks = event.name in MASK
    what = "masked" if masks else "scaled"
    return Mistake(
        code="AS404" if masks else "AS206",
        message=f"{what} scores are computed and not used: the softmax gets those without",
        at=Address(event.order),
        hint=f"assign what {event.name} returns: scores = scores.{event.name}(…)",
        evidence="nothing reads this result",
    )

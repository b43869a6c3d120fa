"""Projections that hold queries, keys and values in one tensor, and how they are cut."""

from __future__ import annotations

from attnshape.attention.following import Parting
from attnshape.attention.outcome import Mistake
from attnshape.attention.subject import Subject
from attnshape.inference.kinds import SPLIT
from attnshape.replaying.replay import Address


def cuts_fused(subject: Subject, parting: Parting) -> bool:
    """Say whether a layout operation takes apart what holds queries, keys and values, or keys and values."""
    event = parting.event
    given = event.given[0].shape if event.given else ()
    shape = event.values[parting.address.output].shape
    width = subject.numbers.get("H", 0) * subject.numbers.get("Dk", 0) or subject.numbers.get("D", 0)
    if not given or not width:
        return False
    parts = given[-1] // width if given[-1] % width == 0 else 0
    return parts in (2, 3) and (parts in shape or event.name in SPLIT)


def cut(at: Address, letter: str, parting: Parting, what: str, evidence: str) -> Mistake:
    """Return the finding for a cut along the wrong axis."""
    return Mistake(
        code="AS113",
        message=f"the fused projection is cut along the wrong axis: axis {parting.axis} is {letter} by its size, but "
        f"{what} is found at {parting.places}",
        at=at,
        hint="cut the last axis: query, key, value = qkv.chunk(3, dim=-1)",
        evidence=evidence,
    )

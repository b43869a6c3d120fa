"""What a probe says: a mistake, a fact, something proved, or something that it could not examine."""

from __future__ import annotations

from dataclasses import dataclass

from attnshape.replaying.replay import Address
from attnshape.report import Shown
from attnshape.tracing.raw import Place


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """A finding to be, at the call that makes it."""

    code: str
    message: str
    at: Address | None
    """None where it is the target's as a whole."""
    place: Place | None = None
    """Where it is shown, where that isn't the line that makes the call."""
    hint: str
    evidence: str
    """What was changed, or what numbers were reproduced."""
    shown: Shown = "intervention"


@dataclass(frozen=True)
class Measured:
    """A fact: right or wrong by intent only."""

    text: str
    at: Address | None = None


@dataclass(frozen=True)
class Proved:
    """Something that was examined and holds."""

    text: str


@dataclass(frozen=True)
class NotExamined:
    """Something that could not be examined, and why."""

    what: str
    why: str


Outcome = Mistake | Measured | Proved | NotExamined

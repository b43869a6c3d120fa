"""What a rule is, and what it can report about an attention."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.replay import OutputRef
from attnshape.model.report import Level, Shown
from attnshape.tracing.raw import SourceLocation


@dataclass(frozen=True)
class Violation:
    """A mistake, or something unusual, at the call that makes it. A second set of sizes confirms it."""

    code: str
    message: str
    at: OutputRef | None
    """The call whose line the finding names; None if the target as a whole is at fault."""
    hint: str
    evidence: str
    """What was changed, or which numbers were reproduced."""
    shown: Shown = "intervention"
    place: SourceLocation | None = None
    """The place to name instead of the line of that call."""
    made: SourceLocation | None = None
    """Where the number, the option or the constant is defined that is wrong in that call, if that is another line."""
    claims: tuple[str, ...] = ()
    """The claims that it contradicts, by name."""
    level: Level = "error"
    """A notice is what intent alone can settle; its hint names the claim that does."""


@dataclass(frozen=True)
class Observation:
    """A fact that is right or wrong only by intent, such as "attends causally"."""

    text: str
    at: OutputRef | None = None
    claims: tuple[str, ...] = ()
    """The claims that hold with it, by name."""
    attention: OutputRef | None = None
    """The context of the attention that it is about, if it is about one."""


@dataclass(frozen=True)
class Verification:
    """A property that was checked and holds."""

    text: str
    claims: tuple[str, ...] = ()
    """The claims that hold with it, by name."""


@dataclass(frozen=True)
class Undecided:
    """A property that could not be checked, and why."""

    topic: str
    reason: str
    claims: tuple[str, ...] = ()
    """The claims that are undecided with it, by name: the answer is incomplete without them."""
    incomplete: bool = False
    """Whether the answer is incomplete without it, since the check of it was begun and couldn't be completed."""


Outcome = Violation | Observation | Verification | Undecided


class Rule(Protocol):
    """A kind of mistake that `attnshape check` looks for.

    A rule is a folder below this one, a package whose module has the three members below. The folder also holds a page
    `CODE.md` for each code, with a wrong and a right snippet, unless another rule that reports the code has its page.
    `registry.RULES` lists the rules in the order in which they run.
    """

    CODES: tuple[str, ...]
    """The codes that the rule may report, such as `("AS301", "AS302")`."""
    TOPIC: str
    """What the rule checks, as a noun phrase for progress messages and for "not checked: …"."""

    def check(self, subject: Subject) -> Iterator[Outcome]:
        """Yield what the rule finds out about the attention in a target, run at one set of small sizes.

        A rule yields at least one outcome, unless it concerns something that the target doesn't have or that the user
        didn't claim. It names the claims that each outcome is about; a claim that no outcome names is undecided.
        Exceptions may propagate: the check then reports the topic as not checked, and the answer as incomplete.
        """

"""The report: the immutable value that a check makes, and that every output format reads."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from attnshape.errors import ExitStatus
from attnshape.model.behaviour import KeyPattern
from attnshape.model.trace import Displayed, Size, Source

SCHEMA: Literal["attnshape/report/1"] = "attnshape/report/1"

Shown = Literal["intervention", "reproduced", "measured"]
"""How a finding is shown: by what followed a change, or by a known mistake that made the same numbers."""


Level = Literal["error", "warning", "notice"]
"""How sure it is that a finding is a mistake in the code: for certain, in a comment, or settled by intent only."""


class Finding(Struct, frozen=True, kw_only=True):
    """One mistake, or something unusual, at the line that makes it."""

    code: str
    level: Level = "error"
    message: str
    """What is wrong there, with the numbers that were measured: `scores are scaled by 1/sqrt(D) = 0.0442, …`."""
    source: Source | None
    """Where; None if no line of the source can be named."""
    expression: str
    """The source's expression there, empty if it can't be read."""
    hint: str
    shown: Shown
    evidence: str
    """What was done to show it, in a few words: `changed token 2 of x`."""
    used: Source | None = None
    """Where the code uses what is wrong, if that is another line than the one that makes it."""


class Fact(Struct, frozen=True, kw_only=True):
    """Something that was measured and that is right or wrong by intent only, such as "attends causally"."""

    text: str
    source: Source | None = None


ClaimOutcome = Literal["verified", "contradicted", "undecided"]
"""What became of a claim: a finding may contradict it."""


class NotChecked(Struct, frozen=True, kw_only=True):
    """Something that could not be checked, and why."""

    what: str
    why: str
    required: bool = False
    """Whether the answer is incomplete without it: it is claimed, or the check of it was cut off or failed."""


class Pattern(Struct, frozen=True, kw_only=True):
    """Which output positions depend on which positions of an input."""

    output: str
    input: str
    queries: str
    """The symbol of the output's positions, one a row."""
    keys: str
    """The symbol of the input's positions, one a column."""
    rows: tuple[str, ...]
    """A character each: `#` where the output at the row depends on the input at the column, else `.`."""


class Report(Displayed, frozen=True, kw_only=True):
    """What was found, what was verified, and what could not be checked."""

    schema: Literal["attnshape/report/1"] = SCHEMA
    attnshape: str
    torch: str
    python: str
    target: str
    command: str
    found: str | UnsetType = UNSET
    """Present where attnshape worked out arguments of the target: the flags that say the same."""
    seed: int
    dtype: str
    """In what type the small runs were: float64 where the code allows."""
    sizes: dict[str, Size]
    small_sizes: tuple[dict[str, int], ...]
    """The sizes at which the target was checked; a finding holds at each."""
    claims: tuple[str, ...] = ()
    claim_outcomes: dict[str, ClaimOutcome] | UnsetType = UNSET
    """Present where something is claimed: the outcome of each claim."""
    runs: int
    """How many runs it took beyond those of a trace."""
    findings: tuple[Finding, ...] = ()
    strict: bool = False
    """Whether warnings and notices count as much as errors do."""
    suppressed: tuple[Finding, ...] = ()
    """What a comment in the source, or --select and --ignore, keep from counting."""
    facts: tuple[Fact, ...] = ()
    verified: tuple[str, ...] = ()
    """What was checked and holds, each in a few words."""
    not_checked: tuple[NotChecked, ...] = ()
    patterns: tuple[Pattern, ...] = ()
    visible: tuple[KeyPattern, ...] = ()
    """Which keys the queries of each attention see, at the first of the small sizes."""

    @property
    def counting(self) -> tuple[Finding, ...]:
        """The findings that decide the exit status: errors, and if the report is strict all of them."""
        return tuple(finding for finding in self.findings if self.strict or finding.level == "error")

    @property
    def found_something(self) -> bool:
        """Whether there is a finding that counts."""
        return bool(self.counting)

    @property
    def undecided(self) -> tuple[NotChecked, ...]:
        """What makes the answer incomplete."""
        return tuple(one for one in self.not_checked if one.required)

    @property
    def exit_status(self) -> ExitStatus:
        """The exit status of a command with this report alone: a finding counts though others may be missing."""
        if self.found_something:
            return ExitStatus.FOUND
        return ExitStatus.CANNOT if self.undecided else ExitStatus.FINE

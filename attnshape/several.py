"""What came out where several targets, or one at several sets of sizes, were traced or checked at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from attnshape.errors import AttnshapeError, ExitStatus
from attnshape.model import Trace
from attnshape.report import Report

Made = TypeVar("Made", Trace, Report)


@dataclass(frozen=True)
class Outcome(Generic[Made]):
    """What came out for one target at one set of sizes: a trace or a report, or why there is none."""

    name: str
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Those that the target lists for this run; empty where it lists none."""
    made: Made | None = None
    error: AttnshapeError | None = None
    """Present where there is no result."""

    @property
    def status(self) -> ExitStatus:
        """What a command that did this alone would end with."""
        if self.made is None:
            return ExitStatus.CANNOT
        return ExitStatus.FOUND if self.made.found_something else ExitStatus.FINE


@dataclass(frozen=True)
class Outcomes(Generic[Made]):
    """All that came out of one command, in order."""

    version: str
    """Of attnshape."""
    command: str
    each: tuple[Outcome[Made], ...]

    @property
    def status(self) -> ExitStatus:
        """The one status of all: 2 where one can't be carried out, else 1 where something was found, else 0."""
        return max((outcome.status for outcome in self.each), default=ExitStatus.FINE)

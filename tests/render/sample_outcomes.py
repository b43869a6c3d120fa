"""Results of several targets, written down without running anything."""

from __future__ import annotations

from attnshape.errors import AttnshapeError
from attnshape.report import Report
from attnshape.several import Outcome, Outcomes
from tests.render import sample_reports, sample_traces

MISSING = AttnshapeError("there is no file models/nosuch.py", "did you mean models/such.py?")


def traces() -> Outcomes[object]:  # type: ignore[type-var]
    """One of each kind: fine, verified and not met, failed, and one that can't be carried out."""
    return Outcomes(
        "0.1.0",
        "attnshape trace --all",
        (
            Outcome("multi", {"B": 2, "L": 10}, made=sample_traces.multi_head()),
            Outcome("multi", {"B": 1, "L": 1}, made=sample_traces.verified()),
            Outcome("cross", made=sample_traces.failed()),
            Outcome("of another branch", error=MISSING),
        ),
    )


def reports() -> Outcomes[Report]:
    """Two reports with the same findings, one without, and one that can't be carried out."""
    return Outcomes(
        "0.1.0",
        "attnshape check --all",
        (
            Outcome("multi", {"B": 2, "L": 10}, made=sample_reports.two_findings()),
            Outcome("multi", {"B": 1, "L": 1}, made=sample_reports.two_findings()),
            Outcome("cross", made=sample_reports.no_findings()),
            Outcome("of another branch", error=MISSING),
        ),
    )


def hostile(text: str) -> Outcomes[Report]:
    """Every text that a name, an error and a hint can be."""
    return Outcomes(
        text,
        text,
        (
            Outcome(text, {"B": 2, text: 3}, made=sample_reports.hostile(text)),
            Outcome(text, error=AttnshapeError(text, text)),
            Outcome(text, error=AttnshapeError(text)),
        ),
    )

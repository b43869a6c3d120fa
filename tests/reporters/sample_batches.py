"""Results of several targets, built without running anything."""

from __future__ import annotations

from attnshape.errors import AttnshapeError
from attnshape.model.report import Report
from attnshape.model.trace import Trace
from attnshape.reporters.batch_view import BatchItem, BatchResult, ResultT
from tests.reporters import sample_reports, sample_traces

MISSING = AttnshapeError("there is no file models/nosuch.py", "did you mean models/such.py?")


def traces() -> BatchResult[Trace]:
    """One of each kind: success, unmet expectations, a failure, and an error."""
    return BatchResult(
        "0.1.0",
        "attnshape trace --all",
        (
            BatchItem("multi", {"B": 2, "L": 10}, result=sample_traces.multi_head()),
            BatchItem("multi", {"B": 1, "L": 1}, result=sample_traces.verified()),
            BatchItem("cross", result=sample_traces.failed()),
            BatchItem("of another branch", error=MISSING),
        ),
    )


def reports() -> BatchResult[Report]:
    """Two reports with the same findings, one without findings, and one error."""
    return BatchResult(
        "0.1.0",
        "attnshape check --all",
        (
            BatchItem("multi", {"B": 2, "L": 10}, result=sample_reports.two_findings()),
            BatchItem("multi", {"B": 1, "L": 1}, result=sample_reports.two_findings()),
            BatchItem("cross", result=sample_reports.no_findings()),
            BatchItem("of another branch", error=MISSING),
        ),
    )


def every_text(result: ResultT) -> BatchResult[ResultT]:
    """A batch that has every field that can hold a text, with a result, an error with a hint, and one without."""
    text = "x"
    return BatchResult(
        text,
        text,
        (
            BatchItem(text, {"B": 2, text: 3}, result=result),
            BatchItem(text, error=AttnshapeError(text, text)),
            BatchItem(text, error=AttnshapeError(text)),
        ),
    )

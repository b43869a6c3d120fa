"""The interface of an output format: what it renders, each from an immutable value to text.

The texts of a `TraceView` and a `DiffView` have no control characters left; a format escapes only its own syntax. All
other texts, such as names and errors of a batch, go through `escaping.visible` first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from attnshape.model.difference import Difference, FolderDifference
    from attnshape.model.explanation import Explanation
    from attnshape.model.report import Report
    from attnshape.model.targets import FoundTargets
    from attnshape.model.trace import Trace
    from attnshape.reporters.batch_view import BatchItem, BatchResult
    from attnshape.reporters.report_view import ReportOptions
    from attnshape.reporters.trace_view import ViewOptions

Kind = Literal["trace", "report", "difference", "differences", "traces", "reports", "targets", "explanation"]
"""What a reporter can render: one value, the differences of two folders, the results of several targets, a list of
targets, or an article."""


TraceRenderer = Callable[["Trace", "ViewOptions", "Screen"], str]
ReportRenderer = Callable[["Report", "Screen", "ReportOptions"], str]
DifferenceRenderer = Callable[["Difference", str, "Screen"], str]
"""From a difference and the command that made it."""
FoldersRenderer = Callable[["FolderDifference", str, "Screen"], str]
"""From the differences of two folders and the command that made them."""
TargetsRenderer = Callable[["FoundTargets", "Screen"], str]
ExplanationRenderer = Callable[["Explanation", "Screen"], str]


@dataclass(frozen=True)
class Screen:
    """Where text is shown: the width in terminal cells, and whether colour is wanted."""

    width: int
    color: bool = False


@dataclass(frozen=True)
class BatchReporter:
    """How a format renders the results of several targets.

    A format for people shows each result under its heading as soon as it is available, and a summary at the end. A
    format that is one document has no headings and renders everything at the end.
    """

    render_summary: Callable[[BatchResult[Any], Screen], str]
    render_heading: Callable[[BatchItem[Any], Screen], str] | None = None
    """Includes the error where there is no result."""
    shows_errors: bool = True
    """Whether a person who reads the output sees which targets failed, and why."""
    selects: bool = True
    """Whether a part of each result is shown where one is chosen; of a format that can show a part of one result."""


@dataclass(frozen=True)
class Reporter:
    """An output format. What it can't render is None."""

    name: str
    trace: TraceRenderer | None = None
    report: ReportRenderer | None = None
    difference: DifferenceRenderer | None = None
    differences: FoldersRenderer | None = None
    traces: BatchReporter | None = None
    reports: BatchReporter | None = None
    targets: TargetsRenderer | None = None
    explanation: ExplanationRenderer | None = None
    selects: bool = False
    """Whether it can show a part of a trace: chosen columns, matching steps, sentences of explanation."""
    has_pictures: bool = False
    """Whether it can show a picture of the data flow beside a trace's table."""
    draws_patterns: bool = False
    """Whether it can draw attention patterns."""
    shows_behaviour: bool = False
    """Whether it shows the behaviour that a trace holds, which is then measured unless the user says otherwise."""

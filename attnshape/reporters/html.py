"""Self-contained HTML pages, for a browser, for a phone and for print.

The modules that make them are imported only where a page is asked for: other commands do without.
"""

from __future__ import annotations

from dataclasses import replace

from attnshape.model.difference import Difference, FolderDifference
from attnshape.model.explanation import Explanation
from attnshape.model.report import Report
from attnshape.model.trace import Trace
from attnshape.reporters.batch_view import BatchResult
from attnshape.reporters.columns import wide_columns
from attnshape.reporters.report_view import ReportOptions
from attnshape.reporters.reporter import BatchReporter, Reporter, Screen
from attnshape.reporters.trace_view import ViewOptions, trace_view


def _trace(trace: Trace, options: ViewOptions, screen: Screen) -> str:
    from attnshape.reporters.web.trace_page import trace_document

    columns = options.columns if options.columns is not None else wide_columns(trace)
    return trace_document(trace, trace_view(trace, replace(options, columns=columns)))


def _report(report: Report, screen: Screen, options: ReportOptions) -> str:
    from attnshape.reporters.web.report_page import report_document

    return report_document(report)


def _difference(difference: Difference, command: str, screen: Screen) -> str:
    from attnshape.reporters.web.diff_page import difference_document

    return difference_document(difference, command)


def _differences(differences: FolderDifference, command: str, screen: Screen) -> str:
    from attnshape.reporters.web.diff_page import folders_document

    return folders_document(differences, command)


def _traces(batch: BatchResult[Trace], screen: Screen) -> str:
    from attnshape.reporters.web.batch_page import traces_document

    return traces_document(batch)


def _reports(batch: BatchResult[Report], screen: Screen) -> str:
    from attnshape.reporters.web.batch_page import reports_document

    return reports_document(batch)


def _explanation(explanation: Explanation, screen: Screen) -> str:
    from attnshape.reporters.web.article_page import article_document

    return article_document(explanation)


REPORTER = Reporter(
    "html",
    trace=_trace,
    report=_report,
    difference=_difference,
    differences=_differences,
    traces=BatchReporter(_traces, selects=False),
    reports=BatchReporter(_reports),
    explanation=_explanation,
    selects=True,
    has_pictures=True,
    draws_patterns=True,
    shows_behaviour=True,
)

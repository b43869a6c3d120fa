"""GitHub's workflow commands, which annotate the line of each finding."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET

from attnshape.model.report import Finding, Report
from attnshape.reporters.batch_view import BatchItem, distinct_findings, outcome, title, totals
from attnshape.reporters.escaping import visible
from attnshape.reporters.report_view import ReportOptions, details, labelled_lists, verdict
from attnshape.reporters.reporter import BatchReporter, Reporter

_FILE = "pyproject.toml"
"""The file that is annotated if a target declared in it fails."""

_WHOLE = ReportOptions(verbose=True)


def report_commands(report: Report) -> str:
    """Return a command for each finding, followed by the plain lines of the log."""
    lists = [f"found: {visible(report.found)}"] if report.found is not UNSET else []
    lists += [f"{label}: {' · '.join(map(visible, items))}" for label, items in labelled_lists(report, _WHOLE)]
    return "".join(f"{line}\n" for line in (*map(_command, report.findings), *lists, verdict(report)))


def batch_commands(items: Sequence[BatchItem[Report]]) -> str:
    """Return a command for each distinct finding of several reports, followed by the outcome of each target."""
    commands = [_command(finding) for finding in distinct_findings(items)]
    commands += [_error_command(item) for item in items if item.error is not None]
    log = [visible(f"target {title(item)}: {outcome(item)}") for item in items]
    return "".join(f"{line}\n" for line in (*commands, *log, totals(items)))


def _command(finding: Finding) -> str:
    source = finding.source
    location = {"file": source.file, "line": str(source.line), "col": str(source.column)} if source else {}
    properties = ",".join(
        f"{name}={_escape_property(value)}" for name, value in {**location, "title": finding.code}.items()
    )
    hint = [f"hint: {finding.hint}"] if finding.hint else []
    message = "\n".join(visible(part) for part in (finding.message, *hint, *details(finding)))
    return f"::{finding.level} {properties}::{_escape_data(message)}"


def _error_command(item: BatchItem[Report]) -> str:
    hint = [f"hint: {item.error.hint}"] if item.error and item.error.hint else []
    properties = f"file={_escape_property(_FILE)},title={_escape_property(title(item))}"
    return f"::error {properties}::{_escape_data(chr(10).join(map(visible, (outcome(item), *hint))))}"


def _escape_data(value: str) -> str:
    return value.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escape_property(value: str) -> str:
    return _escape_data(visible(value)).replace(":", "%3A").replace(",", "%2C")


REPORTER = Reporter(
    "github",
    report=lambda report, screen, options: report_commands(report),
    reports=BatchReporter(lambda batch, screen: batch_commands(batch.items)),
)

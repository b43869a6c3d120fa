"""Text for the terminal: a report, and the headings and the summary of several results."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, zip_longest
from typing import TYPE_CHECKING, Any

from msgspec import UNSET
from rich.cells import cell_len

from attnshape.errors import ExitStatus
from attnshape.model.report import Finding, Level, Pattern, Report
from attnshape.reporters import report_view
from attnshape.reporters.batch_view import COLUMNS, FAILED, BatchItem, BatchResult, outcome, sizes_text, title, totals
from attnshape.reporters.escaping import visible
from attnshape.reporters.report_view import ReportOptions
from attnshape.reporters.reporter import BatchReporter, Reporter, Screen
from attnshape.reporters.targets_view import KINDS, summary
from attnshape.reporters.terminal import (
    GAP,
    NARROWEST,
    StyledLine,
    fold_command,
    fold_words,
    header_lines,
    pad,
    render_lines,
    render_sections,
    styled,
)
from attnshape.runtime.files import ReadLines, source_lines

if TYPE_CHECKING:
    from attnshape.model.targets import FoundTargets

_INDENT = 2
_BAR = "| "
_LIST_STYLES = {"undecided": "bold yellow", "verified": "green", "not checked": "yellow"}
_LEVEL_STYLES: dict[Level, tuple[str, str]] = {
    "error": ("bold red", "red"),
    "warning": ("bold yellow", "yellow"),
    "notice": ("bold cyan", "cyan"),
}
"""The styles of a finding's first line and of its carets."""
_STATUS_STYLES = {ExitStatus.FINE: "green", ExitStatus.FOUND: "bold red", ExitStatus.CANNOT: "bold red"}


def report_text(
    report: Report,
    screen: Screen,
    options: ReportOptions = ReportOptions(),  # noqa: B008 - it is immutable
    read_lines: ReadLines = source_lines,
) -> str:
    """Return a report as text of at most the screen's width; colour only decorates. `read_lines` is for excerpts."""
    width = max(screen.width, NARROWEST)
    findings = [_finding(finding, width, read_lines, options) for finding in report.findings]
    if options.quiet:
        undecided = [
            line
            for text in report_view.undecided_texts(report, options)
            for line in styled(visible(f"{report.target}: undecided: {text}"), width, "bold yellow")
        ]
        return render_sections([*findings, undecided], screen.color) if findings or undecided else ""
    what = " · ".join(visible(part) for part in (report.target, report.dtype, report_view.sizes(report)) if part)
    sections = [header_lines(visible(report.command), what, width)]
    sections.append(styled(report_view.verdict(report), width, _verdict_style(report)))
    sections += findings
    sections += [_pattern(pattern, width) for pattern in report.patterns if options.patterns]
    sections.append(_summary(report, width, options))
    return render_sections(sections, screen.color)


def batch_heading(item: BatchItem[Any], screen: Screen) -> str:
    """Return the heading of a result, with the error below it where there is no result."""
    width = max(screen.width, NARROWEST)
    lines = _title(visible(title(item)), width)
    if item.error is not None:
        lines.append(StyledLine(""))
        lines += styled(visible(f"{FAILED}: {item.error.message}"), width, "bold red")
        lines += styled(visible(f"hint: {item.error.hint}"), width, "green") if item.error.hint else []
    return render_lines(lines, screen.color)


def batch_summary(batch: BatchResult[Any], screen: Screen) -> str:
    """Return a table with a row for each result, and the number of results with each outcome."""
    width = max(screen.width, NARROWEST)
    rows = [
        tuple(map(visible, (item.name, sizes_text(item), outcome(item, not batch.shows_reasons))))
        for item in batch.items
    ]
    kept = [place for place in range(len(COLUMNS)) if any(row[place] for row in rows)]
    table = [tuple(row[place] for place in kept) for row in (COLUMNS, *rows)]
    widths = _column_widths(table, width)
    styles = ["bold", *(_STATUS_STYLES[item.status] for item in batch.items)]
    lines = [*_title("Summary", width)]
    for row, style in zip(table, styles, strict=True):
        folded = [fold_words(cell, cell_width, hang=0) for cell, cell_width in zip(row, widths, strict=True)]
        texts = ((" " * GAP).join(map(pad, line, widths)).rstrip() for line in zip_longest(*folded, fillvalue=""))
        lines += [StyledLine(text, style) for text in texts]
    lines += [StyledLine(""), *styled(totals(batch.items), width, "bold")]
    return render_lines(lines, screen.color)


def _verdict_style(report: Report) -> str:
    if report.found_something:
        return "bold red"
    return "bold yellow" if report.undecided or report.findings else "bold green"


def _finding(finding: Finding, width: int, read_lines: ReadLines, options: ReportOptions) -> list[StyledLine]:
    where = f"{report_view.location(finding.source)}: " if finding.source else ""
    style, caret_style = _LEVEL_STYLES[finding.level]
    repeated = report_view.finding_key(finding) in options.printed
    message = report_view.AS_ABOVE if repeated else finding.message
    lines = styled(visible(f"{where}{finding.level} {finding.code} {message}"), width, style)
    if repeated:
        return lines
    found = report_view.excerpt(finding.source, finding.expression, read_lines)
    if found is not None:
        code, carets = found.fit(width - _INDENT - len(_BAR))
        lines.append(_indented(_BAR + code))
        lines += [_indented(_BAR + carets, caret_style)] if carets else []
    if finding.hint:
        lines += [_indented(text, "green") for text in fold_words(f"hint: {visible(finding.hint)}", width - _INDENT)]
    details = [text for detail in report_view.details(finding) for text in fold_words(visible(detail), width - _INDENT)]
    return lines + [_indented(text, "dim") for text in details]


def _pattern(pattern: Pattern, width: int) -> list[StyledLine]:
    rows = report_view.pattern_rows(pattern, width - _INDENT)
    return [*styled(visible(report_view.pattern_title(pattern)), width, "bold"), *map(_indented, rows)]


def _summary(report: Report, width: int, options: ReportOptions) -> list[StyledLine]:
    lines: list[StyledLine] = []
    if report.found is not UNSET:
        lines += [StyledLine(text) for text in fold_command(f"found: {visible(report.found)}", width)]
    for label, items in report_view.labelled_lists(report, options):
        lines += styled(f"{label}: {' · '.join(map(visible, items))}", width, _LIST_STYLES.get(label, ""))
    closing = visible(report_view.closing(report, options))
    return lines + (styled(closing, width, "dim") if closing else [])


def _indented(text: str, style: str = "") -> StyledLine:
    return StyledLine(" " * _INDENT + text, style)


def _title(text: str, width: int) -> list[StyledLine]:
    lines = styled(text, width, "bold cyan", hang=0)
    return [*lines, StyledLine("=" * max(cell_len(line.text) for line in lines), "cyan")]


def _column_widths(table: Sequence[tuple[str, ...]], width: int) -> list[int]:
    """Return the widths of the columns: the widest one shrinks first, down to an equal share."""
    widths = [max(cell_len(row[place]) for row in table) for place in range(len(table[0]))]
    room = width - GAP * (len(widths) - 1)
    while sum(widths) > room:
        widths[widths.index(max(widths))] -= 1
    return widths


BATCH = BatchReporter(batch_summary, batch_heading)
"""How terminals show several results, whether traces or reports."""


def targets_text(found: FoundTargets, screen: Screen) -> str:
    """Return the targets below their files, at most the screen's width; colour only decorates."""
    width = max(screen.width, NARROWEST)
    names = max((cell_len(visible(one.name)) for one in found.targets), default=0)
    kinds = max((len(KINDS[one.kind]) for one in found.targets), default=0)
    lines: list[StyledLine] = []
    for file, members in groupby(found.targets, lambda one: one.file):
        lines += styled(visible(file), width, "bold cyan")
        for one in members:
            style = "" if one in found.to_run else "dim"
            text = f"{one.line:>6}  {pad(visible(one.name), names)}  {KINDS[one.kind]:<{kinds}}  {visible(one.why)}"
            lines += styled(text, width, style, hang=8)
    lines += [line for text in summary(found) for line in styled(visible(text), width, "dim")]
    return render_lines(lines, screen.color)


REPORTER = Reporter("text", report=report_text, reports=BATCH, targets=targets_text, draws_patterns=True)

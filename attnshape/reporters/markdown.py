"""GitHub-flavoured Markdown that reads well unrendered too: traces, differences, reports and batches."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from attnshape.model.report import Finding, Pattern, Report
from attnshape.reporters import report_view
from attnshape.reporters.batch_view import COLUMNS, FAILED, BatchItem, BatchResult, outcome, sizes_text, title, totals
from attnshape.reporters.escaping import code, code_cell, prose, prose_with_code, visible
from attnshape.reporters.markdown_blocks import fenced, markdown_table
from attnshape.reporters.report_view import ReportOptions
from attnshape.reporters.reporter import BatchReporter, Reporter, Screen
from attnshape.reporters.targets_view import KINDS, summary
from attnshape.reporters.trace_view import FooterLine, Header, MarkedTensor, TraceView, ViewOptions, trace_view
from attnshape.runtime.files import ReadLines, source_lines

if TYPE_CHECKING:
    from attnshape.model.difference import Difference, FolderDifference
    from attnshape.model.explanation import Explanation
    from attnshape.model.targets import FoundTargets
    from attnshape.model.trace import Trace
    from attnshape.reporters.diff_view import DiffCell, DiffRow, DiffView

_LABELS = {"undecided": "**undecided**"}
_CODE_WIDTH = 100
"""How wide code may be before it is cut; where it is pasted, wider code scrolls."""


def trace_markdown(view: TraceView) -> str:
    """Return a trace as Markdown: the run, the table, and below it lists of explanations and totals."""
    parts = [_header(view.header)]
    if view.summary:
        parts.append("\n".join(f"- {prose(text)}" for text in view.summary))
    if view.rows:
        rows: list[tuple[str, ...]] = [view.names]
        for row in view.rows:
            if row.heading:
                rows.append(("", f"**{row.heading}**", *[""] * (len(view.columns) - 1)))
            pairs = zip(view.columns, row.cells[1:], strict=True)
            cells = (code_cell(cell) if column.code else prose(cell) for column, cell in pairs)
            rows.append((row.cells[0], *cells))
        parts.append(markdown_table(rows, numbered=True))
    explanations = [f"- **{row.explanation[0]}** {prose(row.explanation[1])}" for row in view.rows if row.explanation]
    lists = ["\n".join(items) for items in (explanations, map(_footer_item, view.footer))]
    lists = [text for text in lists if text]
    # two lists in a row would become one: an invisible comment separates them
    return "\n\n".join([*parts, "\n\n<!-- -->\n\n".join(lists)]).rstrip() + "\n"


def diff_markdown(view: DiffView) -> str:
    """Return a difference as Markdown: the two sides, a list of what differs in all, and the table.

    A terminal shows the end of what is printed, and a page its beginning.
    """
    parts = [_header(view.header), "\n".join(map(_footer_item, view.footer))]
    if view.rows:
        parts.append(markdown_table([view.names, *(_diff_cells(view, row) for row in view.rows)], numbered=True))
    return "\n\n".join(parts).rstrip() + "\n"


def folders_markdown(differences: FolderDifference, command: str, screen: Screen) -> str:
    """Return the differences of two folders: a summary, then each file that differs under a heading."""
    from attnshape.reporters.diff_view import diff_view, differing_files, folder_summary

    parts = [code(visible(command))] if command else []
    parts.append(f"**{prose(f'{differences.old} → {differences.new}')}**")
    parts.append("\n".join(f"- {prose(text)}" for text in folder_summary(differences)))
    for file in differing_files(differences):
        parts += [f"## {prose(file.name)}", diff_markdown(diff_view(file.difference)).rstrip()]
    return "\n\n".join(parts) + "\n"


def report_markdown(
    report: Report,
    options: ReportOptions = ReportOptions(),  # noqa: B008 - it is immutable
    read_lines: ReadLines = source_lines,
) -> str:
    """Return a report as Markdown, with excerpts of the lines that `read_lines` returns."""
    findings = [_finding(finding, read_lines, options) for finding in report.findings]
    if options.quiet:
        name = prose(report.target)
        undecided = [
            f"- {name}: undecided: {prose_with_code(text)}" for text in report_view.undecided_texts(report, options)
        ]
        return "".join(f"{part}\n" for part in ("\n\n".join([*findings, "\n".join(undecided)]).strip(),) if part)
    parts = [
        _header(
            Header(report.command, report.target, tuple(filter(None, (report.dtype, report_view.sizes(report)))), ())
        )
    ]
    parts.append(f"**{prose(report_view.verdict(report))}**")
    parts += findings
    parts += [_pattern(pattern) for pattern in report.patterns if options.patterns]
    items = [
        f"- {_LABELS.get(label, label)}: {' · '.join(map(prose_with_code, items))}"
        for label, items in report_view.labelled_lists(report, options)
    ]
    if report.found is not UNSET:
        items.insert(0, f"- found: {code(report.found)}")
    closing = report_view.closing(report, options)
    parts.append("\n".join([*items, *([f"- {prose(closing)}"] if closing else [])]))
    return "\n\n".join(part for part in parts if part) + "\n"


def batch_heading(item: BatchItem[Any], screen: Screen) -> str:
    """Return the heading of a result, with the error below it where there is no result."""
    # number signs at the end of a heading would be taken for its report_view.closing sequence
    parts = ["## " + re.sub(r" (#+)$", r" \\\1", prose(title(item)))]
    if item.error is not None:
        parts.append(f"**{FAILED}:** {prose_with_code(item.error.message)}")
        parts += [f"- hint: {prose_with_code(item.error.hint)}"] if item.error.hint else []
    return "\n\n".join(parts) + "\n"


def batch_summary(batch: BatchResult[Any], screen: Screen) -> str:
    """Return a table with a row for each result, and the number of results with each outcome."""
    rows = [
        (prose(item.name), code_cell(sizes_text(item)), prose(outcome(item, not batch.shows_reasons)))
        for item in batch.items
    ]
    return f"## Summary\n\n{markdown_table([COLUMNS, *rows])}\n\n**{prose(totals(batch.items))}**\n"


def _header(header: Header) -> str:
    lines = [code(header.command)] if header.command else []
    target = [f"**{prose(header.target)}**"] if header.target.strip() else []
    lines.append(" · ".join([*target, *map(prose, header.details)]))
    return "\n\n".join([*(line for line in lines if line), prose(", ".join(header.sizes))]).rstrip()


def _footer_item(line: FooterLine) -> str:
    flags = f" {code(line.flags)}" if line.flags else ""
    return "\n".join([f"- {prose_with_code(line.text)}{flags}", *(f"  - {_tensor(one)}" for one in line.tensors)])


def _tensor(one: MarkedTensor) -> str:
    signature, shape = (
        " ".join(f"**{text}**" if place in one.marks and text else text for place, text in enumerate(map(prose, words)))
        for words in (one.signature, one.shape)
    )
    return " ".join(part for part in (code(one.name), signature.strip(), f"({shape or 'scalar'})") if part)


def _diff_cells(view: DiffView, row: DiffRow) -> tuple[str, ...]:
    # numbers and signs need no escaping: inside a cell they start no list
    pairs = zip(view.columns, row.cells, strict=True)
    return (row.number, *(_diff_cell(cell, column.code and row.kind != "folded") for column, cell in pairs))


def _diff_cell(cell: DiffCell, is_code: bool) -> str:
    escape = code_cell if is_code else prose
    return escape(cell.text) if cell.old is None else f"{escape(cell.old)} → {escape(cell.text)}"


def _finding(finding: Finding, read_lines: ReadLines, options: ReportOptions) -> str:
    where = [code(report_view.location(finding.source))] if finding.source else []
    repeated = report_view.finding_key(finding) in options.printed
    message = report_view.AS_ABOVE if repeated else prose_with_code(finding.message)
    parts = [" ".join([f"{finding.level} **{prose(finding.code)}**", *where, message])]
    if repeated:
        return parts[0]
    found = report_view.excerpt(finding.source, finding.expression, read_lines)
    if found is not None:
        parts.append(fenced([line for line in found.fit(_CODE_WIDTH) if line], "python"))
    hints = [f"- hint: {prose_with_code(finding.hint)}"] if finding.hint else []
    details = [f"- {prose_with_code(detail)}" for detail in report_view.details(finding)]
    parts.append("\n".join([*hints, *details]))
    return "\n\n".join(parts)


def _pattern(pattern: Pattern) -> str:
    rows = report_view.pattern_rows(pattern, _CODE_WIDTH)
    return "\n\n".join([prose(report_view.pattern_title(pattern)), *([fenced(rows, "text")] if rows else [])])


def _render_trace(trace: Trace, options: ViewOptions, screen: Screen) -> str:
    table = trace_markdown(trace_view(trace, options))
    if not options.picture:
        return table
    from attnshape.reporters.mermaid import picture  # a default trace does without

    return f"{table}\n{picture(trace)}"


def _render_difference(difference: Difference, command: str, screen: Screen) -> str:
    from attnshape.reporters.diff_view import diff_view  # only comparisons pay for the import

    return diff_markdown(diff_view(difference, command))


def _render_explanation(explanation: Explanation, screen: Screen) -> str:
    from attnshape.reporters.article_markdown import explanation_markdown  # only articles pay for the import

    return explanation_markdown(explanation)


_BATCH = BatchReporter(batch_summary, batch_heading)


def targets_markdown(found: FoundTargets) -> str:
    """Return the targets as a Markdown table, with the lines below it as a list."""
    rows = [(code_cell(one.target), str(one.line), KINDS[one.kind], code_cell(one.why)) for one in found.targets]
    table = [markdown_table([("target", "line", "kind", "shown by"), *rows])] if rows else []
    return "\n\n".join([*table, "\n".join(f"- {prose(text)}" for text in summary(found))]) + "\n"


REPORTER = Reporter(
    "markdown",
    trace=_render_trace,
    report=lambda report, screen, options: report_markdown(report, options),
    difference=_render_difference,
    differences=folders_markdown,
    traces=_BATCH,
    reports=_BATCH,
    targets=lambda found, screen: targets_markdown(found),
    explanation=_render_explanation,
    selects=True,
    has_pictures=True,
    draws_patterns=True,
)

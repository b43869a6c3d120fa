"""The page of several results: a table of all of them, then each one, folded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attnshape.errors import ExitStatus
from attnshape.model.report import Report
from attnshape.model.trace import Trace
from attnshape.reporters.batch_view import COLUMNS, FAILED, BatchItem, BatchResult, outcome, sizes_text, title, totals
from attnshape.reporters.columns import wide_columns
from attnshape.reporters.trace_view import Header, ViewOptions, trace_view
from attnshape.reporters.web.document import document
from attnshape.reporters.web.markup import code, escaped, page_header, prose
from attnshape.reporters.web.report_page import report_section
from attnshape.reporters.web.trace_page import trace_section

_TONES = {ExitStatus.FINE: "good", ExitStatus.FOUND: "bad", ExitStatus.CANNOT: "bad"}


def traces_document(batch: BatchResult[Trace]) -> str:
    """Return the page of several traces."""
    return _document(batch, "trace", _trace)


def reports_document(batch: BatchResult[Report]) -> str:
    """Return the page of several reports."""
    return _document(batch, "check", report_section)


def _trace(trace: Trace) -> str:
    return trace_section(trace, trace_view(trace, ViewOptions(wide_columns(trace))))


def _document(batch: BatchResult[Any], kind: str, section: Callable[[Any], str]) -> str:
    # a column that would be empty is left out
    has_sizes = any(map(sizes_text, batch.items))
    names = "".join(f'<th scope="col">{name}</th>' for name in COLUMNS if has_sizes or name != "sizes")
    rows = "\n".join(_row(item, number, has_sizes) for number, item in enumerate(batch.items, 1))
    results = "\n".join(_result(item, number, section) for number, item in enumerate(batch.items, 1))
    heading = totals(batch.items)
    body = f"""\
{page_header(kind, Header(batch.command, heading, (), ()))}
<main>
<section class="panel">
<h2>Results</h2>
<div class="scroll" tabindex="0" role="region" aria-label="results">
<table>
<thead><tr>{names}</tr></thead>
<tbody>
{rows}
</tbody>
</table>
</div>
</section>
<div class="results">
{results}
</div>
</main>"""
    return document(heading, body, batch.version)


def _row(item: BatchItem[Any], number: int, has_sizes: bool) -> str:
    link = f'<a href="#result-{number}">{escaped(item.name)}</a>'
    shown = f'<td class="{_TONES[item.status]} c-step">{prose(outcome(item))}</td>'
    sizes = f"<td>{code(sizes_text(item))}</td>" if has_sizes else ""
    return f"<tr><td>{link}</td>{sizes}{shown}</tr>"


def _result(item: BatchItem[Any], number: int, section: Callable[[Any], str]) -> str:
    summary = f'{escaped(title(item))} <span class="hint {_TONES[item.status]}">{prose(outcome(item, False))}</span>'
    if item.result is not None:
        content = section(item.result)
    else:
        error = item.error
        hint = f"<p>hint: {prose(error.hint)}</p>" if error is not None and error.hint else ""
        content = f'<p class="bad"><strong>{FAILED}:</strong> {prose(error.message if error else "")}</p>{hint}'
    return f'<details id="result-{number}">\n<summary>{summary}</summary>\n{content}\n</details>'

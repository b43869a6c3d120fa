"""The page of a trace: the run and its summary, and places for what the script shows of its data."""

from __future__ import annotations

from msgspec import UNSET

from attnshape.model.trace import Trace
from attnshape.reporters.html_table import trace_html
from attnshape.reporters.trace_view import FooterLine, TraceView
from attnshape.reporters.web.document import document, embedded_json
from attnshape.reporters.web.markup import SymbolColors, escaped, footer_lines, items, page_header, prose
from attnshape.reporters.web.patterns import key_patterns
from attnshape.reporters.web.source_lines import source_figure
from attnshape.reporters.web.trace_data import trace_data
from attnshape.runtime.files import ReadLines, source_lines

_MOST_PLAIN_ROWS = 1000
"""How many rows the table has that is shown where no script runs."""


def trace_document(trace: Trace, view: TraceView, read_lines: ReadLines = source_lines) -> str:
    """Return the page of a trace."""
    header = page_header("trace", view.header)
    body = f"{header}\n<main>\n{trace_section(trace, view, read_lines)}\n</main>"
    return document(trace.target, body, trace.attnshape)


def trace_section(trace: Trace, view: TraceView, read_lines: ReadLines = source_lines) -> str:
    """Return what the page shows below its header."""
    verdicts = [line for line in view.footer if line.tone != "plain"]
    others = [line for line in view.footer if line.tone == "plain"]
    colors = SymbolColors(trace.sizes)
    summary = [*map(colors.prose, view.summary), *footer_lines(others, colors)]
    return f"""\
<div class="trace">
<div class="layout">
<div class="main-column">
{_panel("summary", "Summary", f"{_verdicts(verdicts, colors)}{_failed(trace, read_lines)}{items(summary)}")}
<noscript>{_plain_table(view)}</noscript>
{_panel("flow", "Data flow", _part("flow"))}
{_behaviour(trace)}
{_panel("steps", "Steps", _part("steps", '<p class="loading">loading …</p>'))}
</div>
<div class="side-column">
{_panel("sizes-panel", "Sizes", _part("sizes"))}
{_part("details")}
</div>
</div>
{embedded_json(trace_data(trace, view, read_lines))}
</div>"""


def _behaviour(trace: Trace) -> str:
    """Return what small runs showed of the behaviour, if it was measured: topic by topic, why not, and patterns."""
    if trace.behaviour is UNSET:
        return ""
    facts = []
    for one in trace.behaviour.properties:
        unknown = [f"unknown: {reason}" for reason in one.unknown]
        texts = [*(statement.text for statement in one.statements), *unknown]
        if texts:
            facts.append(f"<dt>{escaped(one.topic)}</dt><dd>{'; '.join(map(prose, texts))}</dd>")
    why = [f"<p>{prose(trace.behaviour.unknown)}</p>"] if trace.behaviour.unknown else []
    listed = f'<dl class="facts">{"".join(facts)}</dl>' if facts else ""
    seen = key_patterns(trace.behaviour.visible)
    drawn = f"<h3>Which keys each query sees</h3>{seen}" if seen else ""
    return _panel("behaviour", "Behaviour", "".join([*why, listed, drawn]))


def _failed(trace: Trace, read_lines: ReadLines) -> str:
    """Return the lines at which the code failed."""
    failure = trace.failure
    if failure is None or failure.source is None:
        return ""
    return source_figure(failure.source, failure.expression or "", read_lines)


def _verdicts(lines: list[FooterLine], colors: SymbolColors) -> str:
    """Return what failed, and which expectations hold: each as a line that stands out."""
    texts = zip(lines, footer_lines(lines, colors), strict=True)
    return "".join(f'<div class="verdict {line.tone}">{text}</div>' for line, text in texts)


def _panel(name: str, title: str, content: str) -> str:
    return f'<section class="panel {name}">\n<h2>{title}</h2>\n{content}\n</section>'


def _part(name: str, content: str = "") -> str:
    return f'<div data-part="{name}">{content}</div>'


def _plain_table(view: TraceView) -> str:
    """Return the table without a script, for readers that don't run any."""
    if len(view.rows) > _MOST_PLAIN_ROWS:
        return f"<p>The table of {len(view.rows):,} rows needs JavaScript.</p>"
    return trace_html(view)

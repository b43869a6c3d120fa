"""Hostile text is only text: every payload in every field, in every format.

By default every payload is in all fields at once, and every field has some payloads; `-m nightly` takes each payload in
each field alone. `oracles` says what must hold of a format.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import pytest
from hypothesis import example, given, settings
from msgspec.structs import replace

from attnshape.comparison.compare import compare
from attnshape.comparison.outline import outline
from attnshape.errors import AttnshapeError
from attnshape.model.difference import Difference, FolderDifference
from attnshape.model.explanation import Explanation
from attnshape.model.report import Report
from attnshape.model.trace import Source, Trace
from attnshape.reporters.batch_view import BatchItem, BatchResult
from attnshape.reporters.columns import COLUMNS
from attnshape.reporters.registry import find_renderer, formats_for
from attnshape.reporters.report_view import ReportOptions
from attnshape.reporters.reporter import Kind, Screen
from attnshape.reporters.trace_view import ViewOptions
from tests.reporters import (
    oracles,
    sample_batches,
    sample_differences,
    sample_explanations,
    sample_reports,
    sample_traces,
)
from tests.reporters.hostile_text import BLANK, HARMLESS, PAYLOADS, TEXT, declared_fields, text_fields, with_text

WIDTHS = (24, 40, 80, 100, oracles.UNFOLDED)
EXPLAINED = ViewOptions(explain=True)
EVERY_COLUMN = ViewOptions(tuple(COLUMNS.values()))
LINES = "lines.py"
"""The name of a file whose lines are hostile."""


@dataclass(frozen=True)
class SourceLines:
    """A report with an excerpt of its source line, in which the finding begins at a column."""

    line: str
    before: str = "x = "

    def report(self) -> Report:
        text = f"{self.before}{self.line}"
        linecache.cache[LINES] = (len(text), None, [f"    {text}\n"], LINES)
        source = Source(LINES, 1, len(self.before) + 5, "f")
        return sample_reports.report_of(replace(sample_reports.SCALE, source=source, expression=self.line))


VALUES: dict[str, tuple[Kind, Callable[[], Any]]] = {
    "trace": ("trace", sample_traces.every_text),
    "attention": ("trace", sample_traces.fused),
    "report": ("report", sample_reports.every_text),
    "difference": ("difference", sample_differences.every_text),
    "attentions": ("difference", lambda: compare(*map(outline, (sample_traces.multi_head(), sample_traces.fused())))),
    "folders": ("differences", sample_differences.folders),
    "traces": ("traces", lambda: sample_batches.every_text(sample_traces.failed())),
    "reports": ("reports", lambda: sample_batches.every_text(sample_reports.every_text())),
    "source lines": ("report", lambda: SourceLines("x")),
    "explanation": ("explanation", sample_explanations.every_text),
}


@cache
def value_of(name: str, text: str = HARMLESS, only: str | None = None) -> Any:
    return with_text(VALUES[name][1](), text, only)


def render(form: str, kind: Kind, value: Any, width: int, options: ViewOptions, color: bool = False) -> str:
    screen = Screen(width, color)
    if isinstance(value, SourceLines):
        value = value.report()
    match kind:
        case "trace":
            return find_renderer(form, "trace")(
                value, options if form not in ("json", "mermaid") else ViewOptions(), screen
            )
        case "report":
            shown = ReportOptions(patterns=form in ("text", "markdown"), verbose=True)
            return find_renderer(form, "report")(value, screen, shown)
        case "difference":
            return find_renderer(form, "difference")(value, value.old.target, screen)
        case "differences":
            return find_renderer(form, "differences")(value, value.old, screen)
        case "explanation":
            return find_renderer(form, "explanation")(value, screen)
        case "traces" | "reports":
            reporter = find_renderer(form, kind)
            headings = [reporter.render_heading(item, screen) for item in value.items if reporter.render_heading]
            return "\n".join([*headings, reporter.render_summary(value, screen)])


def outputs(name: str) -> Iterator[tuple[str, Callable[[Any], str], Callable[[str, str, str], str]]]:
    """Yield each output of a value: its name, what renders it, and what checks it."""
    kind, _ = VALUES[name]
    terminal = "text" if kind in ("report", "reports") else "table"
    several = kind == "trace"
    for width in WIDTHS if terminal in formats_for(kind) else ():
        for options in (EXPLAINED, EVERY_COLUMN) if several and width != oracles.UNFOLDED else (EVERY_COLUMN,):
            columns = ", every column" if options is EVERY_COLUMN else ""
            yield (
                f"{terminal} {width}{columns}",
                partial(render, terminal, kind, width=width, options=options),
                lambda text, harmless, payload, width=width: oracles.check_terminal(text, harmless, width),
            )
    if terminal in formats_for(kind):
        yield (
            f"{terminal} in colour",
            lambda value: render(terminal, kind, value, 80, EXPLAINED, color=True),
            lambda text, harmless, payload: oracles.check_terminal(text, harmless, 80),
        )
    for form, check in CHECKS.items():
        if form not in formats_for(kind):
            continue
        if isinstance(VALUES[name][1](), SourceLines) and form == "json":
            continue  # it contains no lines of source
        options = ViewOptions(EVERY_COLUMN.columns, explain=True)
        yield form, partial(render, form, kind, width=100, options=options), check
    if isinstance(VALUES[name][1](), Trace | Report | Difference):
        yield "str", str, lambda text, harmless, payload: oracles.check_terminal(text, harmless, 80)
        yield "_repr_markdown_", lambda value: value._repr_markdown_(), CHECKS["markdown"]
    if isinstance(VALUES[name][1](), Trace):
        yield "_repr_html_", lambda value: value._repr_html_(), _check_div


def _check_div(text: str, harmless: str, payload: str) -> str:
    return oracles.check_html(text, harmless)


CHECKS: dict[str, Callable[[str, str, str], str]] = {
    "markdown": lambda text, harmless, payload: oracles.check_markdown(text, harmless),
    "json": oracles.check_json,
    "html": lambda text, harmless, payload: oracles.check_page(text, harmless),
    "mermaid": lambda text, harmless, payload: oracles.check_mermaid(text, harmless),
    "github": lambda text, harmless, payload: oracles.check_github(text, harmless),
    "sarif": lambda text, harmless, payload: oracles.check_sarif(text, harmless),
    "notebook": lambda text, harmless, payload: oracles.check_notebook(text, harmless),
}


def _outputs() -> Iterator[tuple[str, str, bool]]:
    for name in VALUES:
        yield from ((name, form, form.startswith(QUICK)) for form, _, _ in outputs(name))


QUICK = ("table 40", "text 40", f"table {oracles.UNFOLDED}", f"text {oracles.UNFOLDED}", *CHECKS, "_repr_html_")
"""The outputs that are tested by default."""
OUTPUTS = [
    pytest.param(name, form, id=f"{name}-{form}", marks=() if quick else pytest.mark.slow)
    for name, form, quick in _outputs()
]


@cache
def output_of(name: str, form: str) -> tuple[Callable[[Any], str], Callable[[str, str, str], str], str, str]:
    """Return what renders and what checks an output, the output for a harmless text, and what is shown of it."""
    rendered, check = next((rendered, check) for label, rendered, check in outputs(name) if label == form)
    harmless = rendered(value_of(name))
    return rendered, check, harmless, check(harmless, harmless, HARMLESS)


def check_cell(name: str, form: str, payload: str, only: str | None = None) -> None:
    rendered, check, harmless, harmless_text = output_of(name, form)
    text = check(rendered(with_text(VALUES[name][1](), payload, only)), harmless, payload)
    folded = form.startswith(("table", "text", "str")) and str(oracles.UNFOLDED) not in form
    if only is None and len(payload) < 40 and re.fullmatch(r"(?!.*(::|##|`))[!-~ ]+", payload) and not folded:
        # nothing of it is lost
        shown, expected = (" ".join(one.split()) for one in (text, payload))
        assert expected in shown or HARMLESS not in harmless_text


@pytest.mark.parametrize(("name", "form"), OUTPUTS)
def test_payloads_in_all_fields(name: str, form: str) -> None:
    # a fifth of them, another one for each output
    first = len(name + form) % 5
    for payload in [*PAYLOADS.values()][first::5]:
        check_cell(name, form, payload)


@pytest.mark.parametrize(("name", "form"), OUTPUTS)
def test_each_field(name: str, form: str) -> None:
    payloads = list(PAYLOADS.values())
    for number, field in enumerate(text_fields(VALUES[name][1]())):
        check_cell(name, form, payloads[(7 * number + len(form)) % len(payloads)], field)


@pytest.mark.nightly
@pytest.mark.parametrize("payload", PAYLOADS)
@pytest.mark.parametrize("name", VALUES)
def test_each_payload_in_each_field_of_each_output(name: str, payload: str) -> None:
    for form, _, _ in outputs(name):
        for field in (None, *text_fields(VALUES[name][1]())):
            check_cell(name, form, PAYLOADS[payload], field)


@pytest.mark.parametrize(("name", "form"), [one for one in OUTPUTS if not one.marks])
@settings(deadline=None, max_examples=10)
@given(text=TEXT.filter(lambda text: text.strip() != ""))
@example(text="#\n")
def test_any_text(name: str, form: str, text: str) -> None:
    check_cell(name, form, text)


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("blank", BLANK)
def test_blank_text(name: str, blank: str) -> None:
    for form, rendered, _ in outputs(name):
        text = rendered(with_text(VALUES[name][1](), blank))
        if form == "markdown":
            active = {"html_inline", "link_open", "image", "em_open", "s_open", "code_block", "hr"}
            assert not active & {token.type for token in oracles.markdown_tokens(text)}
        elif form not in ("json", "sarif", "notebook"):
            oracles.check_lines(oracles.without_style(text))


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("trace", (Trace,)),
        ("report", (Report,)),
        ("difference", (Difference,)),
        ("folders", (FolderDifference,)),
        ("explanation", (Explanation,)),
        ("reports", (BatchResult, BatchItem, AttnshapeError, Report)),
    ],
)
def test_every_field_that_can_hold_a_text_is_in_the_table(name: str, kinds: tuple[type, ...]) -> None:
    declared = {field for kind in kinds for field in declared_fields(kind)}
    ours = {"Trace.schema", "Report.schema", "Explanation.schema"}
    assert declared - ours <= set(text_fields(VALUES[name][1]()))


@pytest.mark.parametrize("payload", PAYLOADS)
def test_text_never_adds_colour(payload: str) -> None:
    for name in ("trace", "report", "difference", "folders", "traces"):
        kind, value = VALUES[name][0], with_text(VALUES[name][1](), PAYLOADS[payload])
        form = "text" if kind == "report" else "table"
        plain, colored = (render(form, kind, value, 80, EXPLAINED, color) for color in (False, True))
        assert "\x1b[" in colored
        assert oracles.without_style(colored) == plain


@pytest.mark.parametrize(
    ("before", "line"), [("##", "[error]x"), ("#", "#[error]x"), (":", ":error::x"), ("", "::error::x")]
)
@pytest.mark.parametrize("form", ["text", "markdown"])
def test_excerpt_starts_within_a_command(before: str, line: str, form: str) -> None:
    oracles.check_no_commands(render(form, "report", SourceLines(line, before), 80, EXPLAINED))


@pytest.mark.parametrize("payload", PAYLOADS)
@pytest.mark.parametrize("name", ["trace", "attention"])
def test_saved_trace_reads_back(name: str, payload: str) -> None:
    trace = with_text(VALUES[name][1](), PAYLOADS[payload])
    assert Trace.from_json(trace.to_json()) == trace
    assert Trace.from_json(trace.to_json().encode()) == trace

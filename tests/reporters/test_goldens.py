"""The exact text of each format.

`pytest --update-goldens tests/reporters/test_goldens.py` rewrites the files: read each before you commit it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

from attnshape.checks.rules.pages import page, pages
from attnshape.reporters.batch_view import BatchResult
from attnshape.reporters.columns import COLUMNS
from attnshape.reporters.github import report_commands
from attnshape.reporters.html_table import trace_html
from attnshape.reporters.markdown import report_markdown
from attnshape.reporters.reference_pages import glossary_markdown, glossary_text, rule_list, rule_page
from attnshape.reporters.registry import find_renderer
from attnshape.reporters.report_view import ReportOptions
from attnshape.reporters.reporter import Screen
from attnshape.reporters.text import report_text
from attnshape.reporters.trace_view import ViewOptions, trace_view
from tests.goldens import assert_golden
from tests.reporters import sample_batches, sample_reports, sample_traces

GOLDENS = Path(__file__).parent / "goldens"
EXPLAINED = ViewOptions(explain=True)
WHOLE = ReportOptions(patterns=True, verbose=True)
EVERY_COLUMN = ViewOptions(tuple(COLUMNS.values()))
READ = sample_reports.read_lines


def trace(name: str, sample: str, width: int, options: ViewOptions = ViewOptions()) -> Callable[[], str]:  # noqa: B008
    return lambda: find_renderer(name, "trace")(getattr(sample_traces, sample)(), options, Screen(width))


def div(sample: str, options: ViewOptions = ViewOptions()) -> Callable[[], str]:  # noqa: B008
    return lambda: trace_html(trace_view(getattr(sample_traces, sample)(), options))


def text(sample: str, width: int, options: ReportOptions = ReportOptions()) -> Callable[[], str]:  # noqa: B008
    return lambda: report_text(getattr(sample_reports, sample)(), Screen(width), options, READ)


def markdown(sample: str, options: ReportOptions = ReportOptions()) -> Callable[[], str]:  # noqa: B008
    return lambda: report_markdown(getattr(sample_reports, sample)(), options, READ)


def batch(name: str, kind: Literal["traces", "reports"], width: int = 100) -> Callable[[], str]:
    return lambda: batch_document(name, kind, getattr(sample_batches, kind)(), width)


def batch_document(name: str, kind: Literal["traces", "reports"], results: BatchResult, width: int = 100) -> str:
    """Return the output of a format for a batch, with a placeholder for each result."""
    reporter, screen = find_renderer(name, kind), Screen(width)
    parts = []
    for item in results.items if reporter.render_heading is not None else ():
        parts.append(reporter.render_heading(item, screen) + "\n")
        parts += [f"<{type(item.result).__name__}>\n\n"] if item.result is not None else []
    return "".join((*parts, reporter.render_summary(results, screen)))


TEXTS: dict[str, Callable[[], str]] = {
    "multi_head_table_60": trace("table", "multi_head", 60),
    "multi_head_table_80": trace("table", "multi_head", 80),
    "multi_head_table_100": trace("table", "multi_head", 100),
    "multi_head_table_160": trace("table", "multi_head", 160),
    "multi_head_table_100_explained": trace("table", "multi_head", 100, EXPLAINED),
    "multi_head_table_320_every_column": trace("table", "multi_head", 320, EVERY_COLUMN),
    "multi_head_table_100_match": trace("table", "multi_head", 100, ViewOptions(match="concat,scores,Wo")),
    "multi_head_markdown": trace("markdown", "multi_head", 80),
    "multi_head_markdown_explained": trace("markdown", "multi_head", 80, EXPLAINED),
    "multi_head_mermaid": trace("mermaid", "multi_head", 80),
    "multi_head_markdown_picture": trace("markdown", "multi_head", 80, ViewOptions(picture=True)),
    "fused_mermaid": trace("mermaid", "fused", 80),
    "multi_head_html_explained": div("multi_head", EXPLAINED),
    "fused_table_100_explained": trace("table", "fused", 100, EXPLAINED),
    "fused_markdown": trace("markdown", "fused", 80),
    "verified_table_100": trace("table", "verified", 100),
    "verified_markdown": trace("markdown", "verified", 100),
    "failed_table_80": trace("table", "failed", 80),
    "failed_markdown": trace("markdown", "failed", 80),
    "failed_html": div("failed"),
    "glossary_80": lambda: glossary_text(80),
    "glossary_markdown": glossary_markdown,
    "two_findings_text_80": text("two_findings", 80, WHOLE),
    "two_findings_text_40": text("two_findings", 40),
    "two_findings_text_80_quiet": text("two_findings", 80, ReportOptions(quiet=True)),
    "two_findings_markdown_quiet": markdown("two_findings", ReportOptions(quiet=True)),
    "incomplete_text_80": text("incomplete", 80),
    "incomplete_markdown": markdown("incomplete"),
    "incomplete_text_80_quiet": text("incomplete", 80, ReportOptions(quiet=True)),
    "two_findings_text_120": text("two_findings", 120),
    "two_findings_markdown": markdown("two_findings", WHOLE),
    "two_findings_github": lambda: report_commands(sample_reports.two_findings()),
    "two_findings_json": lambda: sample_reports.two_findings().to_json() + "\n",
    "every_level_text_80": text("every_level", 80),
    "every_level_markdown": markdown("every_level"),
    "every_level_github": lambda: report_commands(sample_reports.every_level()),
    "no_findings_text_80": text("no_findings", 80),
    "no_findings_markdown": markdown("no_findings"),
    "nothing_examined_text_80": text("nothing_examined", 80),
    "nothing_examined_markdown": markdown("nothing_examined"),
    "rules_80": lambda: rule_list(pages(), 80),
    "rule_as201_80": lambda: rule_page(page("AS201"), 80, color=False),
    "traces_table_80": batch("table", "traces", 80),
    "traces_table_100": batch("table", "traces", 100),
    "traces_markdown": batch("markdown", "traces"),
    "reports_text_80": batch("text", "reports", 80),
    "reports_text_100": batch("text", "reports", 100),
    "reports_text_40": batch("text", "reports", 40),
    "reports_markdown": batch("markdown", "reports"),
    "reports_github": batch("github", "reports"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_golden(name: str) -> None:
    assert_golden(GOLDENS / f"{name}.txt", TEXTS[name]())


def test_every_golden_is_used() -> None:
    assert {path.stem for path in GOLDENS.glob("*.txt")} == set(TEXTS)

"""What a report looks like in each format, to the letter.

ATTNSHAPE_UPDATE_GOLDENS=1 pytest tests/render/test_report_goldens.py writes them anew: read each before you keep it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from attnshape.render import rules
from attnshape.render.report_github import github
from attnshape.render.report_markdown import markdown
from attnshape.render.report_text import text
from attnshape.rules.pages import page, pages
from tests.render import sample_reports as samples

GOLDENS = Path(__file__).parent / "report_goldens"
READ = samples.read_lines

TEXTS: dict[str, Callable[[], str]] = {
    "two_findings_text_80": lambda: text(samples.two_findings(), 80, patterns=True, read_lines=READ),
    "two_findings_text_40": lambda: text(samples.two_findings(), 40, read_lines=READ),
    "two_findings_text_120": lambda: text(samples.two_findings(), 120, read_lines=READ),
    "two_findings_markdown": lambda: markdown(samples.two_findings(), patterns=True, read_lines=READ),
    "two_findings_github": lambda: github(samples.two_findings()),
    "two_findings_json": lambda: samples.two_findings().to_json() + "\n",
    "no_findings_text_80": lambda: text(samples.no_findings(), 80, read_lines=READ),
    "no_findings_markdown": lambda: markdown(samples.no_findings(), read_lines=READ),
    "nothing_examined_text_80": lambda: text(samples.nothing_examined(), 80, read_lines=READ),
    "nothing_examined_markdown": lambda: markdown(samples.nothing_examined(), read_lines=READ),
    "rules_80": lambda: rules.listing(pages(), 80),
    "rule_as201_80": lambda: rules.terminal(page("AS201"), 80, color=False),
}


@pytest.mark.parametrize("name", TEXTS)
def test_golden(name: str) -> None:
    path = GOLDENS / f"{name}.txt"
    drawn = TEXTS[name]()
    if os.environ.get("ATTNSHAPE_UPDATE_GOLDENS") == "1":
        path.write_text(drawn, encoding="utf-8")
    assert drawn == path.read_text(encoding="utf-8")


def test_no_golden_is_left_over() -> None:
    assert {path.stem for path in GOLDENS.glob("*.txt")} == set(TEXTS)

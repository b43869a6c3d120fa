"""Several results as one document: each format to the letter, and whatever a name is made of.

ATTNSHAPE_UPDATE_GOLDENS=1 pytest tests/render/test_several.py writes the goldens anew: read each before you keep it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from attnshape.errors import ExitStatus
from attnshape.render import several_markdown, several_text
from attnshape.render.formats import Screen
from attnshape.render.report_github import github_together
from attnshape.render.several_formats import REPORTS, TRACES
from attnshape.render.text import visible
from attnshape.report import Report
from attnshape.several import Outcome, Outcomes
from tests.render import sample_outcomes as samples
from tests.render import sample_reports, sample_traces
from tests.render.test_render_hostile import TEXT, text_of, tokens
from tests.render.test_report_sarif import VALIDATOR

GOLDENS = Path(__file__).parent / "several_goldens"


def document(form: Any, outcomes: Outcomes[Any], width: int = 100) -> str:
    """Return all that a format writes, with a word in the place of each result."""
    screen = Screen(width)
    parts = [form.part(one, lambda made: f"<{type(made).__name__}>\n", screen) for one in outcomes.each]
    return "".join((*parts, form.end(outcomes, screen)))


TEXTS: dict[str, Callable[[], str]] = {
    "traces_table_80": lambda: document(TRACES["table"], samples.traces(), 80),
    "traces_table_100": lambda: document(TRACES["table"], samples.traces(), 100),
    "traces_markdown": lambda: document(TRACES["markdown"], samples.traces()),
    "reports_text_80": lambda: document(REPORTS["text"], samples.reports(), 80),
    "reports_text_100": lambda: document(REPORTS["text"], samples.reports(), 100),
    "reports_text_40": lambda: document(REPORTS["text"], samples.reports(), 40),
    "reports_markdown": lambda: document(REPORTS["markdown"], samples.reports()),
    "reports_github": lambda: document(REPORTS["github"], samples.reports()),
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


def test_json_has_each_trace_or_its_error() -> None:
    content = json.loads(document(TRACES["json"], samples.traces()))
    assert (content["schema"], content["attnshape"], content["command"]) == (
        "attnshape/traces/1",
        "0.1.0",
        "attnshape trace --all",
    )
    assert [(one["name"], one["sizes"]) for one in content["results"]] == [
        ("multi", {"B": 2, "L": 10}),
        ("multi", {"B": 1, "L": 1}),
        ("cross", {}),
        ("of another branch", {}),
    ]
    first, second, third, last = content["results"]
    assert first["trace"] == json.loads(sample_traces.multi_head().to_json())
    assert second["trace"] == json.loads(sample_traces.verified().to_json())
    assert third["trace"]["schema"] == "attnshape/trace/1"
    assert last["error"] == {"message": samples.MISSING.message, "hint": samples.MISSING.hint}
    assert "trace" not in last


def test_json_has_each_report() -> None:
    content = json.loads(document(REPORTS["json"], samples.reports()))
    assert content["schema"] == "attnshape/reports/1"
    assert content["results"][2]["report"] == json.loads(sample_reports.no_findings().to_json())


def test_sarif_is_one_run_with_each_finding_once_and_what_failed() -> None:
    log = json.loads(document(REPORTS["sarif"], samples.reports()))
    assert [error.message for error in VALIDATOR.iter_errors(log)] == []
    (run,) = log["runs"]
    assert [result["ruleId"] for result in run["results"]] == ["AS201", "AS405"]
    (invocation,) = run["invocations"]
    assert invocation["executionSuccessful"] is False
    errors = [one["message"]["text"] for one in invocation["toolExecutionNotifications"] if one["level"] == "error"]
    assert errors == ["of another branch: can't be carried out: there is no file models/nosuch.py"]
    assert [one["name"] for one in run["properties"]["targets"]] == ["multi, B=2 L=10", "multi, B=1 L=1", "cross"]


def test_findings_of_one_report_stay_those_of_another_place_too() -> None:
    both = sample_reports.report_of(sample_reports.SCALE, sample_reports.FILL)
    other = sample_reports.report_of(sample_reports.SCALE, sample_reports.NOWHERE)
    made = [Outcome("a", made=both), Outcome("b", made=other), Outcome("c", made=other)]
    drawn = github_together(made)
    assert re.findall(r"^::error .*title=(\w+)", drawn, re.MULTILINE) == [
        one.code for one in (sample_reports.SCALE, sample_reports.FILL, sample_reports.NOWHERE)
    ]


@pytest.mark.parametrize(
    ("made", "status"),
    [
        ([], ExitStatus.FINE),
        ([sample_reports.no_findings()], ExitStatus.FINE),
        ([sample_reports.two_findings(), sample_reports.no_findings()], ExitStatus.FOUND),
        ([None, sample_reports.two_findings()], ExitStatus.CANNOT),
        ([sample_reports.no_findings(), None], ExitStatus.CANNOT),
    ],
)
def test_the_worst_counts(made: list[Report | None], status: ExitStatus) -> None:
    assert Outcomes("", "", tuple(Outcome("x", made=one) for one in made)).status == status


@settings(deadline=None, max_examples=200)
@given(TEXT, st.sampled_from([24, 40, 80, 200]))
def test_text_keeps_within_its_width_and_shows_no_control_characters(text: str, width: int) -> None:
    every = samples.hostile(text)
    drawn = "".join(several_text.heading(one, width, color=False) for one in every.each)
    drawn += several_text.summary(every.each, width, color=False)
    for line in drawn.split("\n"):
        assert cell_len(line) <= width
        assert line.isprintable()


@settings(deadline=None, max_examples=300)
@given(st.one_of(TEXT, st.sampled_from(["a #", "a ##", "a #\\", "#", "## b ##", "a \\#"])))
def test_markdown_has_its_headings_and_one_table_and_no_other_markup(text: str) -> None:
    every = samples.hostile(text)
    parsed = tokens("\n".join(map(several_markdown.heading, every.each)) + "\n" + several_markdown.summary(every.each))
    kinds = [token.type for token in parsed]
    assert kinds.count("heading_open") == 4
    assert kinds.count("table_open") == 1
    assert kinds.count("tr_open") == 4
    assert not set(kinds) & {"html_inline", "html_block", "link_open", "image", "em_open", "s_open", "code_block", "hr"}
    places = [place for place, kind in enumerate(kinds) if kind == "heading_open"]
    said = [text_of(parsed[place + 1]).strip() for place in places]
    if visible(text).strip() and "," not in text:
        assert said[1] == visible(text).strip()
    assert said[3] == "Summary"


@settings(deadline=None, max_examples=300)
@given(
    st.one_of(
        TEXT, st.sampled_from(["::error::x", " ::stop-commands::x", "##[error]x", "a##[group]b", "x%0A::debug::y"])
    )
)
def test_no_name_is_a_command_of_the_runner(text: str) -> None:
    lines = github_together(samples.hostile(text).each).split("\n")
    commands = [line for line in lines if line.lstrip().startswith("::")]
    assert commands == lines[: len(commands)]
    assert len(commands) == 3
    assert all(line.startswith("::error ") for line in commands)
    assert not any("##[" in line for line in lines[len(commands) :])
    assert all(line.isprintable() for line in lines)


@settings(deadline=None, max_examples=100)
@given(TEXT)
def test_sarif_and_json_stay_valid(text: str) -> None:
    if re.search("[\ud800-\udfff]", text):
        return  # TOML has none
    every = samples.hostile(text)
    log = json.loads(REPORTS["sarif"].end(every, Screen(80)))
    assert [error.message for error in VALIDATOR.iter_errors(log)] == []
    assert json.loads(REPORTS["json"].end(every, Screen(80)))["results"][1]["error"]["message"] == text

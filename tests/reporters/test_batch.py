"""Several results as one document, also with hostile names."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from attnshape.errors import ExitStatus
from attnshape.model.report import Report
from attnshape.reporters import markdown, text
from attnshape.reporters.batch_view import BatchItem, BatchResult
from attnshape.reporters.escaping import visible
from attnshape.reporters.github import batch_commands
from attnshape.reporters.reporter import Screen
from tests.reporters import sample_batches as samples
from tests.reporters import sample_reports, sample_traces
from tests.reporters.test_goldens import batch_document
from tests.reporters.test_sarif import VALIDATOR
from tests.reporters.test_trace_hostile import TEXT, text_of, tokens


def test_json_has_each_trace_or_its_error() -> None:
    content = json.loads(batch_document("json", "traces", samples.traces()))
    assert (content["schema"], content["attnshape"], content["command"]) == (
        "attnshape/traces/1",
        "0.1.0",
        "attnshape trace --all",
    )
    assert [(result["name"], result["sizes"]) for result in content["results"]] == [
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
    content = json.loads(batch_document("json", "reports", samples.reports()))
    assert content["schema"] == "attnshape/reports/1"
    assert content["results"][2]["report"] == json.loads(sample_reports.no_findings().to_json())


def test_sarif_has_each_finding_once_and_the_errors() -> None:
    log = json.loads(batch_document("sarif", "reports", samples.reports()))
    assert [error.message for error in VALIDATOR.iter_errors(log)] == []
    (run,) = log["runs"]
    assert [result["ruleId"] for result in run["results"]] == ["AS201", "AS405"]
    (invocation,) = run["invocations"]
    assert invocation["executionSuccessful"] is False
    errors = [
        notification["message"]["text"]
        for notification in invocation["toolExecutionNotifications"]
        if notification["level"] == "error"
    ]
    assert errors == ["of another branch: can't be carried out: there is no file models/nosuch.py"]
    assert [target["name"] for target in run["properties"]["targets"]] == ["multi, B=2 L=10", "multi, B=1 L=1", "cross"]


def test_workflow_commands_have_each_finding_once() -> None:
    both = sample_reports.report_of(sample_reports.SCALE, sample_reports.FILL)
    other = sample_reports.report_of(sample_reports.SCALE, sample_reports.NOWHERE)
    items = [BatchItem("a", result=both), BatchItem("b", result=other), BatchItem("c", result=other)]
    commands = batch_commands(items)
    assert re.findall(r"^::error .*title=(\w+)", commands, re.MULTILINE) == [
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
def test_worst_status_wins(made: list[Report | None], status: ExitStatus) -> None:
    assert BatchResult("", "", tuple(BatchItem("x", result=result) for result in made)).status == status


@settings(deadline=None, max_examples=200)
@given(TEXT, st.sampled_from([24, 40, 80, 200]))
def test_text_fits_its_width_without_control_characters(name: str, width: int) -> None:
    every = samples.hostile(name)
    drawn = "".join(text.batch_heading(item, Screen(width)) for item in every.items)
    drawn += text.batch_summary(every, Screen(width))
    for line in drawn.split("\n"):
        assert cell_len(line) <= width
        assert line.isprintable()


@settings(deadline=None, max_examples=300)
@given(st.one_of(TEXT, st.sampled_from(["a #", "a ##", "a #\\", "#", "## b ##", "a \\#"])))
def test_markdown_has_only_headings_and_one_table(name: str) -> None:
    every = samples.hostile(name)
    parsed = tokens(
        "\n".join(
            [
                *(markdown.batch_heading(item, Screen(80)) for item in every.items),
                markdown.batch_summary(every, Screen(80)),
            ]
        )
    )
    kinds = [token.type for token in parsed]
    assert kinds.count("heading_open") == 4
    assert kinds.count("table_open") == 1
    assert kinds.count("tr_open") == 4
    assert not set(kinds) & {"html_inline", "html_block", "link_open", "image", "em_open", "s_open", "code_block", "hr"}
    places = [place for place, kind in enumerate(kinds) if kind == "heading_open"]
    headings = [text_of(parsed[place + 1]).strip() for place in places]
    if visible(name).strip() and "," not in name:
        assert headings[1] == visible(name).strip()
    assert headings[3] == "Summary"


@settings(deadline=None, max_examples=300)
@given(
    st.one_of(
        TEXT, st.sampled_from(["::error::x", " ::stop-commands::x", "##[error]x", "a##[group]b", "x%0A::debug::y"])
    )
)
def test_names_are_never_workflow_commands(name: str) -> None:
    lines = batch_commands(samples.hostile(name).items).split("\n")
    commands = [line for line in lines if line.lstrip().startswith("::")]
    assert commands == lines[: len(commands)]
    assert len(commands) == 3
    assert all(line.startswith("::error ") for line in commands)
    assert not any("##[" in line for line in lines[len(commands) :])
    assert all(line.isprintable() for line in lines)


@settings(deadline=None, max_examples=100)
@given(TEXT)
def test_sarif_and_json_are_valid_for_any_name(name: str) -> None:
    if re.search("[\ud800-\udfff]", name):
        return  # TOML has none
    every = samples.hostile(name)
    log = json.loads(batch_document("sarif", "reports", every))
    assert [error.message for error in VALIDATOR.iter_errors(log)] == []
    assert json.loads(batch_document("json", "reports", every))["results"][1]["error"]["message"] == name

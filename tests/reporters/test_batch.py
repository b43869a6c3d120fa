"""Several results as one document."""

from __future__ import annotations

import json
import re

import pytest

from attnshape.errors import ExitStatus
from attnshape.model.report import Report
from attnshape.reporters.batch_view import BatchItem, BatchResult
from attnshape.reporters.github import batch_commands
from tests.reporters import sample_batches as samples
from tests.reporters import sample_reports, sample_traces
from tests.reporters.oracles import SARIF
from tests.reporters.test_goldens import batch_document


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
    assert [error.message for error in SARIF.iter_errors(log)] == []
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

"""SARIF output, validated against the standard's schema."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from attnshape.checks.rules.pages import codes
from attnshape.model.report import Report
from attnshape.model.trace import Source
from attnshape.reporters.sarif import report_sarif
from tests.reporters import sample_reports as samples
from tests.reporters.oracles import SARIF


def run_of(report: Report) -> dict[str, Any]:
    log = json.loads(report_sarif(report))
    assert [error.message for error in SARIF.iter_errors(log)] == []
    return dict(log["runs"][0])


@pytest.mark.parametrize("make", [samples.two_findings, samples.no_findings, samples.nothing_examined])
def test_every_report_is_valid(make: object) -> None:
    run_of(make())  # type: ignore[operator]


def test_schema_rejects_an_invalid_level() -> None:
    log = json.loads(report_sarif(samples.two_findings()))
    log["runs"][0]["results"][0]["level"] = "fatal"
    assert list(SARIF.iter_errors(log))


def test_each_rule_has_its_help_page() -> None:
    rules = run_of(samples.two_findings())["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == list(codes())
    assert all(rule["help"]["markdown"].startswith(f"# {rule['id']}: ") for rule in rules)


def test_results_have_messages_and_locations() -> None:
    run = run_of(samples.two_findings())
    scale, fill = run["results"]
    assert (scale["ruleId"], scale["level"]) == ("AS201", "error")
    assert run["tool"]["driver"]["rules"][scale["ruleIndex"]]["id"] == "AS201"
    assert scale["message"]["text"].startswith("scores are scaled by 1/sqrt(D)")
    place = scale["locations"][0]["physicalLocation"]
    assert place["artifactLocation"] == {"uri": "model.py"}
    assert place["region"] == {
        "startLine": 6,
        "startColumn": 14,
        "endLine": 6,
        "endColumn": 52,
        "snippet": {"text": "q @ k.transpose(-2, -1) / math.sqrt(D)"},
    }
    several = fill["locations"][0]["physicalLocation"]["region"]
    assert (several["startLine"], several["endLine"], several["endColumn"]) == (7, 9, 6)
    notes = run["invocations"][0]["toolExecutionNotifications"]
    assert [note["message"]["text"] for note in notes] == [
        "not checked: causality (not claimed)",
        "not checked: gradients",
    ]


def test_finding_without_source_has_no_location() -> None:
    (result,) = run_of(samples.nothing_examined())["results"]
    assert "locations" not in result


def test_levels_follow_the_findings() -> None:
    run = run_of(samples.every_level())
    assert [result["level"] for result in run["results"]] == ["error", "warning", "note", "note"]
    defaults = {rule["id"]: rule["defaultConfiguration"]["level"] for rule in run["tool"]["driver"]["rules"]}
    assert [defaults[code] for code in ("AS001", "AS201", "AS408")] == ["warning", "error", "note"]


def test_suppressed_findings_are_left_out() -> None:
    assert {result["ruleId"] for result in run_of(samples.two_findings())["results"]} == {"AS201", "AS405"}


def fingerprints(report: Report) -> list[str]:
    return [result["partialFingerprints"]["attnshapeFinding/v1"] for result in run_of(report)["results"]]


def test_fingerprints_do_not_depend_on_lines_and_are_unique() -> None:
    lower = replace(samples.SCALE, source=Source(samples.FILE, 60, 14, "attend"))
    assert fingerprints(samples.report_of(samples.SCALE)) == fingerprints(samples.report_of(lower))
    several = fingerprints(samples.report_of(samples.SCALE, lower, samples.FILL))
    assert len(set(several)) == 3


@pytest.mark.parametrize(
    ("file", "uri"),
    [
        ("src/my model.py", "src/my%20model.py"),
        ("/tmp/a#b.py", "file:///tmp/a%23b.py"),
        ("注意.py", "%E6%B3%A8%E6%84%8F.py"),
        ("<string>", "%3Cstring%3E"),
    ],
)
def test_file_names_become_uris(file: str, uri: str) -> None:
    finding = replace(samples.SCALE, source=Source(file, 1, 1, "f"))
    (result,) = run_of(samples.report_of(finding))["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == uri


def test_messages_contain_no_links() -> None:
    finding = replace(samples.SCALE, message="heads[0](http://x) of x[1]")
    (result,) = run_of(samples.report_of(finding))["results"]
    assert result["message"]["text"].splitlines()[0] == "heads\\[0\\](http://x) of x[1]"


@pytest.mark.parametrize(("line", "column"), [(0, 1), (1, 0), (-1, -1)])
def test_invalid_position_has_only_the_file(line: int, column: int) -> None:
    finding = replace(samples.SCALE, source=Source(samples.FILE, line, column, "f"))
    (result,) = run_of(samples.report_of(finding))["results"]
    assert set(result["locations"][0]["physicalLocation"]) == {"artifactLocation"}

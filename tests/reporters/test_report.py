from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from attnshape.model.report import NotChecked, Report
from attnshape.model.trace import Source
from attnshape.reporters.github import report_commands
from attnshape.reporters.registry import find_renderer, formats_for
from attnshape.reporters.report_view import ReportOptions, printed_by
from attnshape.reporters.reporter import Screen
from attnshape.reporters.text import report_text
from tests.reporters import sample_reports as samples

REPORTS = [samples.two_findings, samples.no_findings, samples.nothing_examined]


@pytest.mark.parametrize("name", formats_for("report"))
@pytest.mark.parametrize("make", REPORTS)
def test_every_format_renders_every_report(name: str, make: Callable[[], Report]) -> None:
    rendered = find_renderer(name, "report")(make(), Screen(100), ReportOptions())
    assert rendered.endswith("\n")
    assert not rendered.endswith("\n\n")


def test_json_is_the_whole_report() -> None:
    content = json.loads(find_renderer("json", "report")(samples.two_findings(), Screen(80), ReportOptions()))
    assert content["schema"] == "attnshape/report/1"
    assert [one["code"] for one in content["findings"]] == ["AS201", "AS405"]
    assert set(content) == set(Report.__struct_fields__) - {"found"}, "the user gave all arguments"


@pytest.mark.parametrize("name", ["text", "markdown"])
def test_patterns_are_drawn_on_request(name: str) -> None:
    render = find_renderer(name, "report", draws_patterns=True)
    assert "■ ■ ·" in render(samples.two_findings(), Screen(80), ReportOptions(patterns=True))
    assert "■ ■ ·" not in render(samples.two_findings(), Screen(80), ReportOptions())


@pytest.mark.parametrize("name", ["text", "markdown"])
def test_no_findings_does_not_claim_correctness(name: str) -> None:
    render = find_renderer(name, "report")
    quiet = render(samples.no_findings(), Screen(100), ReportOptions())
    assert "no findings" in quiet
    assert "no findings: this means no more than what was verified" in quiet
    assert "not checked: masks (none given)" in quiet
    nothing = render(replace(samples.no_findings(), verified=()), Screen(100), ReportOptions())
    assert "no findings: this means nothing, since nothing could be verified" in nothing


@pytest.mark.parametrize("name", ["text", "markdown"])
def test_verdict_comes_before_the_findings(name: str) -> None:
    text = find_renderer(name, "report")(samples.two_findings(), Screen(100), ReportOptions())
    places = [text.index(part) for part in ("2 errors", "scores are scaled by", "observed:", "verified: 3 properties")]
    assert places == sorted(places)
    assert "softmax over the keys" not in text
    whole = find_renderer(name, "report")(samples.two_findings(), Screen(100), ReportOptions(verbose=True))
    assert "softmax over the keys" in whole


@pytest.mark.parametrize("name", ["text", "markdown"])
def test_what_is_undecided_and_the_outcomes_of_claims_need_no_option(name: str) -> None:
    text = find_renderer(name, "report")(samples.incomplete(), Screen(100), ReportOptions())
    assert text.index("no findings · incomplete: 1 undecided") < text.index("the claim window=4 (the code has")
    assert "causal (verified) · window=4 (undecided)" in text.replace("`", "")


@pytest.mark.parametrize("name", ["text", "markdown"])
def test_quiet_leaves_only_what_is_wrong_or_open(name: str) -> None:
    render, options = find_renderer(name, "report"), ReportOptions(quiet=True)
    assert render(samples.no_findings(), Screen(100), options) == ""
    assert "undecided: the claim window=4" in render(samples.incomplete(), Screen(100), options)
    text = render(samples.two_findings(), Screen(100), options)
    assert "divide by math.sqrt(Dk)" in text
    assert "verified" not in text
    assert "observed" not in text


@pytest.mark.parametrize("name", ["text", "markdown"])
def test_what_the_output_already_has_is_not_repeated(name: str) -> None:
    options = ReportOptions(printed=printed_by(samples.two_findings()))
    other = replace(samples.two_findings(), not_checked=(NotChecked(what="masks", why="not claimed"),))
    text = find_renderer(name, "report")(other, Screen(100), options)
    assert "2 errors" in text
    assert re.search(r"AS201.* as above$", text, re.MULTILINE)
    assert "for an explanation" not in text
    assert "divide by math.sqrt(Dk)" not in text
    assert "masks (as above)" in text


def test_a_report_displays_itself_in_consoles_and_notebooks() -> None:
    report = samples.two_findings()
    assert str(report) == repr(report)
    assert "2 errors · 1 suppressed" in str(report)
    assert "verified: 3 properties (`verified` lists them)" in str(report)
    assert "**2 errors · 1 suppressed · 38 extra runs**" in report._repr_markdown_()


def test_finding_without_source_has_no_excerpt() -> None:
    output = report_text(samples.two_findings(), Screen(80), read_lines=lambda file: ())
    assert "model.py:6:14: error AS201" in output
    assert "^" not in output
    assert "|" not in output


@pytest.mark.parametrize(("line", "column"), [(0, 1), (-1, 1), (99, 1), (6, 0), (6, 99), (6, -3)])
def test_position_outside_the_file_is_not_marked(line: int, column: int) -> None:
    finding = replace(samples.SCALE, source=Source(samples.FILE, line, column, "attend"))
    output = report_text(samples.report_of(finding), Screen(80), read_lines=samples.read_lines)
    assert f"model.py:{line}:{column}: error AS201" in output
    assert "^" not in output


def test_changed_line_is_marked_at_its_start() -> None:
    finding = replace(samples.SCALE, expression="something else")
    lines = report_text(samples.report_of(finding), Screen(80), read_lines=samples.read_lines).splitlines()
    marks = next(line for line in lines if "^" in line)
    assert marks.strip("| ") == "^"
    assert lines[lines.index(marks) - 1][marks.index("^")] == "q"


def test_colour_only_decorates() -> None:
    report = samples.two_findings()
    whole = ReportOptions(patterns=True, verbose=True)
    plain, colored = (report_text(report, Screen(80, color), whole, samples.read_lines) for color in (False, True))
    assert "\x1b[" in colored
    assert re.sub(r"\x1b\[[0-9;]*m", "", colored) == plain


def test_workflow_command_escapes_properties_and_message() -> None:
    finding = replace(
        samples.SCALE,
        source=Source("a,b:c%d.py", 3, 4, "f"),
        message="100% wrong",
        hint="divide, twice: once",
    )
    first, *_ = report_commands(samples.report_of(finding)).splitlines()
    assert first == (
        "::error file=a%2Cb%3Ac%25d.py,line=3,col=4,title=AS201::100%25 wrong%0Ahint: divide, twice: once"
        "%0Ashown by reproduced numbers: 1/sqrt(D) gives the same scores at both sizes"
    )


def test_further_sets_of_sizes_are_counted() -> None:
    sets = tuple({"B": number} for number in (5, 7, 11, 13))
    assert "B=5, B=7 and 2 more" in report_text(replace(samples.no_findings(), small_sizes=sets), Screen(120))
    assert "B=5 and B=7" in report_text(replace(samples.no_findings(), small_sizes=sets[:2]), Screen(120))

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from msgspec.structs import replace

from attnshape.errors import AttnshapeError
from attnshape.model import Source
from attnshape.render.formats import Screen
from attnshape.render.report_formats import REPORT_FORMATS, find
from attnshape.render.report_github import github
from attnshape.render.report_markdown import markdown
from attnshape.render.report_text import text
from attnshape.report import Report
from tests.render import sample_reports as samples

REPORTS = [samples.two_findings, samples.no_findings, samples.nothing_examined]


@pytest.mark.parametrize("name", REPORT_FORMATS)
@pytest.mark.parametrize("make", REPORTS)
def test_every_format_draws_every_report(name: str, make: object) -> None:
    drawn = REPORT_FORMATS[name].draw(make(), Screen(100), False)  # type: ignore[operator]
    assert drawn.endswith("\n")
    assert not drawn.endswith("\n\n")


def test_json_is_the_whole_report() -> None:
    drawn = REPORT_FORMATS["json"].draw(samples.two_findings(), Screen(80), False)
    read = json.loads(drawn)
    assert read["schema"] == "attnshape/report/1"
    assert [one["code"] for one in read["findings"]] == ["AS201", "AS405"]
    assert set(read) == set(Report.__struct_fields__)


def test_an_unknown_format_lists_the_known() -> None:
    with pytest.raises(AttnshapeError) as caught:
        find("table", patterns=False)
    assert caught.value.message == "there is no format 'table'"
    assert caught.value.hint == "the formats are auto, text, markdown, json, github, sarif"


@pytest.mark.parametrize("name", REPORT_FORMATS)
def test_pictures_are_drawn_for_people_alone(name: str) -> None:
    assert find(name, patterns=False) is REPORT_FORMATS[name]
    if name in ("text", "markdown"):
        drawn = find(name, patterns=True).draw(samples.two_findings(), Screen(80), True)
        assert "■ ■ ·" in drawn
        assert "■ ■ ·" not in REPORT_FORMATS[name].draw(samples.two_findings(), Screen(80), False)
    else:
        with pytest.raises(AttnshapeError, match="has no pictures"):
            find(name, patterns=True)


@pytest.mark.parametrize("draw", [text, markdown], ids=["text", "markdown"])
def test_silence_is_not_taken_for_proof(draw: object) -> None:
    arguments = (100,) if draw is text else ()
    quiet = draw(samples.no_findings(), *arguments)  # type: ignore[operator]
    assert "no findings" in quiet
    assert "proves no more than what is listed as proved" in quiet
    assert "not examined: masks (none given)" in quiet
    nothing = draw(replace(samples.no_findings(), proved=()), *arguments)  # type: ignore[operator]
    assert "proves nothing" in nothing


def test_without_its_source_a_finding_has_no_excerpt() -> None:
    drawn = text(samples.two_findings(), 80, read_lines=lambda file: ())
    assert "model.py:6:14: AS201" in drawn
    assert "^" not in drawn
    assert "|" not in drawn


@pytest.mark.parametrize(("line", "column"), [(0, 1), (-1, 1), (99, 1), (6, 0), (6, 99), (6, -3)])
def test_a_place_that_is_not_there_is_named_and_not_marked(line: int, column: int) -> None:
    finding = replace(samples.SCALE, source=Source(samples.FILE, line, column, "attend"))
    drawn = text(samples.report_of(finding), 80, read_lines=samples.read_lines)
    assert f"model.py:{line}:{column}: AS201" in drawn
    assert "^" not in drawn


def test_where_the_line_reads_otherwise_its_start_is_marked() -> None:
    finding = replace(samples.SCALE, expression="something else")
    lines = text(samples.report_of(finding), 80, read_lines=samples.read_lines).splitlines()
    marks = next(line for line in lines if "^" in line)
    assert marks.strip("| ") == "^"
    assert lines[lines.index(marks) - 1][marks.index("^")] == "q"


def test_colour_only_decorates() -> None:
    report = samples.two_findings()
    plain, colored = (text(report, 80, color, True, samples.read_lines) for color in (False, True))
    assert "\x1b[" in colored
    assert re.sub(r"\x1b\[[0-9;]*m", "", colored) == plain


def test_a_workflow_command_escapes_its_properties_and_its_message() -> None:
    finding = replace(
        samples.SCALE,
        source=Source("a,b:c%d.py", 3, 4, "f"),
        message="100% wrong",
        hint="divide, twice: once",
    )
    first, *_ = github(samples.report_of(finding)).splitlines()
    assert first == (
        "::error file=a%2Cb%3Ac%25d.py,line=3,col=4,title=AS201::100%25 wrong%0Ahint: divide, twice: once"
        "%0Ashown by reproduced numbers: 1/sqrt(D) gives the same scores at both sizes"
    )


def test_no_torch_is_imported() -> None:
    script = (
        "import sys\n"
        "from attnshape.render import report_formats, rules\n"
        "from attnshape.render.formats import Screen\n"
        "from attnshape import selecting, silencing\n"
        "from tests.render.sample_reports import two_findings\n"
        "for one in report_formats.REPORT_FORMATS.values():\n"
        "    one.draw(two_findings(), Screen(100), False)\n"
        "print([name for name in ('torch', 'rich.console') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_of_more_than_two_sets_of_sizes_the_rest_is_counted() -> None:
    sets = tuple({"B": number} for number in (5, 7, 11, 13))
    assert "B=5, B=7 and 2 more" in text(replace(samples.no_findings(), small_sizes=sets), 120)
    assert "B=5 and B=7" in text(replace(samples.no_findings(), small_sizes=sets[:2]), 120)

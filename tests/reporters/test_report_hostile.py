"""Whatever a report's text or the source contains, it comes out as visible text and breaks nothing."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from attnshape.reporters.escaping import visible
from attnshape.reporters.github import report_commands
from attnshape.reporters.markdown import report_markdown
from attnshape.reporters.reporter import Screen
from attnshape.reporters.text import report_text
from tests.reporters.sample_reports import hostile
from tests.reporters.test_trace_hostile import FORBIDDEN, NASTY, TEXT, text_of, tokens

LINES = st.lists(TEXT, min_size=1, max_size=3)


@settings(deadline=None, max_examples=200)
@given(TEXT, LINES, st.sampled_from([24, 40, 80, 200]))
def test_text_keeps_within_its_width_and_shows_no_control_characters(text_: str, lines: list[str], width: int) -> None:
    drawn = report_text(hostile(text_), Screen(width), patterns=True, read_lines=lambda file: lines)
    for line in drawn.split("\n"):
        assert cell_len(line) <= width
        assert line.isprintable()


@settings(deadline=None, max_examples=200)
@given(TEXT, LINES)
def test_markdown_has_no_markup_but_its_own(text_: str, lines: list[str]) -> None:
    drawn = report_markdown(hostile(text_), patterns=True, read_lines=lambda file: lines)
    parsed = tokens(drawn)
    assert not {token.type for token in parsed} & (FORBIDDEN - {"fence"} | {"html_block"})
    assert all(line.isprintable() for line in drawn.split("\n"))
    fences = [token for token in parsed if token.type == "fence"]
    assert len(fences) == 1 + bool(lines[0].strip())
    assert {fence.info for fence in fences} <= {"python", "text"}


@settings(deadline=None, max_examples=200)
@given(TEXT)
def test_a_message_in_markdown_reads_as_it_is(text_: str) -> None:
    if "`" in text_:
        return  # what stands between backticks is code there
    parsed = [text_of(token) for token in tokens(report_markdown(hostile(text_))) if token.type == "inline"]
    shown = visible(text_).strip()
    assert any(one.endswith(shown) and one.startswith(shown) for one in parsed)


@settings(deadline=None, max_examples=200)
@given(TEXT)
def test_a_workflow_command_is_one_line_and_no_text_starts_another(text_: str) -> None:
    drawn = report_commands(hostile(text_))
    assert drawn.isascii() or all(line.isprintable() for line in drawn.split("\n"))
    lines = drawn.splitlines()
    commands = [line for line in lines if line.lstrip().startswith("::") or "##[" in line[:3]]
    assert commands == lines[:1]
    match = re.fullmatch(r"::error file=([^,:]*),line=1,col=1,title=([^,:]*)::(.*)", lines[0])
    assert match is not None
    assert _read(match[2]) == visible(text_)
    assert _read(match[3]).startswith(visible(text_))


def _read(escaped: str) -> str:
    for sign, char in {"%3A": ":", "%2C": ",", "%0D": "\r", "%0A": "\n", "%25": "%"}.items():
        escaped = escaped.replace(sign, char)
    return escaped


@pytest.mark.parametrize("nasty", NASTY)
def test_colour_comes_from_the_report_alone(nasty: str) -> None:
    plain, colored = (
        report_text(hostile(nasty), Screen(80, color), True, lambda file: [nasty]) for color in (False, True)
    )
    assert re.sub(r"\x1b\[[0-9;]*m", "", colored) == plain


@pytest.mark.parametrize("line", ["```", "`````", "~~~", "a ``` b", "    indented"])
def test_a_line_of_source_ends_no_block_of_code(line: str) -> None:
    drawn = report_markdown(hostile("x"), read_lines=lambda file: [line])
    fences = [token for token in tokens(drawn) if token.type == "fence"]
    assert [fence.content.splitlines()[0] for fence in fences] == [line.strip()]

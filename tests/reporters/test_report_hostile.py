"""Hostile text in a report or in the source doesn't break the output."""

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
def test_text_fits_its_width_without_control_characters(text_: str, lines: list[str], width: int) -> None:
    output = report_text(hostile(text_), Screen(width), patterns=True, read_lines=lambda file: lines)
    for line in output.split("\n"):
        assert cell_len(line) <= width
        assert line.isprintable()


@settings(deadline=None, max_examples=200)
@given(TEXT, LINES)
def test_markdown_has_no_injected_markup(text_: str, lines: list[str]) -> None:
    output = report_markdown(hostile(text_), patterns=True, read_lines=lambda file: lines)
    parsed = tokens(output)
    assert not {token.type for token in parsed} & (FORBIDDEN - {"fence"} | {"html_block"})
    assert all(line.isprintable() for line in output.split("\n"))
    fences = [token for token in parsed if token.type == "fence"]
    assert len(fences) == 1 + bool(lines[0].strip())
    assert {fence.info for fence in fences} <= {"python", "text"}


@settings(deadline=None, max_examples=200)
@given(TEXT)
def test_message_in_markdown_is_unchanged(text_: str) -> None:
    if "`" in text_:
        return  # text between backticks is code
    parsed = [text_of(token) for token in tokens(report_markdown(hostile(text_))) if token.type == "inline"]
    text = visible(text_).strip()
    assert any(token.endswith(text) and token.startswith(text) for token in parsed)


@settings(deadline=None, max_examples=200)
@given(TEXT)
def test_text_never_starts_another_workflow_command(text_: str) -> None:
    output = report_commands(hostile(text_))
    assert output.isascii() or all(line.isprintable() for line in output.split("\n"))
    lines = output.splitlines()
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
def test_text_never_adds_colour(nasty: str) -> None:
    plain, colored = (
        report_text(hostile(nasty), Screen(80, color), True, lambda file: [nasty]) for color in (False, True)
    )
    assert re.sub(r"\x1b\[[0-9;]*m", "", colored) == plain


@pytest.mark.parametrize("line", ["```", "`````", "~~~", "a ``` b", "    indented"])
def test_source_line_never_ends_a_code_block(line: str) -> None:
    output = report_markdown(hostile("x"), read_lines=lambda file: [line])
    fences = [token for token in tokens(output) if token.type == "fence"]
    assert [fence.content.splitlines()[0] for fence in fences] == [line.strip()]

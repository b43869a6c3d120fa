"""Hostile text in two outlines doesn't break the output of their difference."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from attnshape.comparison.compare import compare
from attnshape.comparison.outline import Outline
from attnshape.model.difference import FileDifference, FolderDifference
from attnshape.reporters.diff_view import diff_view
from attnshape.reporters.markdown import diff_markdown
from attnshape.reporters.registry import find_renderer
from attnshape.reporters.reporter import Screen
from attnshape.reporters.table import diff_table
from tests.comparison.strategies import NASTY, anything, code
from tests.reporters.test_trace_hostile import FORBIDDEN, cells, tokens

OUTLINES = st.one_of(anything(), code(6))


@settings(deadline=None, max_examples=150)
@given(OUTLINES, OUTLINES, st.sampled_from(NASTY), st.sampled_from([24, 40, 80, 160]))
def test_table_fits_its_width_without_control_characters(old: Outline, new: Outline, command: str, width: int) -> None:
    output = diff_table(diff_view(compare(old, new), command), Screen(width))
    for line in output.split("\n"):
        assert cell_len(line) <= width
        assert line.isprintable()


@settings(deadline=None, max_examples=150)
@given(OUTLINES, OUTLINES, st.sampled_from(NASTY))
def test_markdown_keeps_its_rows_and_has_no_html(old: Outline, new: Outline, command: str) -> None:
    view = diff_view(compare(old, new), command)
    output = diff_markdown(view)
    assert not {token.type for token in tokens(output)} & {*FORBIDDEN, "html_block"}
    assert all(line.isprintable() for line in output.split("\n"))
    rows = cells(output)
    if not view.rows:
        assert rows == []
        return
    assert rows[0] == list(view.names)
    assert len(rows) == len(view.rows) + 1
    for row, drawn_row in zip(view.rows, rows[1:], strict=True):
        assert drawn_row[0] == row.number
        for cell, text in zip(row.cells, drawn_row[1:], strict=True):
            expected = cell.text.strip() if cell.old is None else f"{cell.old.strip()} → {cell.text.strip()}".strip()
            assert text == expected


@settings(deadline=None, max_examples=50)
@given(OUTLINES, OUTLINES)
def test_table_without_colours_is_the_plain_table(old: Outline, new: Outline) -> None:
    view = diff_view(compare(old, new))
    plain, colored = diff_table(view, Screen(80)), diff_table(view, Screen(80, color=True))
    assert re.sub(r"\x1b\[[\d;]*m", "", colored) == plain


@pytest.mark.parametrize("name", NASTY)
def test_names_of_files_and_folders_are_escaped(name: str) -> None:
    outline = Outline(target="x", sizes={"B": 2})
    files = (FileDifference(name or "a", compare(outline, Outline(target="x", sizes={"B": 3}))),)
    difference = FolderDifference(old=name or "a", new=name or "b", files=files, only_old=(name,), only_new=(name, "c"))
    for form in ("table", "markdown"):
        output = find_renderer(form, "differences")(difference, name, Screen(80))
        assert all(line.isprintable() for line in output.split("\n"))
    found = {token.type for token in tokens(find_renderer("markdown", "differences")(difference, name, Screen(80)))}
    assert not found & {"html_inline", "html_block", "link_open", "image", "em_open", "s_open", "fence", "code_block"}
    assert json.loads(find_renderer("json", "differences")(difference, name, Screen(80)))["only_old"] == [name]

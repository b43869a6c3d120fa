"""Hostile text in a trace doesn't break the output."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.cells import cell_len

from attnshape.reporters.columns import COLUMNS, DEFAULT
from attnshape.reporters.escaping import code, code_cell, prose, prose_with_code, visible
from attnshape.reporters.markdown import trace_markdown
from attnshape.reporters.reporter import Screen
from attnshape.reporters.table import trace_table
from attnshape.reporters.trace_view import ViewOptions, trace_view
from tests.reporters.sample_traces import hostile

NASTY = (
    "[bold red]x[/] [/]",
    "a|b",
    "a\\|b",
    "|",
    "\\|",
    "`",
    "``a`|`b``",
    "\\`",
    "\x1b[31mred\x1b[0m \x07\x08\x00",
    "<script>alert(1)</script>",
    "<!-- --> &amp; &#124;",
    "a\nb\r\nc\n\n| x | y |\n",
    "half a surrogate pair \ud800",
    "\u202eabc\u202c \u2066x\u2069 \u200f\u200b\ufeff",
    "注意力机制 ｆｕｌｌ e\u0301 👩‍👩‍👧 🏳️‍🌈",
    "\ud800",
    "# h",
    "- x",
    "1. x",
    "---",
    "===",
    "**b** _i_ ~~s~~ [l](http://x) ![i](y) $x$",
    "\t",
    "\u2028\u2029\u0085",
    "",
    " ",
    "x" * 300,
    "(" * 90,
)
TEXT = st.one_of(
    st.sampled_from(NASTY),
    st.text(max_size=40),
    st.text(alphabet="`|\\<>[]*_& \n~ab.(", max_size=24),
    st.lists(st.sampled_from(NASTY), max_size=3).map("".join),
)
OPTIONS = st.sampled_from(
    [ViewOptions(), ViewOptions(explain=True), ViewOptions(tuple(COLUMNS.values()), explain=True)]
)
FORBIDDEN = {"html_inline", "link_open", "image", "em_open", "s_open", "fence", "code_block", "heading_open", "hr"}
PARSER = MarkdownIt("commonmark").enable(["table", "strikethrough"])


def tokens(text: str) -> list[Token]:
    found: list[Token] = []
    for token in PARSER.parse(text):
        found += [token, *(token.children or [])]
    return found


def text_of(token: Token) -> str:
    return "".join(child.content for child in token.children or [])


def cells(text: str) -> list[list[str]]:
    rows: list[list[str]] = []
    inside = False
    for token in PARSER.parse(text):
        if token.type == "tr_open":
            rows.append([])
        inside = inside and not token.type.startswith(("th_close", "td_close"))
        if inside and token.type == "inline":
            rows[-1].append(text_of(token))
        inside = inside or token.type in ("th_open", "td_open")
    return rows


@settings(deadline=None, max_examples=150)
@given(TEXT, OPTIONS, st.sampled_from([24, 40, 80, 100, 200]))
def test_table_fits_its_width_without_control_characters(text: str, options: ViewOptions, width: int) -> None:
    output = trace_table(trace_view(hostile(text), options), Screen(width))
    for line in output.split("\n"):
        assert cell_len(line) <= width
        assert line.isprintable()


@settings(deadline=None, max_examples=150)
@given(TEXT, OPTIONS)
def test_markdown_table_keeps_its_cells_and_has_no_html(text: str, options: ViewOptions) -> None:
    view = trace_view(hostile(text), options)
    output = trace_markdown(view)
    parsed = tokens(output)
    # The only comment separates the two lists.
    assert [token.content for token in parsed if token.type == "html_block"] == ["<!-- -->\n"] * options.explain
    assert not {token.type for token in parsed} & FORBIDDEN
    assert all(line.isprintable() for line in output.split("\n"))
    rows = cells(output)
    assert len(rows) == len(view.rows) + 1
    for row, expected in zip(rows, [view.names, *(row.cells for row in view.rows)], strict=True):
        assert row == [visible(cell).strip() for cell in expected]


@settings(deadline=None, max_examples=300)
@given(TEXT)
def test_prose_and_code_render_as_plain_text(text: str) -> None:
    expected = visible(text)
    for source in (f"- x{prose(text)}", f"x{code(text)}"):
        inline = [token for token in PARSER.parse(source) if token.type == "inline"]
        assert [text_of(token).replace(" ", "") for token in inline] == [f"x{expected}".replace(" ", "")]
    rendered = [token for token in PARSER.parse(f"- {prose_with_code(text)}") if token.type == "inline"]
    assert [text_of(token).replace(" ", "").replace("`", "") for token in rendered] in (
        [expected.replace(" ", "").replace("`", "")],
        [],
    )
    for column in (code_cell(text), prose(text)):
        assert cells(f"| a | b |\n| - | - |\n| {column} | z |")[1] == [expected.strip(), "z"]


def test_pipe_after_a_backslash_is_outside_the_code() -> None:
    # GitHub's parser would end the cell at either `\\|` or the next pipe.
    assert code_cell("a\\|b|c") == "`a\\`&#124;`b\\|c`"


@given(TEXT)
def test_prose_starts_no_block(text: str) -> None:
    parsed = PARSER.parse(f"- {prose(text)}")
    assert [token.type for token in parsed if token.level > 1] in (["paragraph_open", "inline", "paragraph_close"], [])


@pytest.mark.parametrize("text", NASTY)
def test_text_never_adds_colour(text: str) -> None:
    view = trace_view(hostile(text), ViewOptions(explain=True))
    plain, colored = trace_table(view, Screen(100)), trace_table(view, Screen(100, color=True))
    assert "\x1b[" in colored
    assert re.sub(r"\x1b\[[0-9;]*m", "", colored) == plain


def test_rich_markup_is_literal() -> None:
    output = trace_table(trace_view(hostile("[bold red]x[/]"), ViewOptions(DEFAULT)), Screen(100, color=True))
    assert "[bold red]x[/]" in output

"""Escaped text renders as the text itself, wherever it is in Markdown."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from attnshape.reporters.escaping import code, code_cell, prose, prose_with_code, visible
from tests.reporters.hostile_text import TEXT
from tests.reporters.oracles import cells, markdown_tokens, text_of


@settings(deadline=None, max_examples=300)
@given(TEXT)
def test_prose_and_code_render_as_plain_text(text: str) -> None:
    expected = visible(text).strip()
    for source in (f"- x {prose(text)}", f"x {code(text)}"):
        inline = [token for token in markdown_tokens(source) if token.type == "inline"]
        assert [text_of(token).replace(" ", "") for token in inline] == [f"x{expected}".replace(" ", "")]
    rendered = [token for token in markdown_tokens(f"- {prose_with_code(text)}") if token.type == "inline"]
    assert [text_of(token).replace(" ", "").replace("`", "") for token in rendered] in (
        [expected.replace(" ", "").replace("`", "")],
        [],
    )
    for column in (code_cell(text), prose(text)):
        assert cells(f"| a | b |\n| - | - |\n| {column} | z |")[1] == [expected, "z"]


def test_pipe_after_a_backslash_is_outside_the_code() -> None:
    # GitHub's parser would end the cell at either `\\|` or the next pipe.
    assert code_cell("a\\|b|c") == "`a\\`&#124;`b\\|c`"


@given(TEXT)
def test_prose_starts_no_block(text: str) -> None:
    parsed = [token for token in markdown_tokens(f"- {prose(text)}") if token.level > 1 and token.block]
    assert [token.type for token in parsed] in (["paragraph_open", "inline", "paragraph_close"], [])


@pytest.mark.parametrize(
    "text",
    [
        "x[..., ::2] + y[::step]",
        "aten::add and at::Tensor",
        "model.py:31:22",
        "q @ k.mT  # @ is a product",
        "e\u0301 a_b",
    ],
)
def test_text_of_ordinary_code_is_unchanged(text: str) -> None:
    assert visible(text) == text
    assert "`" not in prose(text)

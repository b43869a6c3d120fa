from __future__ import annotations

from typing import get_args

import pytest
from markdown_it import MarkdownIt

from attnshape.dims.symbols import SYMBOLS
from attnshape.model.trace import Known, Role, StorageKind
from attnshape.reporters.reference_pages import ROLES, WORDS, chapters, glossary_markdown, glossary_text


@pytest.mark.parametrize("text", [glossary_text(80), glossary_markdown()], ids=["terminal", "markdown"])
def test_glossary_has_every_term_of_the_model(text: str) -> None:
    for symbol in SYMBOLS:
        assert symbol.flag in text
    for word in (*get_args(Role), *get_args(Known)):
        assert word in text


def test_every_role_and_storage_kind_is_defined() -> None:
    assert set(ROLES) == set(get_args(Role))
    # The table shows an in-place write as `writes`.
    assert {"writes" if kind == "inplace" else kind for kind in get_args(StorageKind)} <= set(WORDS)


@pytest.mark.parametrize("width", [60, 80, 100, 300])
def test_glossary_fits_its_width(width: int) -> None:
    assert max(map(len, glossary_text(width).splitlines())) <= width


def test_markdown_has_three_complete_tables() -> None:
    tokens = MarkdownIt("commonmark").enable("table").parse(glossary_markdown())
    assert sum(token.type == "table_open" for token in tokens) == 3
    rows = sum(token.type == "tr_open" for token in tokens)
    assert rows == sum(len(rows_of) + 1 for _, _, rows_of in chapters())

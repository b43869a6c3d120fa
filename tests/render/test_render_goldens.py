"""What the formats look like, to the letter.

ATTNSHAPE_UPDATE_GOLDENS=1 pytest tests/render/test_render_goldens.py writes them anew: read each before you keep it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from attnshape.render import glossary
from attnshape.render.columns import COLUMNS
from attnshape.render.formats import FORMATS, Screen
from attnshape.render.view import Choice
from tests.render import sample_traces as samples

GOLDENS = Path(__file__).parent / "goldens"
EXPLAINED = Choice(explain=True)
EVERY_COLUMN = Choice(tuple(COLUMNS.values()))


def drawn(name: str, sample: str, width: int, choice: Choice = Choice()) -> Callable[[], str]:  # noqa: B008
    return lambda: FORMATS[name].draw(getattr(samples, sample)(), choice, Screen(width))


TEXTS: dict[str, Callable[[], str]] = {
    "multi_head_table_60": drawn("table", "multi_head", 60),
    "multi_head_table_80": drawn("table", "multi_head", 80),
    "multi_head_table_100": drawn("table", "multi_head", 100),
    "multi_head_table_160": drawn("table", "multi_head", 160),
    "multi_head_table_100_explained": drawn("table", "multi_head", 100, EXPLAINED),
    "multi_head_table_320_every_column": drawn("table", "multi_head", 320, EVERY_COLUMN),
    "multi_head_table_100_match": drawn("table", "multi_head", 100, Choice(match="concat,scores,Wo")),
    "multi_head_markdown": drawn("markdown", "multi_head", 80),
    "multi_head_markdown_explained": drawn("markdown", "multi_head", 80, EXPLAINED),
    "fused_table_100_explained": drawn("table", "fused", 100, EXPLAINED),
    "fused_markdown": drawn("markdown", "fused", 80),
    "verified_table_100": drawn("table", "verified", 100),
    "verified_markdown": drawn("markdown", "verified", 100),
    "failed_table_80": drawn("table", "failed", 80),
    "failed_markdown": drawn("markdown", "failed", 80),
    "glossary_80": lambda: glossary.terminal(80),
    "glossary_markdown": glossary.markdown,
}


@pytest.mark.parametrize("name", TEXTS)
def test_golden(name: str) -> None:
    path = GOLDENS / f"{name}.txt"
    text = TEXTS[name]()
    if os.environ.get("ATTNSHAPE_UPDATE_GOLDENS") == "1":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def test_no_golden_is_left_over() -> None:
    assert {path.stem for path in GOLDENS.glob("*.txt")} == set(TEXTS)

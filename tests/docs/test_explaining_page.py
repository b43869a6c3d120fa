"""Every example in docs/explaining.md prints the output shown there; its table has every topic."""

import re
from pathlib import Path

import pytest

from attnshape.explanation.topics.registry import TOPICS
from tests.docs.pages import DOCS, assert_example_output

PAGE = DOCS / "explaining.md"
ROOT = Path(__file__).parents[2]


def test_example_output_matches_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert_example_output(PAGE)


def test_page_has_each_topic() -> None:
    listed = re.findall(r"^\| (\w[\w, ]*) \|", PAGE.read_text(), re.MULTILINE)
    assert {topic.__name__ for topic in TOPICS} <= set(listed)

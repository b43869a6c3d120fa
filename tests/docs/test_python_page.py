"""Every example in docs/python.md prints the output shown there, run in order in one console."""

import pytest

from tests.docs.pages import DOCS, assert_example_output, calls

PAGE = DOCS / "python.md"


def test_example_output_matches_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert_example_output(PAGE)


def test_page_has_examples_of_each_use() -> None:
    assert {"trace", "record", "to_json", "from_json"} <= calls(PAGE)
    assert "Traceback" not in PAGE.read_text()

"""Every example of docs/python.md, typed in order into one console, prints what the page says."""

import pytest

from tests.docs.pages import DOCS, calls, examples_print_what_the_page_says

PAGE = DOCS / "python.md"


def test_examples_print_what_the_page_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    examples_print_what_the_page_says(PAGE)


def test_the_page_has_examples_of_each_use() -> None:
    assert {"trace", "record", "to_json", "from_json"} <= calls(PAGE)
    assert "Traceback" not in PAGE.read_text()

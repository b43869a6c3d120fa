"""Every example of docs/python.md, typed in order into one console, prints what the page says.

ATTNSHAPE_UPDATE_GOLDENS=1 pytest tests/docs writes the outputs anew: read the difference before you keep it.
"""

import contextlib
import io
import linecache
import os
import re
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "python.md"
BLOCK = re.compile(r"(?<=```pycon\n).*?(?=```)", re.DOTALL)
EXAMPLE = re.compile(r"(?P<source>>>> .*\n(?:\.\.\. .*\n|\.\.\.\n)*)(?P<output>(?:(?!>>> ).*\n)*)")
UPDATE = "ATTNSHAPE_UPDATE_GOLDENS"


def typed(source: str, place: int, names: dict[str, object]) -> str:
    """Return what a console prints where this is typed into it, as in a notebook's cell of its own."""
    text = "".join(line[4:] or "\n" for line in source.splitlines(keepends=True))
    file = f"<ipython-input-{place}-page>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            exec(compile(text, file, "single"), names)
        except Exception as error:  # noqa: BLE001 - what an example raises is its output
            print("".join(traceback.format_exception_only(error)), end="")
    return printed.getvalue()


def examples(page: str) -> Iterator[re.Match[str]]:
    for block in BLOCK.finditer(page):
        yield from EXAMPLE.finditer(block.group())


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What each example of the page prints."""
    monkeypatch.setenv("COLUMNS", "100")
    names: dict[str, object] = {"__name__": "__main__"}
    yield [typed(match["source"], place, names) for place, match in enumerate(examples(PAGE.read_text()))]
    for file in [file for file in linecache.cache if file.endswith("-page>")]:
        del linecache.cache[file]


def test_examples_print_what_the_page_says(printed: list[str]) -> None:
    page = PAGE.read_text()
    if os.environ.get(UPDATE):
        outputs = iter(printed)
        fill = lambda block: EXAMPLE.sub(lambda match: match["source"] + next(outputs), block.group())  # noqa: E731
        PAGE.write_text(BLOCK.sub(fill, page))
        return
    for match, output in zip(examples(page), printed, strict=True):
        assert output == match["output"], match["source"]


def test_the_page_has_examples_of_each_use() -> None:
    calls = set(re.findall(r"\w+(?=\()", "".join(match["source"] for match in examples(PAGE.read_text()))))
    assert {"trace", "record", "to_json", "from_json"} <= calls
    assert "Traceback" not in PAGE.read_text()

"""Helpers for the tests of a page: they run its examples in one console, and regenerate its generated parts.

`pytest --update-goldens tests/docs` rewrites both: read the difference before you commit it.
"""

import contextlib
import io
import linecache
import re
import traceback
from pathlib import Path

from tests.goldens import is_updating

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"(?<=```pycon\n).*?(?=```)", re.DOTALL)
EXAMPLE = re.compile(r"(?P<source>>>> .*\n(?:\.\.\. .*\n|\.\.\.\n)*)(?P<output>(?:(?!>>> ).*\n)*)")


def examples(page: Path) -> list[re.Match[str]]:
    """Return each example of a page: its source and its output."""
    return [match for block in BLOCK.finditer(page.read_text()) for match in EXAMPLE.finditer(block.group())]


def calls(page: Path) -> set[str]:
    """Return the names that a page's examples call."""
    return set(re.findall(r"\w+(?=\()", "".join(match["source"] for match in examples(page))))


def assert_example_output(page: Path) -> None:
    """Run all examples of a page in order in one console, and compare their output."""
    printed = _printed(page)
    if is_updating():
        outputs = iter(printed)
        fill = lambda block: EXAMPLE.sub(lambda match: match["source"] + next(outputs), block.group())  # noqa: E731
        page.write_text(BLOCK.sub(fill, page.read_text()))
        return
    for match, output in zip(examples(page), printed, strict=True):
        assert output == match["output"], match["source"]


def assert_page_part(page: Path, name: str, expected: str) -> None:
    """Compare the part of a page between the comments of a name with the expected text."""
    found = re.search(rf"(?<=<!-- {name} -->\n).*?(?=<!-- end of {name} -->)", page.read_text(), re.DOTALL)
    assert found is not None
    if is_updating():
        text = page.read_text()
        page.write_text(text[: found.start()] + expected + text[found.end() :])
        return
    assert found.group() == expected


def _printed(page: Path) -> list[str]:
    names: dict[str, object] = {"__name__": "__main__"}
    try:
        return [_typed(match["source"], place, names) for place, match in enumerate(examples(page))]
    finally:
        for file in [file for file in linecache.cache if file.endswith("-page>")]:
            del linecache.cache[file]


def _typed(source: str, place: int, names: dict[str, object]) -> str:
    """Run source as a notebook cell, and return the output."""
    text = "".join(line[4:] or "\n" for line in source.splitlines(keepends=True))
    file = f"<ipython-input-{place}-page>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            exec(compile(text, file, "single"), names)
        except Exception as error:  # noqa: BLE001 - an exception is part of the example's output
            print("".join(traceback.format_exception_only(error)), end="")
    return printed.getvalue()

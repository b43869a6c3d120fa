"""What the tests of a page share: its examples are typed into one console, its generated parts are made anew.

pytest --update-goldens tests/docs rewrites both: read the difference before you keep it.
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
    """Return each example of a page: what is typed, and what is printed."""
    return [match for block in BLOCK.finditer(page.read_text()) for match in EXAMPLE.finditer(block.group())]


def calls(page: Path) -> set[str]:
    """Return the names that a page's examples call."""
    return set(re.findall(r"\w+(?=\()", "".join(match["source"] for match in examples(page))))


def examples_print_what_the_page_says(page: Path) -> None:
    """Type all examples of a page in order into one console, and compare what each prints."""
    printed = _printed(page)
    if is_updating():
        outputs = iter(printed)
        fill = lambda block: EXAMPLE.sub(lambda match: match["source"] + next(outputs), block.group())  # noqa: E731
        page.write_text(BLOCK.sub(fill, page.read_text()))
        return
    for match, output in zip(examples(page), printed, strict=True):
        assert output == match["output"], match["source"]


def part_is(page: Path, name: str, made: str) -> None:
    """Compare what stands between a page's comments of a name with what is made for it."""
    found = re.search(rf"(?<=<!-- {name} -->\n).*?(?=<!-- end of {name} -->)", page.read_text(), re.DOTALL)
    assert found is not None
    if is_updating():
        text = page.read_text()
        page.write_text(text[: found.start()] + made + text[found.end() :])
        return
    assert found.group() == made


def _printed(page: Path) -> list[str]:
    names: dict[str, object] = {"__name__": "__main__"}
    try:
        return [_typed(match["source"], place, names) for place, match in enumerate(examples(page))]
    finally:
        for file in [file for file in linecache.cache if file.endswith("-page>")]:
            del linecache.cache[file]


def _typed(source: str, place: int, names: dict[str, object]) -> str:
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

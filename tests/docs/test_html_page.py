"""docs/html.md: what it quotes from pages is what these show in Chromium, and its picture is made by a test."""

from __future__ import annotations

import re
from pathlib import Path

import attnshape
from tests.docs.pages import DOCS, assert_page_part
from tests.readme.test_picture import PICTURE
from tests.reporters.sample_pages import page_of
from tests.reporters.test_page_in_browser import Opened, OpenPage, chromium, open_page  # noqa: F401 - fixtures

PAGE = DOCS / "html.md"


def _quoted(*lines: str) -> str:
    return "\n".join(["```text", *lines, "```", ""])


def _totals(shown: Opened) -> list[str]:
    names, numbers = shown.texts(".totals dt"), shown.texts(".totals dd")
    return [f"{name:<20}{number}" for name, number in zip(names, numbers, strict=True)]


def test_totals_are_those_of_the_page(open_page: OpenPage) -> None:  # noqa: F811
    shown = open_page(page_of(attnshape.trace("multi-head", cost=True)), 1600)
    assert_page_part(PAGE, "totals", _quoted(*_totals(shown)))
    shown.page.get_by_label("size L, as a number").fill("1000")
    assert_page_part(PAGE, "totals at L=1000", _quoted(*shown.texts(".status"), "", *_totals(shown)))
    shown.page.get_by_label("size H, as a number").fill("7")
    assert not any(re.search(r"\d", number) for number in shown.texts(".totals dd strong"))
    assert_page_part(PAGE, "status at H=7", _quoted(*shown.texts(".status")))


def test_sentences_of_memory_layouts_are_those_of_the_page(open_page: OpenPage) -> None:  # noqa: F811
    trace = attnshape.trace("multi-head")
    shown = open_page(page_of(trace), 1600)
    lines = []
    for operation in ("transpose", "contiguous"):
        steps = [step for step in trace.steps if step.operation.endswith(operation)]
        shown.page.locator("button.number", has_text=re.compile(rf"^{steps[0].index}$")).click()
        lines += [f"{shown.texts('.details h3')[0]}", *(f"  {one}" for one in shown.texts(".sentences li"))]
    assert_page_part(PAGE, "memory layout", _quoted(*lines))


def test_picture_is_the_one_that_a_test_makes() -> None:
    pictures = re.findall(r"!\[.*?\]\((.*?)\)", PAGE.read_text(encoding="utf-8"))
    assert [Path(PAGE.parent, name) for name in pictures] == [PICTURE]

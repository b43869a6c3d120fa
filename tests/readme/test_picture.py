"""The picture at the top of the README is the one that the page of its command draws on a phone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import attnshape
from attnshape.reporters import web
from tests.goldens import assert_golden
from tests.reporters.sample_pages import page_of
from tests.reporters.test_page_in_browser import OpenPage, chromium, open_page  # noqa: F401 - fixtures

PICTURE = Path(__file__).parents[2] / "docs" / "multi-head.svg"
STYLE = (Path(web.__file__).parent / "assets" / "page.css").read_text(encoding="utf-8")
_TAKE = """svg => {
  for (const one of svg.querySelectorAll("*")) {
    for (const name of ["role", "tabindex", "aria-label", "data-node"]) one.removeAttribute(name);
  }
  svg.querySelectorAll("title").forEach((one) => one.remove());
  return [svg.innerHTML, svg.getAttribute("class"), svg.viewBox.baseVal.width, svg.viewBox.baseVal.height];
}"""


def _rules() -> str:
    """Return the rules of the page's style that its picture needs, in both schemes."""
    light, dark = re.findall(r"^ *:root \{\n.*?^ *\}$", STYLE, re.MULTILINE | re.DOTALL)[:2]
    picture = r"^(?:svg )?(?:\.symbol|\.s\d+ |\.edge|\.arrow|\.node|\.signature|\.narrow)[^\n]*$"
    rules = re.findall(picture, STYLE, re.MULTILINE)
    return "\n".join([light, f"@media (prefers-color-scheme: dark) {{\n{dark}\n}}", *rules])


def test_picture_is_that_of_the_page(open_page: OpenPage) -> None:  # noqa: F811
    shown = open_page(page_of(attnshape.trace("multi-head")), 400)
    taken: Any = shown.page.locator(".flow-frame svg").evaluate(_TAKE)
    content, kind, width, height = taken
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    ground = '<rect width="100%" height="100%" rx="6" fill="var(--panel)"/>'
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" class="{kind}" {size}>'
    assert_golden(PICTURE, f"{opening}\n<style>\n{_rules()}\n</style>\n{ground}\n{content}\n</svg>\n")

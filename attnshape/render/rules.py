"""The rules' pages and their list, as text."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from attnshape.render.fold import fold_words
from attnshape.render.lines import Line, drawn
from attnshape.rules.pages import FAMILIES, Page, family

_WIDEST = 100
"""How wide prose is easily read."""


def listing(pages: Iterable[Page], width: int) -> str:
    """Return the pages' codes and titles beneath their families', at most `width` cells a line."""
    titles = {title: code for code, title in FAMILIES.items()}
    blocks = []
    for title, members in groupby(pages, lambda one: family(one.code)):
        lines = [f"{titles[title]}  {title}"]
        for one in members:
            first, *others = fold_words(one.title, width - len("  AS000  "), hang=0)
            lines += [f"  {one.code}  {first}", *(" " * len("  AS000  ") + line for line in others)]
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def terminal(page: Page, width: int, color: bool) -> str:
    """Return a page for a terminal, at most `width` cells a line but for code; colour only decorates."""
    width = min(width, _WIDEST)
    lines = [Line(line, "bold") for line in fold_words(f"{page.code}: {page.title}", width)]
    for name, body in page.sections.items():
        lines += [Line(""), Line(name, "bold cyan")]
        lines += _code(body) if body.startswith("```") else _prose(body, width)
    return drawn(lines, color)


def _code(fenced: str) -> list[Line]:
    return [Line(f"  {line}".rstrip(), "green") for line in fenced.splitlines()[1:-1]]


def _prose(text: str, width: int) -> list[Line]:
    paragraphs = [" ".join(one.split()) for one in text.split("\n\n")]
    return [Line(f"  {line}") for one in paragraphs for line in fold_words(one, width - 2, hang=0)]

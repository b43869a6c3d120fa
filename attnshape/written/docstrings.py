"""What each line of a docstring is about: a parameter, the result, or nothing in particular."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from attnshape.written.source import FunctionNode, parameters


@dataclass(frozen=True)
class Entry:
    """A line of a docstring, and what it is about."""

    line: int
    text: str
    of: Literal["parameter", "argument", "result", "anything"]
    """`argument` is any of them; `anything` holds where nothing is said, and counts for arrows only."""
    parameter: str | None = None
    item: int = 0
    """Which item of the docstring it is part of: what one says on several lines are alternatives."""
    listed: bool = False
    """Whether it is one of a list, or has a name of its own."""


_ARGUMENTS = re.compile(r"^\s*:?(?:args?|arguments?|params?|parameters?|keyword arguments)\b\s*:?\s*$", re.I)
_SHAPES = re.compile(r"^\s*shapes?\b\s*:?\s*$", re.I)
_RESULT = re.compile(
    r"^\s*(?:[-*]\s*)?"
    r"(?::(?:returns?|rtype)\b|(?i:returns?|outputs?|yields?|return value)\s*(?::|$)|(?:Returns?|Outputs?)\b)"
)
_ANY_INPUT = re.compile(r"^\s*(?:[-*]\s*)?inputs?\s*:", re.I)
_UNDERLINE = re.compile(r"^\s*[-=~]{3,}\s*$")
_HEADING = re.compile(r"^[^:]*:\s*$")
_BULLET = re.compile(r"^\s*[-*•]\s")
_ITEM = re.compile(r"^\s*(?:[-*•]\s+|[`*]*\w+[`*]*(?:\s*\(.*?\))?\s?:(?=\s|$))")


def entries_of(node: FunctionNode, owner: ast.ClassDef | None) -> Iterator[Entry]:
    """Yield the lines of the docstrings of a function, and of the class that it is the forward of."""
    yield from _entries(node, parameters(node))
    if owner is not None and node.name in ("forward", "__call__"):
        yield from (one for one in _entries(owner, parameters(node)) if one.of != "anything")


def _entries(node: FunctionNode | ast.ClassDef, names: Sequence[str]) -> Iterator[Entry]:
    first = node.body[0]
    if not (
        isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    ):
        return
    known = "|".join(map(re.escape, sorted(names, key=len, reverse=True))) or r"(?!)"
    field, quoted = r"(?::param\s+(?:[\w.\[\], ]+\s+)?|:type\s+)?", "[`*'\"]*"
    subject = re.compile(
        rf"^\s*(?:[-*+•]\s*)?{field}{quoted}(?P<name>{known}){quoted}\s*(?:\(.*?\)\s*)?(?::|--?\s|—|=|is\b)"
    )
    lines = first.value.value.split("\n")
    section: Literal["arguments", "shapes", "result"] | None = None
    about: Entry | None = None
    indent, underlined, item = 0, False, 0
    heading: Entry | None = None
    for offset, text in enumerate(lines):
        # what is written as \n is a line only of the text, not of the file
        line = min(first.lineno + offset, first.end_lineno or first.lineno)
        width = len(text) - len(text.lstrip())
        heads = offset + 1 < len(lines) and _UNDERLINE.match(lines[offset + 1]) is not None
        found = subject.match(text)
        if not text.strip() or _UNDERLINE.match(text):
            continue
        if _RESULT.match(text):
            section, about, indent, underlined = "result", Entry(line, text, "result"), width, heads
            heading = about if _HEADING.match(text) else None
        elif _ARGUMENTS.match(text) or _SHAPES.match(text) or heads:
            section, about, underlined = ("shapes" if _SHAPES.match(text) else "arguments"), None, False
        elif found is not None and not (section == "result" and underlined):
            about, indent = Entry(line, text, "parameter", found["name"]), width
        elif _ANY_INPUT.match(text):
            about, indent = Entry(line, text, "argument"), width
        elif section == "shapes" and _ITEM.match(text):
            about, indent = Entry(line, text, "result"), width
        elif heading is not None and about is heading and _BULLET.match(text):
            pass  # bullets may stand as far left as the heading above them
        elif about is not None and offset > 0 and width <= indent and not (section == "result" and underlined):
            about = None
        listed = _ITEM.match(text) is not None and not _RESULT.match(text)
        item += about is None or about.line == line or (about.of == "result" and listed)
        of, name = (about.of, about.parameter) if about is not None else ("anything", None)
        yield Entry(line, text, of, name, item, listed)

"""The lines of source around an expression, with what to mark in each, as a page shows them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from attnshape.model.trace import Source
from attnshape.reporters.escaping import visible_characters
from attnshape.reporters.report_view import excerpt, location
from attnshape.reporters.web.markup import escaped
from attnshape.runtime.files import ReadLines

_AROUND = 2
"""How many lines are shown above and below the expression."""
_LONGEST = 12
"""How many lines of an expression are shown."""
_WIDEST = 400
"""How many characters of a line are shown."""
_TAB = " " * 4


@dataclass(frozen=True)
class SourceMark:
    """What to mark in a line: the line's number, the first character, and how many there are."""

    line: int
    start: int
    length: int


@dataclass(frozen=True)
class SourceLines:
    """Lines around an expression, without the indentation that they share."""

    first: int
    """The number of the first line."""
    lines: tuple[str, ...]
    marks: tuple[SourceMark, ...]


def lines_around(source: Source | None, expression: str, read_lines: ReadLines) -> SourceLines | None:
    """Return the lines around an expression; None if the file no longer has it there.

    >>> file = ["def f(x):\\n", "    y = x.mT\\n", "    return y\\n"]
    >>> found = lines_around(Source("model.py", 2, 9, "f"), "x.mT", lambda name: file)
    >>> found.first, found.lines[1], found.marks
    (1, '    y = x.mT', (SourceMark(line=2, start=8, length=4),))
    """
    found = excerpt(source, expression, read_lines)
    parts = expression.splitlines()[:_LONGEST]
    if source is None or found is None or not parts or found.marked != "".join(visible_characters(parts[0].rstrip())):
        return None
    every = read_lines(source.file)
    first, last = max(source.line - _AROUND, 1), min(source.line + len(parts) - 1 + _AROUND, len(every))
    raw = [line.rstrip()[:_WIDEST] for line in every[first - 1 : last]]
    indents = [len(line) - len(line.lstrip()) for line in raw if line]
    indent = min(indents, default=0)
    shown = [_characters(line)[indent:] for line in raw]
    marks = []
    for number, part in enumerate(parts, source.line):
        line = raw[number - first] if number <= last else ""
        start = source.column - 1 if number == source.line else len(part) - len(part.lstrip())
        end = start + len(part.strip())
        if line[start:end] == part.strip() and part.strip():
            characters = shown[number - first]
            before = len("".join(characters[: start - indent]))
            marks.append(SourceMark(number, before, len("".join(characters[start - indent : end - indent]))))
    return SourceLines(first, tuple("".join(characters) for characters in shown), tuple(marks))


def source_figure(source: Source, expression: str, read_lines: ReadLines) -> str:
    """Return the lines around an expression as HTML, with carets below it."""
    place = escaped(location(source) + (f" in {source.function}" if source.function else ""))
    found = lines_around(source, expression, read_lines)
    if found is None:
        shown = f'<pre tabindex="0">{escaped(expression)}</pre>' if expression else ""
        return f'<figure class="source"><figcaption>{place}</figcaption>{shown}</figure>'
    marks = {mark.line: mark for mark in found.marks}
    width = len(str(found.first + len(found.lines) - 1))
    lines = []
    for number, line in enumerate(found.lines, found.first):
        lines.append(f'<span class="line-number">{number:>{width}} </span>')
        mark = marks.get(number)
        if mark is None:
            lines.append(f"{escaped(line)}\n")
            continue
        end = mark.start + mark.length
        before, marked, after = map(escaped, (line[: mark.start], line[mark.start : end], line[end:]))
        carets = " " * (width + 1 + mark.start) + "^" * mark.length
        lines.append(f'{before}<mark>{marked}</mark>{after}\n<span class="carets" aria-hidden="true">{carets}\n</span>')
    return f'<figure class="source"><figcaption>{place}</figcaption><pre tabindex="0">{"".join(lines)}</pre></figure>'


@lru_cache(maxsize=1024)
def _characters(line: str) -> tuple[str, ...]:
    """Return what is shown for each character of a line."""
    return tuple(_TAB if char == "\t" else text for char, text in zip(line, visible_characters(line), strict=True))

"""The line of the source that a finding stands on, with carets under the expression."""

from __future__ import annotations

from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size

from attnshape.reading import ReadLines
from attnshape.render.text import visible
from attnshape.report import Finding

_CUT = "…"
_AFTER = 4
"""How many cells behind the expression are worth cutting off what stands before it."""


@dataclass(frozen=True)
class Excerpt:
    """A line of source without its indentation, made visible: the expression, and what is around it."""

    before: str
    marked: str
    after: str

    def fitted(self, width: int) -> tuple[str, str]:
        """Return the line and the carets beneath it, cut to so many cells around where the expression starts.

        >>> Excerpt("x = ", "q @ k", " / 2").fitted(40)
        ('x = q @ k / 2', '    ^^^^^')
        >>> Excerpt("attention_scores = ", "q @ k", " / math.sqrt(D)").fitted(20)
        ('…cores = q @ k / ma…', '         ^^^^^')
        """
        before = self.before
        if cell_len(before + self.marked) + len(_CUT) > width:
            before = _end(before, max(width // 4, width - cell_len(self.marked) - 2 * len(_CUT) - _AFTER))
        line = before + self.marked + self.after
        if cell_len(line) > width:
            line = set_cell_size(line, width - len(_CUT)) + _CUT
        start = cell_len(before)
        return line, (" " * start + "^" * min(cell_len(self.marked), width - start)).rstrip()


def excerpt(finding: Finding, read_lines: ReadLines) -> Excerpt | None:
    """Return the line that a finding stands on, None where it can't be read.

    Of an expression of several lines, the first is marked; its first character where the line reads otherwise.
    """
    source = finding.source
    lines = read_lines(source.file) if source is not None else ()
    if source is None or not 1 <= source.line <= len(lines):
        return None
    line = lines[source.line - 1].rstrip()
    indent = len(line) - len(line.lstrip())
    column = source.column - 1
    if not indent <= column < len(line):
        return Excerpt(visible(line.strip()), "", "") if line.strip() else None
    first = (finding.expression.splitlines() or [""])[0].rstrip()
    end = column + (len(first) if first and line.startswith(first, column) else 1)
    return Excerpt(visible(line[indent:column]), visible(line[column:end]), visible(line[end:]))


def _end(text: str, width: int) -> str:
    """Return the text's last cells, with a sign that something is missing."""
    if cell_len(text) <= width:
        return text
    start = next(place for place in range(len(text) + 1) if cell_len(text[place:]) <= width - len(_CUT))
    return _CUT + text[start:]

"""Blocks of Markdown that several documents have: tables, and fenced code."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.cells import cell_len

from attnshape.reporters.terminal import pad

_WIDEST = 60
"""The cells that a column is padded to; a longer cell is not."""


def markdown_table(rows: Sequence[tuple[str, ...]], numbered: bool = False) -> str:
    """Return a table of Markdown cells, the names of the columns first; numbers in the first column go right."""
    widths = [max(3, *(min(cell_len(row[place]), _WIDEST) for row in rows)) for place in range(len(rows[0]))]
    rule = ["-" * width for width in widths]
    lines = [list(map(pad, cells, widths)) for cells in (rows[0], rule, *rows[1:])]
    if numbered:
        for line in lines:
            line[0] = line[0].strip().rjust(widths[0])
        lines[1][0] = "-" * (widths[0] - 1) + ":"
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def fenced(lines: list[str], language: str) -> str:
    """Return lines as a block of code; the fence is longer than any in it."""
    longest = max((len(ticks) for line in lines for ticks in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return "\n".join([f"{fence}{language}", *lines, fence])

"""Several results for the terminal: a heading above each, and a summary at the end."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from rich.cells import cell_len

from attnshape.errors import ExitStatus
from attnshape.render.fold import fold_words, pad
from attnshape.render.lines import Line, drawn
from attnshape.render.several_words import CANNOT, came_out, sizes, tally, title
from attnshape.render.text import visible
from attnshape.several import Outcome

_NARROWEST = 24
_GAP = 2
_NAMES = ("target", "sizes", "outcome")
_STYLES = {ExitStatus.FINE: "green", ExitStatus.FOUND: "bold red", ExitStatus.CANNOT: "bold red"}


def heading(outcome: Outcome[Any], width: int, color: bool) -> str:
    """Return what stands above one result, which is the error itself where there is none."""
    width = max(width, _NARROWEST)
    lines = _title(visible(title(outcome)), width)
    if outcome.error is not None:
        lines.append(Line(""))
        lines += [Line(one, "bold red") for one in fold_words(visible(f"{CANNOT}: {outcome.error.message}"), width)]
        hint = outcome.error.hint
        lines += [Line(one, "green") for one in fold_words(visible(f"hint: {hint}"), width)] if hint else []
    return drawn(lines, color)


def summary(outcomes: Sequence[Outcome[Any]], width: int, color: bool) -> str:
    """Return a table with a row for each result, and below it how many came out in each way."""
    width = max(width, _NARROWEST)
    rows = [tuple(map(visible, (one.name, sizes(one), came_out(one)))) for one in outcomes]
    kept = [place for place in range(len(_NAMES)) if any(row[place] for row in rows)]
    table = [tuple(row[place] for place in kept) for row in (_NAMES, *rows)]
    widths = _widths(table, width)
    styles = ["bold", *(_STYLES[outcome.status] for outcome in outcomes)]
    lines = [*_title("Summary", width)]
    for row, style in zip(table, styles, strict=True):
        lines += [Line(one, style) for one in _lines(row, widths)]
    return drawn([*lines, Line(""), *(Line(one, "bold") for one in fold_words(tally(outcomes), width))], color)


def _title(text: str, width: int) -> list[Line]:
    folded = fold_words(text, width, hang=0)
    return [*(Line(one, "bold cyan") for one in folded), Line("=" * max(map(cell_len, folded)), "cyan")]


def _widths(table: Sequence[tuple[str, ...]], width: int) -> list[int]:
    """Return the columns' widths: the widest gives way first, down to an equal share."""
    widths = [max(cell_len(row[place]) for row in table) for place in range(len(table[0]))]
    room = width - _GAP * (len(widths) - 1)
    while sum(widths) > room:
        widths[widths.index(max(widths))] -= 1
    return widths


def _lines(row: tuple[str, ...], widths: Sequence[int]) -> list[str]:
    folded = [fold_words(cell, width, hang=0) for cell, width in zip(row, widths, strict=True)]
    return [(" " * _GAP).join(map(pad, line, widths)).rstrip() for line in zip_longest(*folded, fillvalue="")]

"""Draws patterns of positions as pictures: a row for each query or output position, a column for each key or input."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attnshape.model.behaviour import KeyPattern
from attnshape.reporters.web.markup import escaped

_CELL = 15
"""The width of a pair of positions, in pixels."""
_MOST_CELLS = 10_000
"""How many pairs of positions a pattern has at most that is drawn."""


def pattern_figure(title: str, rows: Sequence[str]) -> str:
    """Return a pattern with its caption; `#` marks the cells that stand out. A large pattern isn't drawn."""
    columns = max(map(len, rows), default=0)
    if not 0 < len(rows) * columns <= _MOST_CELLS:
        return f'<figure class="pattern"><figcaption>{escaped(title)}</figcaption></figure>'
    cells = "".join(
        f'<rect class="{"seen" if char == "#" else "unseen"}" x="{column * _CELL}" y="{row * _CELL}"'
        f' width="{_CELL - 1}" height="{_CELL - 1}"/>'
        for row, text in enumerate(rows)
        for column, char in enumerate(text)
    )
    label = f"{title}, where # stands: {' '.join(rows)}"
    width, height = columns * _CELL, len(rows) * _CELL
    picture = f'<svg role="img" aria-label="{escaped(label)}" width="{width}" height="{height}">{cells}</svg>'
    return f'<figure class="pattern"><figcaption>{escaped(title)}</figcaption>{picture}</figure>'


def key_patterns(patterns: Sequence[KeyPattern]) -> str:
    """Return which keys the queries of each attention see, one figure a pattern; empty if none is known."""
    return pattern_list(pattern_figure(_title(one), one.rows) for one in patterns)


def pattern_list(figures: Iterable[str]) -> str:
    """Return figures side by side; empty if there are none."""
    shown = "".join(figures)
    return f'<div class="patterns">{shown}</div>' if shown else ""


def _title(pattern: KeyPattern) -> str:
    """Return the caption of a pattern.

    >>> _title(KeyPattern(attention="model.py:24", part="head 1", queries="Lq", keys="Lk", rows=("#",)))
    'model.py:24, head 1: queries (rows, Lq) see keys (columns, Lk)'
    """
    element = "the first batch element" if pattern.first_element else ""
    where = ", ".join(filter(None, (pattern.attention, pattern.part, element)))
    sees = f"queries (rows, {pattern.queries}) see keys (columns, {pattern.keys})"
    return f"{where}: {sees}" if where else sees

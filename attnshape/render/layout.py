"""How wide each column is, which columns find no room, and the lines of a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Protocol

from rich.cells import cell_len

from attnshape.render.fold import fold_code, pad

GAP = 2


class Foldable(Protocol):
    """A column: the cells' least width where they may be folded."""

    @property
    def least(self) -> int | None:
        """None where they are never folded."""


class Line(Protocol):
    """A row: its cells, that of the first column first."""

    @property
    def cells(self) -> tuple[str, ...]:
        """Each column's text."""


class Grid(Protocol):
    """What is laid out: the columns' names, all columns but the first, and the rows."""

    @property
    def names(self) -> tuple[str, ...]:
        """That of the first column first."""

    @property
    def columns(self) -> Sequence[Foldable]:
        """All but the first, whose cells are never folded."""

    @property
    def rows(self) -> Sequence[Line]:
        """In order."""


@dataclass(frozen=True)
class Layout:
    """The widths of the columns that are shown, the name of the first one chosen, and the names of those left out."""

    widths: tuple[int, ...]
    first: str
    left_out: tuple[str, ...] = ()

    def lines(self, cells: tuple[str, ...]) -> list[str]:
        """Return a row's lines: numbers to the right, all else to the left."""
        return self.stacked(tuple((cell,) for cell in cells))

    def stacked(self, cells: tuple[tuple[str, ...], ...]) -> list[str]:
        """Return the lines of a row whose cells have texts one below the other."""
        folded = [
            [line for text in texts for line in fold_code(text, width)]
            for texts, width in zip(cells, self.widths, strict=False)
        ]
        folded[0] = [" " * (self.widths[0] - cell_len(line)) + line for line in folded[0]]
        return [(" " * GAP).join(map(pad, line, self.widths)).rstrip() for line in zip_longest(*folded, fillvalue="")]


def lay_out(grid: Grid, width: int) -> Layout:
    """Return the layout for so many cells: text columns are folded, then columns are left out from the right.

    Numbers are never folded, and the first column of the user's choice stays.
    """
    wanted = [_natural(grid, place) for place in range(len(grid.names))]
    least = [
        wanted[0],
        *(min(full, column.least or full) for full, column in zip(wanted[1:], grid.columns, strict=True)),
    ]
    kept = len(wanted)
    while kept > 2 and sum(least[:kept]) + GAP * (kept - 1) > width:
        kept -= 1
    room = width - GAP * (kept - 1)
    widths = wanted[:kept]
    while sum(widths) > room:
        widest = max(range(1, kept), key=lambda place: widths[place] * (widths[place] > least[place]))
        widths[widest] -= 1
    return Layout(tuple(widths), grid.names[1], grid.names[kept:])


def _natural(grid: Grid, place: int) -> int:
    return max(cell_len(grid.names[place]), *(cell_len(row.cells[place]) for row in grid.rows), 1)

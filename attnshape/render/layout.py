"""How wide each column is, which columns find no room, and the lines of a row."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest

from rich.cells import cell_len

from attnshape.render.fold import fold_code, pad
from attnshape.render.view import View

GAP = 2


@dataclass(frozen=True)
class Layout:
    """The widths of the columns that are shown, the name of the first one chosen, and the names of those left out."""

    widths: tuple[int, ...]
    first: str
    left_out: tuple[str, ...] = ()

    def lines(self, cells: tuple[str, ...]) -> list[str]:
        """Return a row's lines: numbers to the right, all else to the left."""
        folded = [fold_code(cell, width) for cell, width in zip(cells, self.widths, strict=False)]
        folded[0] = [" " * (self.widths[0] - cell_len(line)) + line for line in folded[0]]
        return [(" " * GAP).join(map(pad, line, self.widths)).rstrip() for line in zip_longest(*folded, fillvalue="")]


def lay_out(view: View, width: int) -> Layout:
    """Return the layout for so many cells: text columns are folded, then columns are left out from the right.

    Numbers are never folded, and the first column of the user's choice stays.
    """
    wanted = [_natural(view, place) for place in range(len(view.names))]
    least = [
        wanted[0],
        *(min(full, column.least or full) for full, column in zip(wanted[1:], view.columns, strict=True)),
    ]
    kept = len(wanted)
    while kept > 2 and sum(least[:kept]) + GAP * (kept - 1) > width:
        kept -= 1
    room = width - GAP * (kept - 1)
    widths = wanted[:kept]
    while sum(widths) > room:
        widest = max(range(1, kept), key=lambda place: widths[place] * (widths[place] > least[place]))
        widths[widest] -= 1
    return Layout(tuple(widths), view.names[1], view.names[kept:])


def _natural(view: View, place: int) -> int:
    return max(cell_len(view.names[place]), *(cell_len(row.cells[place]) for row in view.rows), 1)

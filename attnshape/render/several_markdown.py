"""Several results as one Markdown document: a heading above each, and a summary at the end."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from rich.cells import cell_len

from attnshape.render.fold import pad
from attnshape.render.several_words import CANNOT, came_out, sizes, tally, title
from attnshape.render.text import code_cell, prose, prose_with_code
from attnshape.several import Outcome

_WIDEST = 60
"""To how many cells a column is padded; what is longer stands out."""


def heading(outcome: Outcome[Any]) -> str:
    """Return what stands above one result, which is the error itself where there is none."""
    # number signs at a heading's end would be taken for its own
    parts = ["## " + re.sub(r" (#+)$", r" \\\1", prose(title(outcome)))]
    if outcome.error is not None:
        parts.append(f"**{CANNOT}:** {prose_with_code(outcome.error.message)}")
        parts += [f"- hint: {prose_with_code(outcome.error.hint)}"] if outcome.error.hint else []
    return "\n\n".join(parts) + "\n"


def summary(outcomes: Sequence[Outcome[Any]]) -> str:
    """Return a table with a row for each result, and below it how many came out in each way."""
    rows = [(prose(one.name), code_cell(sizes(one)), prose(came_out(one))) for one in outcomes]
    names = ("target", "sizes", "outcome")
    widths = [max(3, *(min(cell_len(row[place]), _WIDEST) for row in (names, *rows))) for place in range(len(names))]
    lines = [names, tuple("-" * width for width in widths), *rows]
    table = "\n".join("| " + " | ".join(map(pad, cells, widths)) + " |" for cells in lines)
    return f"## Summary\n\n{table}\n\n**{prose(tally(outcomes))}**\n"

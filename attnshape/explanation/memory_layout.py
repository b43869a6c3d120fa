"""Where the vectors of a tensor lie in memory, as a table: strides that one can read."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from attnshape.explanation.sentences import axis_label, tensor_axes
from attnshape.explanation.writing import SectionWriter
from attnshape.model.formatting import join_words
from attnshape.model.trace import TensorRecord

_MOST = 3
"""How many rows and columns a table has."""


def memory_table(text: SectionWriter, when: str, tensor: TensorRecord) -> None:
    """Add a table of where the first vectors of a tensor lie in its storage, by its third- and second-to-last axes.

    Nothing is added if a vector along the last axis isn't in one piece, or if there is only one row or column.

    Args:
        text: The section.
        when: With what the caption begins, such as `after the copy`.
        tensor: A tensor of three axes or more.
    """
    if len(tensor.shape) < 3 or len(tensor.stride) != len(tensor.shape) or tensor.stride[-1] != 1:
        return
    (row, rows), (column, columns), (last, width) = tensor_axes(tensor)[-3:]
    if min(rows, columns) < 2:
        return
    before = [
        f"the axis of {axis}" if axis.isdecimal() else f"`{axis}`"
        for axis, size in tensor_axes(tensor)[:-3]
        if size > 1
    ]
    index = f", at the first index of {join_words(before)}" if before else ""
    start = f"{when[0].upper()}{when[1:]}, the {axis_label((last, width))} features lie"
    text.what(f"{start} at these places of the storage{index}:")
    heading = [f"`{column}={place}`" for place in range(min(columns, _MOST))]
    cells = [
        [_cell(text, when, tensor, (row, one), (column, other), width) for other in range(min(columns, _MOST))]
        for one in range(min(rows, _MOST))
    ]
    more = ["…"] if columns > _MOST else []
    table = [[f"`{row}={place}`", *line, *more] for place, line in enumerate(cells)]
    text.table(["", *heading, *more], [*table, *([["…"] * (1 + len(heading) + len(more))] if rows > _MOST else [])])


def _cell(
    text: SectionWriter, when: str, tensor: TensorRecord, row: tuple[str, int], column: tuple[str, int], width: int
) -> str:
    """Return the first and the last place of a vector, counted in numbers from the start of the storage."""
    first = tensor.offset + row[1] * tensor.stride[-3] + column[1] * tensor.stride[-2]
    place = f"{row[0]}={row[1]}, {column[0]}={column[1]}"
    how = f"where the vector at {place} lies, from the strides"
    start, end = (
        text.counted(f"{which} place of {place} {when}", value, how)
        for which, value in (("first", first), ("last", first + width - 1))
    )
    return f"{start}–{end}" if width > 1 else start


def can_view(tensor: TensorRecord, shape: Sequence[int]) -> bool:
    """Return whether torch makes a view of such a tensor in another shape; it is tried on one without memory."""
    placeholder = torch.empty_strided(tensor.shape, tensor.stride, device="meta")
    try:
        placeholder.view(shape)
    except RuntimeError:
        return False
    return True

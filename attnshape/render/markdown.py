"""A GitHub-flavoured Markdown table that reads well unrendered too."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len

from attnshape.render.fold import pad
from attnshape.render.summary import Marked, Remark
from attnshape.render.text import code, code_cell, prose, prose_with_code
from attnshape.render.view import Row, View

_WIDEST = 60
"""To how many cells a column is padded; what is longer stands out."""


def markdown(view: View) -> str:
    """Return the view as Markdown: what was run, the table, and below it lists of sentences and remarks."""
    parts = [_header(view)]
    if view.rows:
        parts.append(_table(view))
    sentences = [f"- **{row.sentence[0]}** {prose(row.sentence[1])}" for row in view.rows if row.sentence]
    lists = ["\n".join(sentences)] if sentences else []
    lists += ["\n".join(map(item, view.footer))] if view.footer else []
    # Two lists in a row would become one: a comment that doesn't show keeps them apart.
    return "\n\n".join([*parts, "\n\n<!-- -->\n\n".join(lists)]).rstrip() + "\n"


def item(remark: Remark) -> str:
    """Return a remark as an item of a list."""
    return "\n".join([f"- {prose_with_code(remark.text)}", *(f"  - {_tensor(one)}" for one in remark.tensors)])


def _tensor(one: Marked) -> str:
    signature, shape = (
        " ".join(_bold(prose(word)) if place in one.marks else prose(word) for place, word in enumerate(words))
        for words in (one.signature, one.shape)
    )
    return " ".join(part for part in (code(one.name), signature.strip(), f"({shape or 'scalar'})") if part)


def _bold(text: str) -> str:
    return f"**{text}**" if text else ""


def _header(view: View) -> str:
    header = view.header
    lines = [code(header.command)] if header.command else []
    lines.append(" · ".join((f"**{prose(header.target)}**", prose(header.device), prose(header.dtype))))
    return "\n\n".join([*lines, prose(", ".join(header.sizes))]).rstrip()


def _table(view: View) -> str:
    rows: list[tuple[str, ...]] = [view.names]
    for row in view.rows:
        if row.heading:
            rows.append(("", f"**{row.heading}**", *[""] * (len(view.columns) - 1)))
        rows.append(_cells(view, row))
    return ruled(rows)


def ruled(rows: Sequence[tuple[str, ...]]) -> str:
    """Return rows of Markdown, the columns' names first, as a table whose first column is of numbers."""
    widths = [max(3, *(min(cell_len(row[place]), _WIDEST) for row in rows)) for place in range(len(rows[0]))]
    rule = ("-" * (widths[0] - 1) + ":", *("-" * width for width in widths[1:]))
    lines = [_line(cells, widths) for cells in (rows[0], rule, *rows[1:])]
    return "\n".join(lines)


def _line(cells: tuple[str, ...], widths: list[int]) -> str:
    first = " " * (widths[0] - cell_len(cells[0])) + cells[0]
    return "| " + " | ".join((first, *map(pad, cells[1:], widths[1:]))) + " |"


def _cells(view: View, row: Row) -> tuple[str, ...]:
    pairs = zip(view.columns, row.cells[1:], strict=True)
    return (row.cells[0], *(code_cell(cell) if column.code else prose(cell) for column, cell in pairs))

"""Differences as a GitHub-flavoured Markdown table."""

from __future__ import annotations

from attnshape.render.diff_view import Cell, Row, View
from attnshape.render.markdown import item, ruled
from attnshape.render.text import code, code_cell, prose


def markdown(view: View) -> str:
    """Return the view as Markdown: what was compared, the table, and below it a list of remarks."""
    parts = [_header(view)]
    if view.rows:
        names = (view.names[0], *view.names[1:])
        parts.append(ruled([names, *(_row(row, view.codes) for row in view.rows)]))
    parts.append("\n".join(map(item, view.footer)))
    return "\n\n".join(parts).rstrip() + "\n"


def _header(view: View) -> str:
    header = view.header
    lines = [code(header.command)] if header.command else []
    lines.append(f"**{prose(header.targets)}**" if header.targets else "")
    return "\n\n".join([*(line for line in lines if line), prose(", ".join(header.sizes))]).rstrip()


def _row(row: Row, codes: tuple[bool, ...]) -> tuple[str, ...]:
    plain = row.kind == "folded"
    # numbers and signs are the tool's own, and start no list inside of a cell
    cells = (_cell(cell, is_code and not plain) for cell, is_code in zip(row.cells, codes, strict=True))
    return (row.number, *cells)


def _cell(cell: Cell, is_code: bool) -> str:
    written = code_cell if is_code else prose
    return written(cell.text) if cell.old is None else f"{written(cell.old)} → {written(cell.text)}"

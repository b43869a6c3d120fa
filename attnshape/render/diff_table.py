"""A table of differences for the terminal: what changed stands on two lines, the old one above."""

from __future__ import annotations

from dataclasses import dataclass

from rich.cells import cell_len

from attnshape.render.diff_view import Cell, View
from attnshape.render.fold import fold_command, fold_words
from attnshape.render.layout import GAP, lay_out
from attnshape.render.lines import Line, drawn

_NARROWEST = 24
_STYLES = {"changed": "", "added": "green", "removed": "red", "same": "dim", "folded": "dim"}
_TONES = {"plain": "dim", "good": "green", "bad": "bold red"}


@dataclass(frozen=True)
class _Column:
    least: int | None


@dataclass(frozen=True)
class _Line:
    cells: tuple[str, ...]


@dataclass(frozen=True)
class _Grid:
    names: tuple[str, ...]
    columns: tuple[_Column, ...]
    rows: tuple[_Line, ...]


def table(view: View, width: int, color: bool) -> str:
    """Return the view as text of at most `width` cells a line; colour only decorates."""
    width = max(width, _NARROWEST)
    sections = [_header(view, width), _body(view, width), _footer(view, width)]
    first, *others = (section for section in sections if section)
    return drawn([*first, *(line for section in others for line in (Line(""), *section))], color)


def _header(view: View, width: int) -> list[Line]:
    header = view.header
    lines = [Line(text, "dim") for text in fold_command(header.command, width)] if header.command else []
    lines += [Line(text, "bold") for text in fold_words(header.targets, width)]
    sizes = "  ".join(size.replace(" ", "\N{NO-BREAK SPACE}") for size in header.sizes)
    return lines + [Line(text.replace("\N{NO-BREAK SPACE}", " ")) for text in fold_words(sizes, width, hang=0)]


def _body(view: View, width: int) -> list[Line]:
    if not view.rows:
        return []
    stacks = [((row.number,), *map(_texts, row.cells)) for row in view.rows]
    # the widest text of each cell is what its column must have room for; what is folded goes across all
    lines = tuple(
        _Line(tuple(max(texts, key=cell_len) for texts in stack))
        for row, stack in zip(view.rows, stacks, strict=True)
        if row.kind != "folded"
    )
    layout = lay_out(_Grid(view.names, tuple(map(_Column, view.leasts)), lines), width)
    found = [Line(text, "bold") for text in layout.lines(view.names)]
    for row, stack in zip(view.rows, stacks, strict=True):
        if row.kind == "folded":
            indent = " " * (layout.widths[0] + GAP)
            texts = [indent + text for text in fold_words(row.cells[0].text, width - len(indent))]
        else:
            texts = layout.stacked(stack)
        found += [Line(text, _STYLES[row.kind]) for text in texts]
    if layout.left_out:
        left_out = f"too narrow for {', '.join(layout.left_out)}: widen the terminal"
        found += [Line(text, "yellow") for text in fold_words(left_out, width)]
    return found


def _texts(cell: Cell) -> tuple[str, ...]:
    return (cell.text,) if cell.old is None else (cell.old, f"→ {cell.text}")


def _footer(view: View, width: int) -> list[Line]:
    return [Line(text, _TONES[remark.tone]) for remark in view.footer for text in fold_words(remark.text, width)]

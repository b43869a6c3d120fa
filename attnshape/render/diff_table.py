"""A table of differences for the terminal: what changed stands on two lines, the old one above."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rich.cells import cell_len

from attnshape.render.diff_view import Cell, View
from attnshape.render.fold import fold_command, fold_words
from attnshape.render.layout import GAP, Layout, lay_out
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
    view, dropped = _narrowed(view, width)
    stacks = _stacks(view)
    layout = _laid_out(view, width)
    found = [Line(text, "bold") for text in layout.lines(view.names)]
    for row, stack in zip(view.rows, stacks, strict=True):
        if row.kind == "folded":
            indent = " " * (layout.widths[0] + GAP)
            texts = [indent + text for text in fold_words(row.cells[0].text, width - len(indent))]
        else:
            texts = layout.stacked(stack)
        found += [Line(text, _STYLES[row.kind]) for text in texts]
    if dropped or layout.left_out:
        left_out = f"too narrow for {', '.join((*dropped, *layout.left_out))}: widen the terminal"
        found += [Line(text, "yellow") for text in fold_words(left_out, width)]
    return found


def _narrowed(view: View, width: int) -> tuple[View, tuple[str, ...]]:
    """Return the view without columns in which nothing differs, while one that differs has no room, and their names."""
    dropped: list[str] = []
    while left_out := _laid_out(view, width).left_out:
        differing = {place for row in view.rows for place, cell in enumerate(row.cells) if cell.old is not None}
        # the first cell is the step's, which always stays
        alike = [place for place in range(1, len(view.names) - 1) if place not in differing]
        if not alike or not any(view.names.index(name) - 1 in differing for name in left_out):
            break
        dropped.insert(0, view.names[alike[-1] + 1])
        view = _without(view, alike[-1])
    return view, tuple(dropped)


def _without(view: View, place: int) -> View:
    names = view.names[: place + 1] + view.names[place + 2 :]
    rows = tuple(replace(row, cells=row.cells[:place] + row.cells[place + 1 :]) for row in view.rows)
    codes = view.codes[:place] + view.codes[place + 1 :]
    leasts = view.leasts[:place] + view.leasts[place + 1 :]
    return replace(view, names=names, codes=codes, leasts=leasts, rows=rows)


def _stacks(view: View) -> list[tuple[tuple[str, ...], ...]]:
    return [((row.number,), *map(_texts, row.cells)) for row in view.rows]


def _laid_out(view: View, width: int) -> Layout:
    # the widest text of each cell is what its column must have room for; what is folded goes across all
    lines = tuple(
        _Line(tuple(max(texts, key=cell_len) for texts in stack))
        for row, stack in zip(view.rows, _stacks(view), strict=True)
        if row.kind != "folded"
    )
    return lay_out(_Grid(view.names, tuple(map(_Column, view.leasts)), lines), width)


def _texts(cell: Cell) -> tuple[str, ...]:
    return (cell.text,) if cell.old is None else (cell.old, f"→ {cell.text}")


def _footer(view: View, width: int) -> list[Line]:
    return [Line(text, _TONES[remark.tone]) for remark in view.footer for text in fold_words(remark.text, width)]

"""Tables for the terminal: a trace, a difference on two lines a row, the differences of two folders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.cells import cell_len

from attnshape.reporters.escaping import visible
from attnshape.reporters.labels import NOT_CONTIGUOUS
from attnshape.reporters.reporter import Reporter, Screen
from attnshape.reporters.terminal import (
    GAP,
    NARROWEST,
    ColumnLayout,
    StyledLine,
    fold_command,
    fold_words,
    header_lines,
    lay_out,
    pad,
    render_lines,
    render_sections,
    styled,
)
from attnshape.reporters.text import BATCH
from attnshape.reporters.trace_view import FooterLine, Header, MarkedTensor, TraceView, trace_view

if TYPE_CHECKING:
    from attnshape.model.difference import Difference, FolderDifference
    from attnshape.reporters.diff_view import DiffCell, DiffView

_SENTENCE_WIDTH = 100
_TRACE_STYLES = {"input": "dim", "step": "", "output": "", "failure": "bold red", "returned": "dim"}
_DIFF_STYLES = {"changed": "", "added": "green", "removed": "red", "same": "dim", "folded": "dim"}
_TONES = {"plain": "dim", "good": "green", "bad": "bold red"}
_INDENT = "    "
_SHAPE, _STRIDE = "shape", "stride"


def trace_table(view: TraceView, screen: Screen) -> str:
    """Return a trace as text of at most the screen's width; colour only decorates."""
    width = max(screen.width, NARROWEST)
    footer = _footer(view.footer, width)
    body: list[StyledLine] = []
    if view.rows:
        view, layout, left_out = _fitted(view, width)
        body = _trace_rows(view, layout, width)
        if left_out:
            choice = ",".join((layout.first, *left_out))
            footer += _too_narrow(left_out, f", or choose with --columns {choice}", width)
    summary = [line for text in view.summary for line in styled(text, width)]
    return render_sections([_header(view.header, width), summary, body, footer], screen.color)


def diff_table(view: DiffView, screen: Screen) -> str:
    """Return a difference as text of at most the screen's width; a row that changed has the old line above the new."""
    width = max(screen.width, NARROWEST)
    body = _diff_rows(view, width) if view.rows else []
    return render_sections([_header(view.header, width), body, _footer(view.footer, width)], screen.color)


def folders_table(differences: FolderDifference, command: str, screen: Screen) -> str:
    """Return the differences of two folders: a summary, then each file that differs under a heading."""
    from attnshape.reporters.diff_view import diff_view, differing_files, folder_summary

    width = screen.width
    title = visible(f"{differences.old} → {differences.new}")
    lines = header_lines(visible(command), title, width)
    lines += [line for text in folder_summary(differences) for line in styled(visible(text), width)]
    parts = [render_lines(lines, screen.color)]
    for file in differing_files(differences):
        heading = render_lines(styled(visible(file.name), width, "bold cyan"), screen.color)
        parts.append(heading + diff_table(diff_view(file.difference), screen))
    return "\n".join(parts)


def tensor_lines(tensors: Sequence[MarkedTensor], width: int) -> list[str]:
    """Return a line for each tensor, with a line of carets below marked axes; prose where that is too wide.

    >>> key = MarkedTensor("key", ("B", "Lk", "Dk"), ("2", "16", "64"), frozenset({1}))
    >>> print("\\n".join(tensor_lines([MarkedTensor("q", ("B", "Dk"), ("2", "64")), key], 40)))
        q    B Dk     2 64
        key  B Lk Dk  2 16 64
               ^^       ^^
    """
    rows: list[tuple[str, str, str]] = []
    for tensor in tensors:
        rows.append((tensor.name, " ".join(tensor.signature), " ".join(tensor.shape) or "scalar"))
        if tensor.marks:
            rows.append(("", _carets(tensor.signature, tensor.marks), _carets(tensor.shape, tensor.marks)))
    names, signatures = (max((cell_len(row[place]) for row in rows), default=0) for place in range(2))
    cells = [(pad(name, names), pad(signature, signatures), shape) for name, signature, shape in rows]
    lines = [(_INDENT + (" " * GAP).join(row)).rstrip() for row in cells]
    if all(cell_len(line) <= width for line in lines):
        return lines
    return [line for tensor in tensors for line in fold_words(_tensor_text(tensor), width)]


def _carets(words: Sequence[str], marks: frozenset[int]) -> str:
    return " ".join(("^" if place in marks else " ") * cell_len(word) for place, word in enumerate(words))


def _tensor_text(tensor: MarkedTensor) -> str:
    axes = list(zip(tensor.signature, tensor.shape, strict=False))
    marked = [f"{axes[place][0]} ({axes[place][1]})" for place in sorted(tensor.marks) if place < len(axes)]
    text = f"{tensor.name}: {' '.join(tensor.signature)} ({' '.join(tensor.shape) or 'scalar'})"
    return f"{text}, here {', '.join(marked)}" if marked else text


def _header(header: Header, width: int) -> list[StyledLine]:
    # a no-break space inside a size keeps its note beside it
    sizes = "  ".join(size.replace(" ", "\N{NO-BREAK SPACE}") for size in header.sizes)
    folded = [StyledLine(line.text.replace("\N{NO-BREAK SPACE}", " ")) for line in styled(sizes, width, hang=0)]
    return [*header_lines(header.command, " · ".join((header.target, *header.details)), width), *folded]


def _footer(footer: Sequence[FooterLine], width: int) -> list[StyledLine]:
    lines: list[StyledLine] = []
    for line in footer:
        if line.flags:
            lines += [StyledLine(text, _TONES[line.tone]) for text in fold_command(f"{line.text} {line.flags}", width)]
        else:
            lines += styled(line.text, width, _TONES[line.tone])
        lines += [StyledLine(text, _TONES["plain"]) for text in tensor_lines(line.tensors, width)]
    return lines


def _too_narrow(names: Sequence[str], choice: str, width: int) -> list[StyledLine]:
    return styled(f"too narrow for {', '.join(names)}: widen the terminal{choice}", width, "yellow")


def _fitted(view: TraceView, width: int) -> tuple[TraceView, ColumnLayout, tuple[str, ...]]:
    """Return the view, how to lay it out, and the names of the columns that don't fit: the strides go first."""
    layout = _trace_layout(view, width)
    if layout.is_crowded and layout.first != _STRIDE and any(column.name == _STRIDE for column in view.columns):
        view = _without_strides(view)
        layout = _trace_layout(view, width)
        return view, layout, (_STRIDE, *layout.left_out)
    return view, layout, layout.left_out


def _trace_layout(view: TraceView, width: int) -> ColumnLayout:
    least = (None, *(column.least for column in view.columns))
    return lay_out(view.names, least, [row.cells for row in view.rows], width)


def _without_strides(view: TraceView) -> TraceView:
    """Return the view without the column of strides; what isn't contiguous is marked beside its shape."""
    place = view.names.index(_STRIDE)
    shape = view.names.index(_SHAPE) if _SHAPE in view.names else None
    rows = []
    for row in view.rows:
        cells = list(row.cells)
        if shape is not None and cells[place].endswith(NOT_CONTIGUOUS):
            cells[shape] += f" {NOT_CONTIGUOUS}"
        del cells[place]
        rows.append(replace(row, cells=tuple(cells)))
    columns = tuple(column for column in view.columns if column.name != _STRIDE)
    return replace(view, columns=columns, rows=tuple(rows))


def _trace_rows(view: TraceView, layout: ColumnLayout, width: int) -> list[StyledLine]:
    lines = [StyledLine(text, "bold") for text in layout.lines(view.names)]
    indent = layout.widths[0] + GAP
    for row in view.rows:
        if row.heading:
            lines.append(StyledLine(row.heading, "bold cyan"))
        lines += [StyledLine(text, _TRACE_STYLES[row.kind]) for text in layout.lines(row.cells)]
        if row.explanation:
            folded = fold_words(row.explanation[1], min(width, _SENTENCE_WIDTH) - indent, hang=0)
            lines += [StyledLine(" " * indent + text, "italic dim") for text in folded]
    return lines


def _diff_rows(view: DiffView, width: int) -> list[StyledLine]:
    view, dropped = _drop_unchanged_columns(view, width)
    layout = _diff_layout(view, width)
    lines = [StyledLine(text, "bold") for text in layout.lines(view.names)]
    for row in view.rows:
        if row.kind == "folded":
            indent = " " * (layout.widths[0] + GAP)
            texts = [indent + text for text in fold_words(row.cells[0].text, width - len(indent))]
        else:
            texts = layout.stacked([(row.number,), *map(_stacked, row.cells)])
        lines += [StyledLine(text, _DIFF_STYLES[row.kind]) for text in texts]
    missing = (*dropped, *layout.left_out)
    return lines + (_too_narrow(missing, "", width) if missing else [])


def _drop_unchanged_columns(view: DiffView, width: int) -> tuple[DiffView, tuple[str, ...]]:
    """Return the view without columns in which nothing differs, as long as one that differs doesn't fit; and names."""
    dropped: list[str] = []
    if _diff_layout(view, width).is_crowded and _strides_follow_from_shapes(view):
        view = _without_column(view, [column.name for column in view.columns].index(_STRIDE))
        dropped.append(_STRIDE)
    while left_out := _diff_layout(view, width).left_out:
        differing = {place for row in view.rows for place, cell in enumerate(row.cells) if cell.old is not None}
        # the first column has the steps and always stays
        unchanged = [place for place in range(1, len(view.columns)) if place not in differing]
        if not unchanged or not any(view.columns[place].name in left_out for place in differing):
            break
        strides = [place for place in unchanged if view.columns[place].name == _STRIDE]
        place = (strides or unchanged)[-1]
        dropped.insert(0, view.columns[place].name)
        view = _without_column(view, place)
    return view, tuple(dropped)


def _without_column(view: DiffView, place: int) -> DiffView:
    rows = tuple(replace(row, cells=row.cells[:place] + row.cells[place + 1 :]) for row in view.rows)
    return replace(view, columns=view.columns[:place] + view.columns[place + 1 :], rows=rows)


def _strides_follow_from_shapes(view: DiffView) -> bool:
    """Return whether there are strides, which differ only where the shapes do too."""
    names = [column.name for column in view.columns]
    if _STRIDE not in names or _SHAPE not in names:
        return False
    kept = (row.cells for row in view.rows if row.kind != "folded")
    pairs = ((cells[names.index(_STRIDE)], cells[names.index(_SHAPE)]) for cells in kept)
    return all(stride.old is None or shape.old is not None for stride, shape in pairs)


def _diff_layout(view: DiffView, width: int) -> ColumnLayout:
    # a column needs room for the widest text of each cell; folded rows go across all columns
    kept = [row for row in view.rows if row.kind != "folded"]
    rows = [(row.number, *(max(_stacked(cell), key=cell_len) for cell in row.cells)) for row in kept]
    return lay_out(view.names, (None, *(column.least for column in view.columns)), rows, width)


def _stacked(cell: DiffCell) -> tuple[str, ...]:
    return (cell.text,) if cell.old is None else (cell.old, f"→ {cell.text}")


def _render_difference(difference: Difference, command: str, screen: Screen) -> str:
    from attnshape.reporters.diff_view import diff_view  # only comparisons pay for the import

    return diff_table(diff_view(difference, command), screen)


REPORTER = Reporter(
    "table",
    trace=lambda trace, options, screen: trace_table(trace_view(trace, options), screen),
    difference=_render_difference,
    differences=folders_table,
    traces=BATCH,
    selects=True,
)

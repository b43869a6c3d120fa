"""A table for the terminal."""

from __future__ import annotations

from attnshape.render.carets import tensor_lines
from attnshape.render.fold import fold_command, fold_words
from attnshape.render.layout import GAP, Layout, lay_out
from attnshape.render.lines import Line, drawn
from attnshape.render.view import View

_NARROWEST = 24
_SENTENCE_WIDTH = 100
_STYLES = {"input": "dim", "step": "", "output": "", "failure": "bold red"}
_TONES = {"plain": "dim", "good": "green", "bad": "bold red"}


def table(view: View, width: int, color: bool) -> str:
    """Return the view as text of at most `width` cells a line; colour only decorates."""
    width = max(width, _NARROWEST)
    layout = lay_out(view, width)
    sections = [_header(view, width), _body(view, layout, width) if view.rows else [], _footer(view, layout, width)]
    first, *others = (section for section in sections if section)
    lines = [*first, *(line for section in others for line in (Line(""), *section))]
    return drawn(lines, color)


def _header(view: View, width: int) -> list[Line]:
    header = view.header
    lines = [Line(text, "dim") for text in fold_command(header.command, width)] if header.command else []
    lines += [Line(text, "bold") for text in fold_words(f"{header.target} · {header.device} · {header.dtype}", width)]
    # A no-break space inside a size keeps its note beside it.
    sizes = "  ".join(size.replace(" ", "\N{NO-BREAK SPACE}") for size in header.sizes)
    return lines + [Line(text.replace("\N{NO-BREAK SPACE}", " ")) for text in fold_words(sizes, width, hang=0)]


def _body(view: View, layout: Layout, width: int) -> list[Line]:
    lines = [Line(text, "bold") for text in layout.lines(view.names)]
    for row in view.rows:
        if row.heading:
            lines.append(Line(row.heading, "bold cyan"))
        lines += [Line(text, _STYLES[row.kind]) for text in layout.lines(row.cells)]
        if row.sentence:
            lines += _sentence(row.sentence[1], layout.widths[0] + GAP, width)
    return lines


def _sentence(sentence: str, indent: int, width: int) -> list[Line]:
    folded = fold_words(sentence, min(width, _SENTENCE_WIDTH) - indent, hang=0)
    return [Line(" " * indent + text, "italic dim") for text in folded]


def _footer(view: View, layout: Layout, width: int) -> list[Line]:
    lines: list[Line] = []
    for remark in view.footer:
        lines += [Line(text, _TONES[remark.tone]) for text in fold_words(remark.text, width)]
        lines += [Line(text, _TONES["plain"]) for text in tensor_lines(remark.tensors, width)]
    if layout.left_out and view.rows:
        lines += [Line(text, "yellow") for text in fold_words(_left_out(layout), width)]
    return lines


def _left_out(layout: Layout) -> str:
    names = ", ".join(layout.left_out)
    choice = ",".join((layout.first, *layout.left_out))
    return f"too narrow for {names}: widen the terminal, or choose with --columns {choice}"

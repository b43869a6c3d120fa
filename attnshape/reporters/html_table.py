"""A plain HTML table for notebooks, and for pages where no script runs; readable without a style sheet."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from attnshape.reporters.escaping import visible
from attnshape.reporters.trace_view import FooterLine, Header, MarkedTensor, TraceRow, TraceView

# notebooks align cells to the right and break them at spaces unless each says otherwise
_LEFT = ' style="text-align: left; white-space: nowrap"'
_RIGHT = ' style="text-align: right"'


def trace_html(view: TraceView) -> str:
    """Return a trace as one `div`: the run, the table, and the totals below it; every text is escaped."""
    # notebooks typeset text between dollar signs as formulas unless the classes forbid it
    parts = ['<div class="attnshape tex2jax_ignore mathjax_ignore">', *_header(view.header)]
    if view.summary:
        parts += ["<ul>", *(f"<li>{_text(text)}</li>" for text in view.summary), "</ul>"]
    if view.rows:
        parts += ['<table cellpadding="3">', "<thead>", _row("th", view.names, view), "</thead>", "<tbody>"]
        parts += [line for row in view.rows for line in _lines(view, row)]
        parts += ["</tbody>", "</table>"]
    if view.footer:
        parts += ["<ul>", *map(_footer_item, view.footer), "</ul>"]
    return "\n".join([*parts, "</div>"]) + "\n"


def _header(header: Header) -> Iterator[str]:
    if header.command:
        yield f"<p><code>{_text(header.command)}</code></p>"
    yield f"<p>{' · '.join((f'<strong>{_text(header.target)}</strong>', *map(_text, header.details)))}</p>"
    if header.sizes:
        yield f"<p>{_text(', '.join(header.sizes))}</p>"


def _footer_item(line: FooterLine) -> str:
    tensors = "".join(f"<li>{_tensor(one)}</li>" for one in line.tensors)
    flags = f" <code>{_text(line.flags)}</code>" if line.flags else ""
    return f"<li>{_text(line.text)}{flags}{f'<ul>{tensors}</ul>' if tensors else ''}</li>"


def _tensor(one: MarkedTensor) -> str:
    signature, shape = (
        " ".join(f"<strong>{_text(word)}</strong>" if place in one.marks else _text(word) for place, word in places)
        for places in (enumerate(one.signature), enumerate(one.shape))
    )
    return f"<code>{_text(one.name)}</code> {signature} ({shape or 'scalar'})"


def _lines(view: TraceView, row: TraceRow) -> Iterator[str]:
    if row.heading:
        yield _across(f"<strong>{_text(row.heading)}</strong>", view)
    yield _row("td", row.cells, view)
    if row.explanation:
        yield _across(_text(row.explanation[1]), view)


def _row(tag: str, cells: tuple[str, ...], view: TraceView) -> str:
    codes = [False, *(column.code and tag == "td" for column in view.columns)]
    pairs = zip(map(_text, cells), codes, strict=True)
    first, *others = (f"<code>{cell}</code>" if code and cell else cell for cell, code in pairs)
    return f"<tr><{tag}{_RIGHT}>{first}</{tag}>" + "".join(f"<{tag}{_LEFT}>{one}</{tag}>" for one in others) + "</tr>"


def _across(content: str, view: TraceView) -> str:
    return f'<tr><td></td><td colspan="{len(view.columns)}"{_LEFT}>{content}</td></tr>'


def _text(text: str) -> str:
    return escape(visible(text), quote=True)

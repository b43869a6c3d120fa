"""A plain HTML table for notebooks, readable without a style sheet."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from attnshape.render.text import visible
from attnshape.render.view import Row, View

# notebooks align cells to the right and break them at spaces unless each says otherwise
_LEFT = ' style="text-align: left; white-space: nowrap"'
_RIGHT = ' style="text-align: right"'


def html(view: View) -> str:
    """Return the view as one `div`: what was run, the table, and below it the remarks; every text is escaped."""
    # what names stand for must not be read as formulas: a notebook typesets what lies between dollar signs
    parts = ['<div class="attnshape tex2jax_ignore mathjax_ignore">', *_header(view)]
    if view.rows:
        parts += ['<table cellpadding="3">', "<thead>", _row("th", view.names, view), "</thead>", "<tbody>"]
        parts += [line for row in view.rows for line in _lines(view, row)]
        parts += ["</tbody>", "</table>"]
    if view.footer:
        parts += ["<ul>", *(f"<li>{_text(remark.text)}</li>" for remark in view.footer), "</ul>"]
    return "\n".join([*parts, "</div>"]) + "\n"


def _header(view: View) -> Iterable[str]:
    header = view.header
    if header.command:
        yield f"<p><code>{_text(header.command)}</code></p>"
    yield f"<p><strong>{_text(header.target)}</strong> · {_text(header.device)} · {_text(header.dtype)}</p>"
    if header.sizes:
        yield f"<p>{_text(', '.join(header.sizes))}</p>"


def _lines(view: View, row: Row) -> Iterable[str]:
    if row.heading:
        yield _across(f"<strong>{_text(row.heading)}</strong>", view)
    yield _row("td", row.cells, view)
    if row.sentence:
        yield _across(_text(row.sentence[1]), view)


def _row(tag: str, cells: tuple[str, ...], view: View) -> str:
    codes = [False, *(column.code and tag == "td" for column in view.columns)]
    contents = [
        f"<code>{_text(cell)}</code>" if code and cell else _text(cell) for cell, code in zip(cells, codes, strict=True)
    ]
    first, *others = contents
    return f"<tr><{tag}{_RIGHT}>{first}</{tag}>" + "".join(f"<{tag}{_LEFT}>{one}</{tag}>" for one in others) + "</tr>"


def _across(content: str, view: View) -> str:
    return f'<tr><td></td><td colspan="{len(view.columns)}"{_LEFT}>{content}</td></tr>'


def _text(text: str) -> str:
    return escape(visible(text), quote=True)

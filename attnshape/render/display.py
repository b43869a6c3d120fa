"""How a trace shows itself in consoles and notebooks: whole, with the default columns."""

from __future__ import annotations

import shutil

from attnshape.model import Trace
from attnshape.render.html import html
from attnshape.render.markdown import markdown
from attnshape.render.table import table
from attnshape.render.view import Choice, view

_WIDTH = 100
"""Where no terminal says how wide it is."""


def text(trace: Trace) -> str:
    """Return the table for a console, as wide as the terminal, without a last newline."""
    columns = shutil.get_terminal_size((_WIDTH, 24)).columns
    return table(view(trace, Choice()), columns, color=False).rstrip("\n")


def document(trace: Trace) -> str:
    """Return the trace as Markdown."""
    return markdown(view(trace, Choice()))


def page(trace: Trace) -> str:
    """Return the trace as a piece of HTML."""
    return html(view(trace, Choice()))

"""How a difference shows itself in consoles and notebooks."""

from __future__ import annotations

import shutil

from attnshape.comparing.difference import Difference
from attnshape.render.diff_markdown import markdown
from attnshape.render.diff_table import table
from attnshape.render.diff_view import view

_WIDTH = 100
"""Where no terminal says how wide it is."""


def text(difference: Difference) -> str:
    """Return the table for a console, as wide as the terminal, without a last newline."""
    columns = shutil.get_terminal_size((_WIDTH, 24)).columns
    return table(view(difference), columns, color=False).rstrip("\n")


def document(difference: Difference) -> str:
    """Return the difference as Markdown."""
    return markdown(view(difference))

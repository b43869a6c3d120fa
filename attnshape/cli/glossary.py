"""`attnshape glossary`: the words."""

from __future__ import annotations

import sys

from attnshape.cli.writing import width, write
from attnshape.render import glossary as words


def glossary() -> None:
    """The words: size symbols, signatures, roles, and how an axis is known."""
    write(words.terminal(width()) if sys.stdout.isatty() else words.markdown(), None)

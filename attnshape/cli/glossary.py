"""`attnshape glossary`: the words."""

from __future__ import annotations

import sys

from attnshape.cli.output import terminal_width, write
from attnshape.reporters.reference_pages import glossary_markdown, glossary_text


def glossary() -> None:
    """Explain the words: size symbols, signatures, roles, and how an axis is known."""
    write(glossary_text(terminal_width()) if sys.stdout.isatty() else glossary_markdown(), None)

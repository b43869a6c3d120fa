"""The lines of the source that a finding stands in."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Sequence

ReadLines = Callable[[str], Sequence[str]]
"""From a file's name, as users are told it, to its lines; none where it can't be read."""


def source_lines(file: str) -> Sequence[str]:
    """Return a file's lines with their ends, of an interactive console's too; none where it can't be read.

    >>> source_lines("no/such.py")
    []
    """
    # relative names are of the current folder, or of the package for installed code: just where linecache looks
    try:
        linecache.checkcache(file)
        return linecache.getlines(file)
    except ValueError:  # a name that no file can have
        return []

"""How files are named to the user."""

from __future__ import annotations

import functools
import sys
from pathlib import Path


@functools.cache
def display_path(file: str) -> str:
    """Return a path relative to the current folder, or to the package for installed code."""
    path = Path(file)
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        pass
    parents = [Path(entry) for entry in sys.path if entry]
    inside = [path.relative_to(parent) for parent in parents if path.is_relative_to(parent)]
    return str(min(inside, key=lambda relative: len(relative.parts))) if inside else file

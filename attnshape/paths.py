"""How files are named to the user."""

from __future__ import annotations

import functools
import itertools
import sys
from pathlib import Path

_INSTALLED = ("site-packages", "dist-packages")


def installed_package(file: str) -> str | None:
    """Return which installed package a file is of, None where it isn't installed.

    >>> installed_package("/env/lib/python3.11/site-packages/timm/layers/attention.py")
    'timm'
    >>> installed_package("/home/me/project/model.py")
    """
    parts = Path(file).parts
    return next((name for folder, name in itertools.pairwise(parts) if folder in _INSTALLED), None)


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

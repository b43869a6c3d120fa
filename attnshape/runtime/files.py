"""Files: their names as shown to the user, their lines, and writes that replace a file only once it is complete."""

from __future__ import annotations

import contextlib
import functools
import itertools
import linecache
import os
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from attnshape.runtime.signals import removed_if_unfinished


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that a reader finds either the old content or the new, never a part of it.

    A symbolic link is followed. Raises OSError if the file can't be written; no temporary file is left then.
    """
    with staged([(path, data)]) as pairs:
        for temporary, destination in pairs:
            temporary.replace(destination)


@contextlib.contextmanager
def staged(contents: Sequence[tuple[Path, bytes]]) -> Iterator[list[tuple[Path, Path]]]:
    """Write new contents to temporary files beside their destinations, for the caller to move into place.

    A destination that exists passes its permissions on. Temporary files that were not moved are removed at the end
    of the context, on an error, and when a signal ends the process. Yields each temporary file and its destination,
    with symbolic links resolved; raises OSError if a temporary file can't be written.
    """
    paths = [Path(os.path.realpath(path)) for path, _ in contents]
    pairs = [(path.with_name(f".{path.name}.{os.getpid()}.tmp"), path) for path in paths]
    with removed_if_unfinished(*(str(temporary) for temporary, _ in pairs)):
        try:
            for (temporary, destination), (_, data) in zip(pairs, contents, strict=True):
                _write(temporary, destination, data)
            yield pairs
        finally:
            for temporary, _ in pairs:
                with contextlib.suppress(OSError):
                    temporary.unlink(missing_ok=True)


def _write(temporary: Path, destination: Path, data: bytes) -> None:
    mode = stat.S_IMODE(destination.stat().st_mode) if destination.exists() else None
    temporary.unlink(missing_ok=True)  # left by a process of this number that was killed
    # O_EXCL: where somebody else puts a link there meanwhile, nothing is written through it
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    with os.fdopen(os.open(temporary, flags, 0o666 if mode is None else 0o600), "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    if mode is not None:
        temporary.chmod(mode)


_INSTALLED = ("site-packages", "dist-packages")


def installed_package(file: str) -> str | None:
    """Return the installed package that a file belongs to, or None.

    >>> installed_package("/env/lib/python3.11/site-packages/timm/layers/attention.py")
    'timm'
    >>> installed_package("/home/me/project/model.py")
    """
    parts = Path(file).parts
    return next((name for folder, name in itertools.pairwise(parts) if folder in _INSTALLED), None)


@functools.cache
def display_path(file: str) -> str:
    """Return a path relative to the current folder, or for installed code, to the folder that it is imported from."""
    path = Path(file)
    if path.is_relative_to(Path.cwd()):
        return str(path.relative_to(Path.cwd()))
    parents = [Path(entry) for entry in sys.path if entry]
    inside = [path.relative_to(parent) for parent in parents if path.is_relative_to(parent)]
    return str(min(inside, key=lambda relative: len(relative.parts))) if inside else file


ReadLines = Callable[[str], Sequence[str]]
"""Returns the lines of a file by its displayed name; none if it can't be read."""


def source_lines(file: str) -> Sequence[str]:
    """Return a file's lines with their ends, also of an interactive console; none if it can't be read.

    >>> source_lines("no/such.py")
    []
    """
    # a displayed name is relative to the current folder, or to the package for installed code: where linecache looks
    try:
        linecache.checkcache(file)
        return linecache.getlines(file)
    except ValueError:  # a name that no file can have
        return []

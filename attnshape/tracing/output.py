"""Keeps what the traced code prints out of the data on standard output."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO

from attnshape.ending import ends_with_the_command

_data: list[TextIO] = []
"""Standard output as it was before it was sent elsewhere."""


def data_stream() -> TextIO:
    """Return where data goes: standard output, also while what is printed goes to standard error."""
    return _data[0] if _data else sys.stdout


@contextlib.contextmanager
def to_standard_error() -> Iterator[None]:
    """Send everything that is printed inside to standard error, from C and from other threads too."""
    sys.stdout.flush()
    own, errors = sys.stdout, sys.stderr
    kept = {number: copy for number in (1, 2) if (copy := _duplicate(number)) is not None}
    data = None
    if not _data:
        # where something else than the process's own stream stands for standard output, that is meant
        data = os.fdopen(kept[1], "w", closefd=False) if 1 in kept and own is sys.__stdout__ else own
        _data.append(data)
    _point(1, 2)
    sys.stdout = sys.stderr = _Unclosable(errors)  # it does all that the stream does
    try:
        yield
    finally:
        # what is still in a buffer, Python's or C's, belongs to the traced code too
        for stream in (sys.stdout, sys.__stdout__, errors):
            with contextlib.suppress(Exception):
                stream.flush()  # type: ignore[union-attr]  # where it is None there is nothing to flush
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).fflush(None)
        if not ends_with_the_command():  # else the traced code's threads may print to the very end
            sys.stdout, sys.stderr = own, errors
            if data is not None:
                _data.remove(data)
            for number, copy in kept.items():
                os.dup2(copy, number)
                os.close(copy)


class _Unclosable:
    """A stream that stays open when the traced code closes it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._stream)

    def close(self) -> None:
        """Write out what is buffered, and nothing else."""
        self._stream.flush()


def _duplicate(number: int) -> int | None:
    try:
        return os.dup(number)
    except OSError:
        return None


def _point(number: int, at: int) -> None:
    with contextlib.suppress(OSError):
        os.dup2(at, number)

"""Output capture: what the traced code prints goes to standard error, and only data to standard output."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any, TextIO

from attnshape.runtime.worker import is_supervised

_saved_stdout: list[TextIO] = []
"""Standard output as it was before `to_standard_error` redirected it."""


def data_stream() -> TextIO:
    """Return the stream for data: standard output, even while `to_standard_error` redirects what is printed."""
    return _saved_stdout[0] if _saved_stdout else sys.stdout


@contextlib.contextmanager
def to_standard_error() -> Iterator[None]:
    """Redirect to standard error everything that is printed inside, also from C and from other threads."""
    sys.stdout.flush()
    stdout, stderr = sys.stdout, sys.stderr
    copies = {number: copy for number in (1, 2) if (copy := _duplicate(number)) is not None}
    data = None
    if not _saved_stdout:
        # a stream that somebody put in the place of the process's own is meant to get the data
        data = os.fdopen(copies[1], "w", closefd=False) if 1 in copies and stdout is sys.__stdout__ else stdout
        _saved_stdout.append(data)
    with contextlib.suppress(OSError):
        os.dup2(2, 1)
    sys.stdout = sys.stderr = _Unclosable(stderr)  # it has every attribute of the stream
    try:
        yield
    finally:
        # what is still buffered, by Python or by C, was printed by the traced code too
        _flush(sys.stdout, sys.__stdout__, stderr)
        if not is_supervised():  # otherwise the traced code's threads may print until the process ends
            sys.stdout, sys.stderr = stdout, stderr
            if data is not None:
                _saved_stdout.remove(data)
            for number, copy in copies.items():
                os.dup2(copy, number)
                os.close(copy)


@contextlib.contextmanager
def without_console() -> Iterator[None]:
    """Discard what is printed inside, also from C; who reads from standard input finds its end."""
    streams = sys.stdout, sys.stderr
    _flush(*streams, sys.__stdout__)
    copies = {number: copy for number in (0, 1, 2) if (copy := _duplicate(number)) is not None}
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in copies:
        os.dup2(nowhere, number)
    os.close(nowhere)
    # in a notebook or under pytest they write elsewhere than to the descriptors
    sys.stdout, sys.stderr = map(_Discarding, streams)
    try:
        yield
    finally:
        _flush(*streams, sys.__stdout__)
        sys.stdout, sys.stderr = streams
        for number, copy in copies.items():
            os.dup2(copy, number)
            os.close(copy)


def _flush(*streams: Any) -> None:
    """Flush the streams, and those of C."""
    for stream in streams:
        with contextlib.suppress(Exception):
            stream.flush()  # None has nothing to flush
    # Windows has no handle for "all loaded libraries": there C's buffer is flushed when the process ends
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).fflush(None)


@contextlib.contextmanager
def suppressed_stderr() -> Iterator[None]:
    """Discard what C code writes to standard error; without a standard error, do nothing."""
    copy = _duplicate(2)
    if copy is None:
        yield
        return
    try:
        with open(os.devnull, "wb") as nowhere:  # noqa: PTH123 - only its descriptor is used
            os.dup2(nowhere.fileno(), 2)
            yield
    finally:
        os.dup2(copy, 2)
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
        """Flush the stream instead of closing it."""
        self._stream.flush()


class _Discarding(_Unclosable):
    """A stream that discards what is written to it."""

    def write(self, text: str) -> int:
        """Return the length of the text."""
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Do nothing."""


def _duplicate(number: int) -> int | None:
    try:
        return os.dup(number)
    except OSError:
        return None

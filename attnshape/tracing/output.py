"""Keeps what the traced code prints out of the data on standard output."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def to_standard_error() -> Iterator[None]:
    """Send everything that is printed inside to standard error, from C too."""
    sys.stdout.flush()
    try:
        kept = os.dup(1)
    except OSError:
        kept = None
    if kept is not None:
        os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        # what is still in a buffer, Python's or C's, belongs to the traced code too
        if sys.__stdout__ is not None:
            sys.__stdout__.flush()
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).fflush(None)
        if kept is not None:
            os.dup2(kept, 1)
            os.close(kept)

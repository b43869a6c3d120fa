"""Reads variables of a running function, on Python 3.12 and later without a copy of all the others."""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import sys
from collections.abc import Collection
from types import FrameType
from typing import Any

COPIES_ALL = sys.version_info < (3, 12)
"""Whether reading one variable takes as long as reading all of the function's."""


def read_variable(frame: FrameType, name: str) -> Any:
    """Return what a variable of a running function holds. Raises LookupError if it holds nothing."""
    if COPIES_ALL:
        return frame.f_locals[name]
    try:
        return _get_variable(frame, name)
    except NameError:
        raise LookupError(name) from None


def read_variables(frame: FrameType, names: Collection[str]) -> dict[str, Any]:
    """Return what variables hold, those that hold anything; none is kept alive once the code rebinds it.

    Python 3.11 leaves its copy of all variables in the frame. They are removed from it, unless the code itself holds
    that copy, as the result of `locals()`.
    """
    if not frame.f_code.co_flags & inspect.CO_OPTIMIZED:  # of a module, whose variables are a dictionary
        return {name: frame.f_locals[name] for name in names if name in frame.f_locals}
    if not COPIES_ALL:
        read: dict[str, Any] = {}
        for name in names:
            with contextlib.suppress(LookupError):
                read[name] = read_variable(frame, name)
        return read
    copy = frame.f_locals
    found = {name: copy[name] for name in names if name in copy}
    if sys.getrefcount(copy) == _HELD_HERE_AND_BY_ITS_FRAME:
        code = frame.f_code
        for name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
            copy.pop(name, None)
    return found


_HELD_HERE_AND_BY_ITS_FRAME = 3
"""The references to a copy of variables: its frame's, that of the function that reads it, and that of the count."""


if not COPIES_ALL:
    _get_variable = ctypes.pythonapi.PyFrame_GetVar
    _get_variable.argtypes = [ctypes.py_object, ctypes.py_object]
    _get_variable.restype = ctypes.py_object

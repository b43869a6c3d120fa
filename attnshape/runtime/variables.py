"""Reads one variable of a running function, on Python 3.12 and later without a copy of all the others."""

from __future__ import annotations

import ctypes
import sys
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


if not COPIES_ALL:
    _get_variable = ctypes.pythonapi.PyFrame_GetVar
    _get_variable.argtypes = [ctypes.py_object, ctypes.py_object]
    _get_variable.restype = ctypes.py_object

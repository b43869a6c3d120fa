"""Counts the work of a call, which unlike its time doesn't depend on the machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def calls_made_by(action: Callable[[], object]) -> int:
    """Return how many calls of functions, in Python and in C, an action makes."""
    count = 0

    def on_event(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(on_event)
    try:
        action()
    finally:
        sys.setprofile(before)
    return count


def lines_run_by(action: Callable[[], object]) -> int:
    """Return how many lines of Python an action runs; each iteration of a comprehension counts."""
    count = 0

    def on_event(frame: object, event: str, argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return on_event

    before = sys.gettrace()
    sys.settrace(on_event)
    try:
        action()
    finally:
        sys.settrace(before)
    return count

"""Counts the work of a call, which unlike its time doesn't depend on the machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def calls_made_by(action: Callable[[], object]) -> int:
    """Return how many calls of functions, in Python and in C, an action makes."""
    return _events(action, ("call", "c_call"), sys.getprofile, sys.setprofile)


def lines_run_by(action: Callable[[], object]) -> int:
    """Return how many lines of Python an action runs; each iteration of a comprehension counts."""
    return _events(action, ("line",), sys.gettrace, sys.settrace)


def _events(
    action: Callable[[], object], kinds: tuple[str, ...], get: Callable[[], Any], install: Callable[[Any], None]
) -> int:
    count = 0

    def on_event(frame: object, event: str, argument: object) -> Any:
        nonlocal count
        count += event in kinds
        return on_event

    before = get()
    install(on_event)
    try:
        action()
    finally:
        install(before)
    return count

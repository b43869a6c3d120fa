"""Hints: the way out of an error."""

from __future__ import annotations

import difflib
from collections.abc import Sequence


def nearest(word: str, choices: Sequence[str], many: str = "choose from") -> str:
    """Return a hint: the nearest choice, or all of them.

    >>> nearest("lq", ["B", "Lq", "Lk"])
    'did you mean Lq?'
    """
    by_lower = {choice.lower(): choice for choice in reversed(choices)}
    close = difflib.get_close_matches(word.lower(), by_lower, 1)
    if close:
        return f"did you mean {by_lower[close[0]]}?"
    return f"{many}: {', '.join(choices)}" if choices else "check its spelling"

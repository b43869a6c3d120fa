"""Hints: the way out of an error."""

from __future__ import annotations

import difflib
from collections.abc import Sequence


def nearest(word: str, choices: Sequence[str], many: str = "choose from") -> str:
    """Return a hint: the nearest choice, or all of them."""
    close = difflib.get_close_matches(word, choices, 1)
    return (
        f"did you mean {close[0]}?" if close else f"{many}: {', '.join(choices)}" if choices else "check its spelling"
    )

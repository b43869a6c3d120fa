"""Limits on a run: seconds, and bytes of memory."""

from __future__ import annotations

import math
import re

from attnshape.errors import AttnshapeError, Option

MEASURING_SECONDS = 60.0
"""The seconds after which the behaviour of a version isn't measured any further, unless the user says otherwise."""
UNASKED_SECONDS = 20.0
"""The same for an output that shows the behaviour, where the user didn't ask for it."""
_MEMORY = re.compile(r"(\d{1,9}(?:\.\d{1,9})?) ?([KMGT]?)(?:i?B)?", re.IGNORECASE | re.ASCII)
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def check_time_limit(seconds: float) -> None:
    """Raise AttnshapeError if a time limit isn't a number of seconds above 0."""
    if not 0 < seconds < math.inf:
        raise AttnshapeError(
            (Option("time_limit"), f" is {seconds}, expected a number of seconds above 0"),
            ("for example ", Option("time_limit", 60)),
        )


def parse_memory(text: str) -> int:
    """Return an amount of memory in bytes; K, M, G and T are powers of 1024.

    Raises AttnshapeError if it isn't one, or isn't above 0.

    >>> parse_memory("512MB"), parse_memory("1.5 GiB"), parse_memory("4g")
    (536870912, 1610612736, 4294967296)
    """
    match = _MEMORY.fullmatch(text.strip())
    amount = int(float(match[1]) * 1024 ** _POWERS[match[2].upper()]) if match is not None else 0
    if amount <= 0:
        raise AttnshapeError(
            (Option("memory_limit"), f" is {text[:40]!r}, expected an amount of memory above 0"),
            ("for example ", Option("memory_limit", "4GB")),
        )
    return amount

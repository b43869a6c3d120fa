"""Quantities as people write them."""

from __future__ import annotations


def memory(count: int) -> str:
    """Return a number of bytes in binary units.

    >>> memory(122880), memory(1_170_000), memory(12)
    ('120 KiB', '1.1 MiB', '12 B')
    """
    if count < 1024:
        return f"{count} B"
    amount = count / 1024
    units = ["KiB", "MiB", "GiB", "TiB", "PiB"]
    while amount >= 1023.5 and len(units) > 1:
        amount /= 1024
        del units[0]
    short = f"{amount:.1f}".removesuffix(".0") if amount < 9.95 else f"{amount:,.0f}"
    return f"{short} {units[0]}"


def count(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural where it isn't one.

    >>> count(1, "view"), count(8, "view")
    ('1 view', '8 views')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def joined(words: list[str]) -> str:
    """Return words as in a sentence.

    >>> joined(["B", "H", "L"])
    'B, H and L'
    """
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]

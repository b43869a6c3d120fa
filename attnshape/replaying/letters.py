"""Which sizes an axis is made of, where every size is another prime."""

from __future__ import annotations

from collections.abc import Mapping

from attnshape.dims import BY_LETTER

_COINCIDES = 3
"""Sizes up to this one are found in most numbers."""
LENGTHS = ("L", "Lq", "Lk", "Lp")


def holds(size: int, letter: str, numbers: Mapping[str, int]) -> bool:
    """Say whether an axis of a size is made of a symbol: is it, or is a product with it.

    >>> holds(35, "B", {"B": 5, "H": 7}), holds(14, "B", {"B": 5, "H": 7})
    (True, False)
    """
    number = numbers.get(letter, 0)
    return number > _COINCIDES and size > 0 and size % number == 0


def in_words(size: int, numbers: Mapping[str, int]) -> str:
    """Return a size by its symbol where it is one, else as the number.

    >>> in_words(7, {"B": 5, "H": 7})
    'H'
    """
    known = sorted(numbers, key=lambda letter: list(BY_LETTER).index(letter) if letter in BY_LETTER else -1)
    return next((letter for letter in known if numbers[letter] == size and size > 1), str(size))

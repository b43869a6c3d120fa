"""Axes and operands in words."""

from __future__ import annotations

import re
from collections.abc import Sequence

from attnshape.failing.scene import RESULT_OF, Party

_ORDINALS = ("last", "second", "third", "fourth", "fifth", "sixth")


def place(axis: int, rank: int) -> str:
    """Return how one speaks of an axis.

    >>> place(3, 4), place(2, 4), place(1, 4)
    ('last', 'second to last', 'axis 1')
    """
    if axis == rank - 1:
        return "last"
    return "second to last" if axis == rank - 2 and rank > 2 else f"axis {axis}"


def size(party: Party, axis: int) -> str:
    """Return an axis with its number: `Dk=64`, or `64` where it has no symbol."""
    return sized(party.record.axes[axis].expression, party.shape[axis])


def sized(expression: str, number: int) -> str:
    """Return an expression with its number.

    >>> sized("Dk", 64), sized("64", 64)
    ('Dk=64', '64')
    """
    return f"{number:,}" if expression.isdecimal() else f"{expression}={number}"


def axis_of(party: Party, axis: int) -> str:
    """Return what one axis of an operand is: "last of `query` is Dk=64"."""
    return f"{place(axis, party.rank)} of {quoted(party)} is {size(party, axis)}"


def from_the_right(axis: int, rank: int) -> str:
    """Return an axis counted from the right.

    >>> from_the_right(3, 4), from_the_right(1, 4)
    ('last', 'third from the right')
    """
    back = rank - 1 - axis
    if back == 0:
        return "last"
    return f"{_ORDINALS[back] if back < len(_ORDINALS) else f'number {back + 1}'} from the right"


def quoted(party: Party) -> str:
    """Return an operand's name as the explanations write it."""
    return party.name if party.name.startswith(RESULT_OF) else f"`{party.name}`"


def axes(party: Party) -> str:
    """Return how many axes an operand has, and which: "3 axes, B L D"."""
    if party.rank == 0:
        return "no axes"
    return f"{counted(party.rank, 'axis', 'axes')}, {party.record.signature}"


def counted(number: int, one: str, several: str) -> str:
    """Return a number with its noun."""
    return f"{number:,} {one if number == 1 else several}"


def product(expressions: Sequence[str]) -> str:
    """Return expressions as a product, without ones.

    >>> product(["B", "Lp+L", "1", "10"])
    'B*(Lp+L)*10'
    """
    factors = [text if re.fullmatch(r"[\w*]+", text) else f"({text})" for text in expressions if text != "1"]
    return "*".join(factors) or "1"


def joined(words: Sequence[str]) -> str:
    """Return words as in a sentence.

    >>> joined(["B", "H", "L"])
    'B, H and L'
    """
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))

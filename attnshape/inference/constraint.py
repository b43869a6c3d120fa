"""What sizes must meet for a target to take the user's steps, and which of it the user's own sizes meet."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from attnshape.sizes import Sizes

LARGEST_FIXED = 4096
"""A size above this is never kept in a small run, which would be small no longer."""
_FEW = (1, 2, 3, 4)
_FACTORS = (2, 4, 8, 16, 32, 64, 3, 5, 6, 7, 12)


@dataclass(frozen=True)
class Equal:
    """Two sizes that must be one number."""

    symbol: str
    other: str

    def __str__(self) -> str:
        return f"{self.symbol} = {self.other}"


@dataclass(frozen=True)
class Multiple:
    """A size that must be a multiple of a number, of another size, or of a number times that."""

    symbol: str
    factor: int
    other: str | None = None

    def next(self, numbers: Mapping[str, int]) -> dict[str, int]:
        """Return the numbers with the symbol's raised to the next multiple.

        >>> Multiple("L", 2, "W").next({"L": 10, "W": 3})
        {'L': 12, 'W': 3}
        """
        part = self.factor * (numbers[self.other] if self.other is not None else 1)
        return {**numbers, self.symbol: -(-numbers[self.symbol] // part) * part}

    def beside(self, numbers: Mapping[str, int]) -> Iterator[dict[str, int]]:
        """Yield numbers that meet it, with the symbol's a little larger, so that it is no multiple any more.

        Half of a number one larger than a multiple of 4 is even too, when it is rounded down: one is not enough.
        """
        within = {1, 2, 3, self.factor // 2, self.factor - 1} & set(range(1, self.factor))
        for more in sorted(within) if self.other is None else (1, 2, 3):
            yield {**numbers, self.symbol: numbers[self.symbol] + more}

    def __str__(self) -> str:
        if self.other is None:
            return f"{self.symbol} even" if self.factor == 2 else f"{self.factor} divides {self.symbol}"
        return f"{self.other if self.factor == 1 else f'{self.factor}*{self.other}'} divides {self.symbol}"


@dataclass(frozen=True)
class Fixed:
    """A size that stays as the user gave it."""

    symbol: str

    def __str__(self) -> str:
        return f"{self.symbol} fixed"


Constraint = Equal | Multiple | Fixed


def _made_of(sizes: Sizes, constraints: Sequence[Constraint], letter: str) -> set[str]:
    """Return the independent sizes that a size follows from, by its own expression or by a constraint."""
    found = {letter}
    for _ in sizes.records:
        follows = (name for known in found & sizes.follows.keys() for name in sizes.follows[known].symbols)
        bound = (c.other for c in constraints if c.symbol in found and isinstance(c, (Equal, Multiple)) and c.other)
        found |= {*follows, *bound}
    return found


def candidates(sizes: Sizes, constraints: Sequence[Constraint]) -> Iterator[Constraint]:
    """Yield the constraints that the user's own sizes meet, the simplest first."""
    numbers = sizes.numbers
    taken = {constraint.symbol for constraint in constraints}
    free = [letter for letter in sizes.independent if letter not in taken]
    for letter in free:
        if numbers[letter] == 1:
            yield Fixed(letter)
    for letter in free:
        if numbers[letter] % 2 == 0:
            yield Multiple(letter, 2)
    roots = [c.other for c in constraints if isinstance(c, Equal)]
    for place, letter in enumerate(free):
        for other in free[:place]:
            if numbers[letter] == numbers[other] and letter not in roots:
                yield Equal(letter, other)
    for letter in free:
        for other, factor in itertools.product([name for name in sizes.records if name not in sizes.labels], _FEW):
            part = factor * numbers[other]
            whole = numbers[letter] % part == 0 and numbers[letter] > part > factor
            if whole and letter not in roots and letter not in _made_of(sizes, constraints, other):
                yield Multiple(letter, factor, other)
    for letter in free:
        for factor in _FACTORS[1:]:
            if numbers[letter] % factor == 0:
                yield Multiple(letter, factor)
    for letter in free:
        if 1 < numbers[letter] <= LARGEST_FIXED:
            yield Fixed(letter)

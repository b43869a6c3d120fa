"""Sums of a few sizes with small whole coefficients, found by solving linear equations."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

import numpy as np

Values = tuple[int, ...]
_LARGEST_COEFFICIENT = 6
_LARGEST_ADDEND = 64
_CLOSE = 1e-4
"""How far from a whole number a solution may be; the sum is then checked with the whole numbers."""
_SMALL = 2**31
"""Above it numbers are left to the caller's exact check."""

Term = tuple[int, str]


def sums(values: Values, candidates: Sequence[tuple[str, Values]], count: int) -> Iterator[str]:
    """Yield the sums of so many terms, and of a small number, that give the values.

    `candidates` are terms with their values in the same runs. Nothing is found where the runs are too few to tell
    a sum from a coincidence.
    """
    rows = (values, *(numbers for _, numbers in candidates))
    points = list(dict.fromkeys(point for point in zip(*rows, strict=True) if max(map(abs, point)) < _SMALL))
    if len(points) < count + 2 or len(candidates) < count:
        return
    table = np.array(points, dtype=np.float64).T
    chosen = np.array(list(itertools.combinations(range(1, len(table)), count)))
    # the last unknown is the number that is added
    matrix = np.concatenate([table[chosen], np.ones((len(chosen), 1, len(points)))], axis=1).transpose(0, 2, 1)
    found = np.linalg.pinv(matrix) @ table[0]
    whole = np.rint(found)
    fits = (
        (np.abs(found - whole) < _CLOSE).all(axis=1)
        & (whole[:, :count] != 0).all(axis=1)
        & (np.abs(whole[:, :count]) <= _LARGEST_COEFFICIENT).all(axis=1)
        & (np.abs(whole[:, count]) <= _LARGEST_ADDEND)
        & ((matrix @ whole[..., None])[..., 0] == table[0]).all(axis=1)
    )
    for places, numbers in zip(chosen[fits], whole[fits], strict=True):
        *coefficients, addend = (int(number) for number in numbers)
        terms = [(number, candidates[place - 1][0]) for number, place in zip(coefficients, places, strict=True)]
        if any(coefficient > 0 for coefficient, _ in terms):
            yield _sum(terms, addend)


def _sum(terms: Sequence[Term], addend: int) -> str:
    """Write a sum, the positive terms first.

    >>> _sum([(-1, "W"), (2, "L")], 1)
    '2*L-W+1'
    >>> _sum([(1, "Dk"), (-2, "(Dk+2)//4")], 0)
    'Dk-2*((Dk+2)//4)'
    """
    parts = []
    for coefficient, letter in sorted(terms, key=lambda term: term[0] < 0):
        alone = abs(coefficient) == 1 and re.fullmatch(r"[\w*/]+", letter)
        text = letter if alone or re.fullmatch(r"[\w*]+", letter) else f"({letter})"
        size = f"{abs(coefficient)}*{text}" if abs(coefficient) != 1 else text
        parts.append(f"{'-' if coefficient < 0 else '+'}{size}")
    if addend:
        parts.append(f"{addend:+d}")
    return "".join(parts).removeprefix("+")

"""Whether sizes are large, and small ones that stand in for them: in the same order, and divisible where these are."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import replace

from msgspec.structs import replace as with_fields

from attnshape.errors import AttnshapeError
from attnshape.sizes import Sizes

_MANY_WEIGHTS, _MANY_SCORES = 2**25, 10**8
"""Elements below which nothing is foretold: in a weight of the widest size, and in an upper bound of the scores."""
_NO_LENGTHS = ("B", "H", "Hkv", "G", "D", "Dk", "Dv")
_FACTORS = (8, 64)
"""Up to which factor a size keeps what divides it, the cheaper first."""
_KEPT = 12
"""A size up to this one stays as it is."""
_LARGEST_STEP = 96
_MOST = 2**24
"""No product of four of the sizes that can be chosen freely is larger: the runs are to stay small."""


def worth_foretelling(sizes: Sizes) -> bool:
    """Whether tensors of these sizes could be large: weights of the widest size, scores of the longest."""
    free = sorted(((sizes.records[one].size, one not in _NO_LENGTHS) for one in sizes.independent), reverse=True)
    longest = max((size for size, length in free if length), default=1)
    scores = longest * math.prod(size for size, _ in free[:3])
    return scores >= _MANY_SCORES or max(sizes.numbers.values(), default=1) ** 2 >= _MANY_WEIGHTS


def stand_ins(sizes: Sizes, kept: Collection[str] = ()) -> Iterator[Sizes]:
    """Yield smaller sizes at which the code can be expected to take the steps that it takes at the user's own.

    `kept` are symbols whose sizes stay as they are.
    """
    for factor in _FACTORS:
        whole = {sizes.records[letter].size for letter in kept}
        smaller = _smaller(sorted({sizes.records[letter].size for letter in sizes.independent}), factor, whole)
        chosen = {letter: smaller[sizes.records[letter].size] for letter in sizes.independent}
        if math.prod(sorted(chosen.values())[-4:]) > _MOST:
            continue
        try:
            numbers = sizes.at(chosen)
        except AttnshapeError:  # an author's own expression has no value there
            continue
        records = {letter: with_fields(record, size=numbers[letter]) for letter, record in sizes.records.items()}
        yield replace(sizes, records=records)


def _smaller(sizes: list[int], factor: int, kept: Collection[int] = ()) -> dict[int, int]:
    """Return for each size, in rising order, a smaller one that keeps its factors and its place.

    >>> _smaller([2, 8, 128, 1000000], 8)
    {2: 2, 8: 8, 128: 16, 1000000: 24}
    """
    chosen: dict[int, int] = {}
    last = 0
    for size in sizes:
        step = math.gcd(size, factor)
        for other, small in chosen.items():
            if size % other == 0 and math.lcm(step, small) <= _LARGEST_STEP:
                step = math.lcm(step, small)
        last = size if size <= _KEPT or size in kept else min(size, (last // step + 1) * step)
        chosen[size] = last
    return chosen

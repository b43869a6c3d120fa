"""Sizes at which a formula found at primes must hold too: in another order, with other remainders, much larger."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

_COMPOSITE = (12, 16, 15, 18, 20, 24, 14, 21, 27, 25, 22, 26)
_FALLING = (22, 21, 20, 18, 16, 15, 14, 12, 10, 9)
_LARGE = 150
_MIXTURES = 4


def reverse(unknowns: Sequence[str]) -> dict[str, int]:
    """Return a number for each unknown, the smallest for the one whose size is the largest.

    At primes in the order of the user's sizes `max(Lq, Lk)` is `Lk`; here it isn't.
    """
    falling = _FALLING[-len(unknowns) :] if len(unknowns) <= len(_FALLING) else range(8 + len(unknowns), 8, -1)
    return dict(zip(unknowns, falling, strict=False))


def mixed(unknowns: Sequence[str]) -> Iterator[dict[str, int]]:
    """Yield numbers with all sorts of remainders, then each unknown in turn much larger than the others.

    A prime never leaves the remainder 0, so `L//3+1` is `-(-L//3)` there; and among sizes that are close to each other
    `int(L**0.5)` or `min(L, 12)` is a constant.
    """
    for shift in range(_MIXTURES):
        yield {name: _COMPOSITE[(place + 3 * shift) % len(_COMPOSITE)] for place, name in enumerate(unknowns)}
    for large in unknowns:
        yield {name: _LARGE if name == large else 6 + place for place, name in enumerate(unknowns)}

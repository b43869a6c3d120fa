"""Sizes at which a formula found at primes must hold too: in another order, with other remainders, much larger."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from attnshape.inference.plan import Plan

_COMPOSITE = (12, 16, 15, 18, 20, 24, 14, 21, 27, 25, 22, 26)
_FALLING = (22, 21, 20, 18, 16, 15, 14, 12, 10, 9)
_LARGE = (130, 70, 40, 24, 18)
_WIDEST, _MOST = 400, 10**7
_NO_LENGTHS = ("B", "H", "Hkv", "G", "D", "Dk", "Dv")
_MIXTURES = 4


def reverse(plan: Plan) -> dict[str, int]:
    """Return a number for each unknown, the smallest for the one whose size is the largest.

    At primes in the order of the user's sizes `max(Lq, Lk)` is `Lk`; here it isn't.
    """
    names = plan.unknowns
    falling = _FALLING[-len(names) :] if len(names) <= len(_FALLING) else range(8 + len(names), 8, -1)
    return dict(zip(names, falling, strict=False))


def large(plan: Plan) -> Iterator[dict[str, int]]:
    """Yield numbers where the lengths are much larger than the rest, then the others: `min(L, 12)`, `int(L**0.5)`."""
    lengths = [name for name in plan.unknowns if name.partition("/")[0] not in _NO_LENGTHS]
    for names in (lengths, [name for name in plan.unknowns if name not in lengths]):
        if names:
            yield _enlarged(plan, names)


def mixed(plan: Plan) -> Iterator[dict[str, int]]:
    """Yield numbers with all sorts of remainders, then one unknown after the other much larger than the rest.

    A prime never leaves the remainder 0, so `L//3+1` is `-(-L//3)` there.
    """
    for shift in range(_MIXTURES):
        yield {name: _COMPOSITE[(place + 3 * shift) % len(_COMPOSITE)] for place, name in enumerate(plan.unknowns)}
    for name in plan.unknowns:
        yield _enlarged(plan, (name,))


def _enlarged(plan: Plan, names: Sequence[str]) -> dict[str, int]:
    """Return numbers where these are large; less so where they are factors of other sizes, to stay cheap to run."""
    small = {name: 6 + place for place, name in enumerate(plan.unknowns)}
    for size in _LARGE:
        chosen = small | {name: size + place for place, name in enumerate(names)}
        if max(plan.at(chosen).values()) <= _WIDEST and prod(chosen.values()) * size <= _MOST:
            break
    return chosen

"""Sizes at which a formula found at primes must hold too: in another order, with other remainders, much larger."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from attnshape.inference.plan import Plan

_COMPOSITE = (12, 16, 15, 18, 20, 24, 14, 21, 27, 25, 22, 26)
_SMALL_COMPOSITE = (4, 6, 8, 9, 10, 12, 14, 15, 16, 18, 20, 21)
_FALLING = (22, 21, 20, 18, 16, 15, 14, 12, 10, 9)
_LARGE = (131, 71, 41, 23, 17, 13)
"""Primes: what pads to a multiple would take another branch at a multiple."""
_OF_UNKNOWN = 3
"""How many of these, the smallest, are tried where it isn't known what they make large."""
_WIDEST, _MOST = 400, 10**6
_NO_LENGTHS = ("B", "H", "Hkv", "G", "D", "Dk", "Dv")
_MIXTURES = 4


def reverse(plan: Plan) -> Iterator[dict[str, int]]:
    """Yield a number for each unknown, the smallest for the one whose prime is the largest.

    At primes in the order of the user's sizes `max(Lq, Lk)` is `Lk`; here it isn't.
    """
    names = plan.unknowns
    few = range(len(names) + 2, 2, -1)
    falling = _FALLING[-len(names) :] if len(names) <= len(_FALLING) else range(8 + len(names), 8, -1)
    choices = [dict(zip(names, numbers, strict=False)) for numbers in (falling, few)]
    yield from [chosen for chosen in choices if plan.elements_in_any_order(chosen) <= _MOST][:1]


def large(plan: Plan) -> Iterator[dict[str, int]]:
    """Yield numbers where the lengths are much larger than the rest, then the others: `min(L, 12)`, `int(L**0.5)`."""
    lengths = [name for name in plan.unknowns if is_length(name)]
    for names in (lengths, [name for name in plan.unknowns if name not in lengths]):
        if names:
            yield from _enlarged(plan, names)


def mixed(plan: Plan) -> Iterator[dict[str, int]]:
    """Yield numbers with all sorts of remainders, then one unknown after the other much larger than the rest.

    A prime never leaves the remainder 0, so `L//3+1` is `-(-L//3)` there.
    """
    for shift in range(_MIXTURES):
        for sizes in (_COMPOSITE, _SMALL_COMPOSITE):
            chosen = {name: sizes[(place + 3 * shift) % len(sizes)] for place, name in enumerate(plan.unknowns)}
            if plan.elements_in_any_order(chosen) <= _MOST:
                yield chosen
                break
    for name in plan.unknowns:
        yield from _enlarged(plan, (name,))
    # rounded up and rounded down with one added differ only where one length divides another
    small = {name: 6 + place for place, name in enumerate(plan.unknowns)}
    for one, other in itertools.permutations([name for name in plan.unknowns if is_length(name)], 2):
        yield small | {one: 3 * small[other]}


def is_length(name: str) -> bool:
    """Say whether an unknown may be a length or a window, which grow on their own."""
    return name.partition("/")[0] not in _NO_LENGTHS


def _enlarged(plan: Plan, names: Sequence[str]) -> Iterator[dict[str, int]]:
    """Yield numbers where these are large; less so where they are factors of other sizes, to stay cheap to run."""
    small = {name: 6 + place for place, name in enumerate(plan.unknowns)}
    # where the very first call fails, nothing tells how large tensors would be
    for size in _LARGE if plan.weights else _LARGE[-_OF_UNKNOWN:]:
        chosen = small | {name: size + place for place, name in enumerate(names)}
        if max(plan.at(chosen).values()) <= _WIDEST and plan.elements_in_any_order(chosen) <= _MOST:
            yield chosen
            return

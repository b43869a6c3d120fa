"""The sizes at which a target is probed: small, all different, and such that no two axes can be confused."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from attnshape.dims import BY_LETTER
from attnshape.inference.plan import Plan
from attnshape.replaying.letters import LENGTHS

_PRIMES = (5, 7, 11, 13, 17, 19, 23, 29, 31, 37)
"""2 and 3 are found in most numbers."""
_GROUPS = (4, 6)
_MOST_ORDERS = 6
"""Sizes of which every order of the primes is weighed."""
_WIDTHS = ("D", "H", "Hkv", "G", "Dk", "Dv")
"""What widths are made of."""


def small_sizes(plan: Plan) -> list[dict[str, int]]:
    """Return two sets of sizes under a plan's constraints, then those of its own rounds.

    The primes are laid out so that the largest tensor is as small as can be. Lengths keep the user's order.
    """
    unknowns = plan.unknowns
    if len(unknowns) >= len(_PRIMES) or not unknowns:
        return [plan.numbers(0), plan.numbers(1)]
    more = max(1, _MOST_ORDERS + 1 - len(unknowns))
    first = _cheapest(plan, _PRIMES[: len(unknowns) + min(more, 3)], _GROUPS[0])
    second = _cheapest(plan, _PRIMES[: len(unknowns) + min(more + 1, 4)], _GROUPS[1], unlike=first)
    return [plan.at(first), plan.at(second), plan.numbers(0), plan.numbers(1)]


def other_lengths(plan: Plan, numbers: Mapping[str, int]) -> dict[str, int] | None:
    """Return sizes that differ from these in lengths only; None where no length varies by itself."""
    lengths = [name for name in plan.unknowns if name in LENGTHS]
    if not lengths or any(name not in numbers for name in plan.unknowns):
        return None
    chosen = {name: numbers[name] + 2 * (name in lengths) for name in plan.unknowns}
    return plan.at(chosen)


def _cheapest(plan: Plan, primes: Sequence[int], group: int, unlike: Mapping[str, int] | None = None) -> dict[str, int]:
    """Return the primes by unknown that make the smallest run; `unlike` has those of which none may be kept.

    How many heads share one is `group`: with a prime for it heads, and with them widths, would be large.
    """
    groups = dict.fromkeys((name for name in plan.unknowns if name in ("G", "H/Hkv")), group)
    unknowns = [name for name in plan.unknowns if name not in groups]
    turned = dict(zip(unknowns, primes[1:] if unlike is not None else primes, strict=False)) | groups
    if len(unknowns) > _MOST_ORDERS:
        return turned
    lengths = [name for name in unknowns if _letter(name) in (*LENGTHS, "W")]
    lengths.sort(key=lambda name: plan.sizes.numbers[_letter(name)])
    taken = {plan.sizes.numbers[letter] for letter in plan.fixed}
    best: dict[str, int] = {}
    least = math.inf
    for order in itertools.permutations(primes, len(unknowns)):
        chosen = dict(zip(unknowns, order, strict=True)) | groups
        in_order = all(chosen[a] < chosen[b] for a, b in itertools.pairwise(lengths))
        kept = unlike is not None and any(unlike[name] == chosen[name] for name in unknowns)
        if not in_order or kept or taken & set(order):
            continue
        cost = _cost(plan, chosen)
        if cost < least and not _coincide(plan.at(chosen)):
            best, least = chosen, cost
    return best or turned


def _coincide(numbers: Mapping[str, int]) -> bool:
    """Say whether a size is what code makes of a length: of all distances, a token more or less, twice as many."""
    lengths = [numbers[name] for name in numbers if name in LENGTHS]
    made = {made for n in lengths for made in (2 * n - 1, 2 * n + 1, n + 1, n - 1, 2 * n)}
    made |= {a + b for a, b in itertools.combinations(lengths, 2)}
    return any(number in made for number in numbers.values())


def _cost(plan: Plan, chosen: Mapping[str, int]) -> float:
    """Return roughly how much a run computes: its largest tensor, and the weights, which are widths squared."""
    known = [name for name in chosen if _letter(name) in BY_LETTER]
    width = math.prod(chosen[name] for name in known if _letter(name) in _WIDTHS)
    tensor = math.prod(number ** plan.weight(name) for name, number in chosen.items())
    return float(tensor + width**2)


def _letter(name: str) -> str:
    """Return the symbol that an unknown is, or is a factor of."""
    return name.partition("/")[0]

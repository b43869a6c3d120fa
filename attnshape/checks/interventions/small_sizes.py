"""The sizes at which a target is checked: small, all different, and such that no two axes can be confused."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from attnshape.dims.symbols import SYMBOLS_BY_NAME
from attnshape.inference.plan import Plan

_COINCIDES = 3
"""Smaller sizes divide too many numbers."""
LENGTHS = ("L", "Lq", "Lk", "Lp")


def involves(size: int, symbol: str, numbers: Mapping[str, int]) -> bool:
    """Return whether an axis is a symbol's, or a product with it, judged by its size.

    >>> involves(35, "B", {"B": 5, "H": 7}), involves(14, "B", {"B": 5, "H": 7})
    (True, False)
    """
    number = numbers.get(symbol, 0)
    return number > _COINCIDES and size > 0 and size % number == 0


def symbol_or_number(size: int, numbers: Mapping[str, int]) -> str:
    """Return a size's symbol if it has one, else the number.

    >>> symbol_or_number(7, {"B": 5, "H": 7})
    'H'
    """
    known = sorted(numbers, key=lambda symbol: list(SYMBOLS_BY_NAME).index(symbol) if symbol in SYMBOLS_BY_NAME else -1)
    return next((symbol for symbol in known if numbers[symbol] == size and size > 1), str(size))


_PRIMES = (5, 7, 11, 13, 17, 19, 23, 29, 31, 37)
"""2 and 3 divide too many numbers."""
_GROUPS = (4, 6)
_MOST_ORDERS = 6
"""Up to so many sizes, every order of the primes is tried."""
_WIDTHS = ("D", "H", "Hkv", "G", "Dk", "Dv")
"""The factors of widths."""


def small_sizes(plan: Plan) -> list[dict[str, int]]:
    """Return two sets of sizes under a plan's constraints, then those of its own rounds.

    The primes are assigned so that the largest tensor is as small as possible. Lengths keep the user's order.
    """
    unknowns = plan.unknowns
    if len(unknowns) >= len(_PRIMES) or not unknowns:
        return [plan.numbers(0), plan.numbers(1)]
    more = max(1, _MOST_ORDERS + 1 - len(unknowns))
    first = _cheapest(plan, _PRIMES[: len(unknowns) + min(more, 3)], _GROUPS[0])
    second = _cheapest(plan, _PRIMES[: len(unknowns) + min(more + 1, 4)], _GROUPS[1], unlike=first)
    return [plan.at(first), plan.at(second), plan.numbers(0), plan.numbers(1)]


def other_lengths(plan: Plan, numbers: Mapping[str, int]) -> dict[str, int] | None:
    """Return sizes that differ only in lengths; None if no length varies by itself."""
    lengths = [name for name in plan.unknowns if name in LENGTHS]
    if not lengths or any(name not in numbers for name in plan.unknowns):
        return None
    return plan.at({name: numbers[name] + 2 * (name in lengths) for name in plan.unknowns})


def _cheapest(plan: Plan, primes: Sequence[int], group: int, unlike: Mapping[str, int] | None = None) -> dict[str, int]:
    """Return the primes by unknown that make the cheapest run; no unknown keeps its prime from `unlike`.

    `group` is the number of heads that share one; a prime would make the heads, and with them the widths, large.
    """
    groups = dict.fromkeys((name for name in plan.unknowns if name in ("G", "H/Hkv")), group)
    unknowns = [name for name in plan.unknowns if name not in groups]
    turned = dict(zip(unknowns, primes[1:] if unlike is not None else primes, strict=False)) | groups
    if len(unknowns) > _MOST_ORDERS:
        return turned
    lengths = [name for name in unknowns if _symbol_in(name) in (*LENGTHS, "W")]
    lengths.sort(key=lambda name: plan.sizes.numbers[_symbol_in(name)])
    taken = {plan.sizes.numbers[symbol] for symbol in plan.fixed}
    best: dict[str, int] = {}
    least = math.inf
    for order in itertools.permutations(primes, len(unknowns)):
        chosen = dict(zip(unknowns, order, strict=True)) | groups
        in_order = all(chosen[a] < chosen[b] for a, b in itertools.pairwise(lengths))
        kept = unlike is not None and any(unlike[name] == chosen[name] for name in unknowns)
        if in_order and not kept and taken.isdisjoint(order):
            cost = _cost(plan, chosen)
            if cost < least and not _coincide(plan.at(chosen)):
                best, least = chosen, cost
    return best or turned


def _coincide(numbers: Mapping[str, int]) -> bool:
    """Return whether a size is also a number that code derives from lengths, such as `2 * L - 1` or `L + 1`."""
    lengths = [numbers[name] for name in numbers if name in LENGTHS]
    derived = {number for n in lengths for number in (2 * n - 1, 2 * n + 1, n + 1, n - 1, 2 * n)}
    derived |= {a + b for a, b in itertools.combinations(lengths, 2)}
    return not derived.isdisjoint(numbers.values())


def _cost(plan: Plan, chosen: Mapping[str, int]) -> float:
    """Estimate the cost of a run: its largest tensor, and the weights, which are widths squared."""
    width = math.prod(number for name, number in chosen.items() if _symbol_in(name) in _WIDTHS)
    tensor = math.prod(number ** plan.power(name) for name, number in chosen.items())
    return float(tensor + width**2)


def _symbol_in(name: str) -> str:
    """Return the symbol of an unknown, or the one of which it is a factor."""
    return name.partition("/")[0]

"""The sizes at which a target is probed: small, all different, and such that no two axes can be confused."""

from __future__ import annotations

from attnshape.dims import BY_LETTER
from attnshape.inference.plan import Plan
from attnshape.replaying.letters import LENGTHS

_PRIMES = (5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43)
"""2 and 3 are found in most numbers."""
_WIDTHS = ("D", "H", "Hkv", "G", "Dk", "Dv")
"""What widths are made of."""


def small_sizes(plan: Plan) -> list[dict[str, int]]:
    """Return two sets of sizes under a plan's constraints, then those of its own rounds, which keep the user's order.

    What widths are made of gets the smallest primes, since the weights are as large as widths squared; then come the
    rest, lengths last and in the user's order.
    """
    unknowns = plan.unknowns
    known = [name for name in unknowns if _letter(name) in BY_LETTER]
    wide = [name for name in known if _letter(name) in _WIDTHS]
    lengths = [name for name in known if _letter(name) in (*LENGTHS, "W")]
    others = [name for name in unknowns if name not in wide and name not in lengths]
    lengths.sort(key=lambda name: plan.sizes.numbers[_letter(name)])
    found = []
    if len(unknowns) < len(_PRIMES):
        first = dict(zip([*wide, *others, *lengths], _PRIMES, strict=False))
        turned = dict(zip([*wide[1:], *wide[:1]], _PRIMES, strict=False))
        later = dict(zip([*others, *lengths], _PRIMES[len(wide) + 1 :], strict=False))
        found = [plan.at(first), plan.at(turned | later)]
    return [*found, plan.numbers(0), plan.numbers(1)]


def _letter(name: str) -> str:
    """Return the symbol that an unknown is, or is a factor of."""
    return name.partition("/")[0]

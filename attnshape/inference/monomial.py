"""Products of unknowns with a rational coefficient, and how they are written in the size symbols."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Monomial:
    """A coefficient times a product of powers of unknowns.

    >>> d = unknown("H") * unknown("Dk")
    >>> written(d, {"H": unknown("H"), "D": d, "Dk": unknown("Dk")})
    'D'
    """

    coefficient: Fraction
    powers: frozenset[tuple[str, int]]

    def __mul__(self, other: Monomial) -> Monomial:
        return _monomial(self.coefficient * other.coefficient, [*self.powers, *other.powers])

    def __truediv__(self, other: Monomial) -> Monomial:
        inverse = [(name, -power) for name, power in other.powers]
        return _monomial(self.coefficient / other.coefficient, [*self.powers, *inverse])

    @property
    def is_constant(self) -> bool:
        """Whether no unknown is in it."""
        return not self.powers

    @property
    def degree(self) -> int:
        """How many unknowns are multiplied in it."""
        return sum(power for _, power in self.powers)


def _monomial(coefficient: Fraction, powers: Iterable[tuple[str, int]]) -> Monomial:
    total: dict[str, int] = {}
    for name, power in powers:
        total[name] = total.get(name, 0) + power
    return Monomial(coefficient, frozenset((name, power) for name, power in total.items() if power))


def constant(number: int) -> Monomial:
    """Return the number as a monomial."""
    return Monomial(Fraction(number), frozenset())


def unknown(name: str) -> Monomial:
    """Return one unknown as a monomial."""
    return Monomial(Fraction(1), frozenset({(name, 1)}))


def factor(values: Sequence[int], rounds: Sequence[Mapping[str, int]]) -> Monomial | None:
    """Return the one monomial that gives each value at the unknowns' primes of its round, or None.

    Each unknown has another prime in each round, so a factor that is there in every round is no coincidence with a
    constant.
    """
    powers: list[tuple[str, int]] = []
    rest = list(values)
    for name in rounds[0]:
        power = min(multiplicity(value, primes[name]) for value, primes in zip(values, rounds, strict=True))
        if power:
            powers.append((name, power))
            rest = [value // primes[name] ** power for value, primes in zip(rest, rounds, strict=True)]
    if any(value != rest[0] for value in rest):
        return None
    return _monomial(Fraction(rest[0]), powers)


def multiplicity(value: int, prime: int) -> int:
    """Return how often a prime divides a number.

    >>> multiplicity(40, 2)
    3
    """
    count = 0
    while value and value % prime == 0:
        value //= prime
        count += 1
    return count


def written(monomial: Monomial, symbols: Mapping[str, Monomial]) -> str | None:
    """Write a monomial in the symbols, the composite ones first: `D` rather than `H*Dk`, `Dk//2`, `3*D`.

    The symbols come in the order in which a product is to be written. None where they can't express it.
    """
    attempts = [_cover(monomial, symbols, fits) for fits in (_divides, _divides_but_for_a_number)]
    found = [attempt for attempt in attempts if attempt is not None]
    if not found:
        return None
    factors, over = min(found, key=lambda attempt: (len(attempt[1]), len(attempt[0])))
    return "//".join(["*".join(factors), *over])


def _cover(
    monomial: Monomial, symbols: Mapping[str, Monomial], fits: Callable[[Monomial, Monomial], bool]
) -> tuple[list[str], list[str]] | None:
    """Return numerator and denominator of a way to write the monomial, taking composite symbols while they fit."""
    numerator: list[str] = []
    rest = monomial
    for name in sorted(symbols, key=lambda name: (-symbols[name].degree, -symbols[name].coefficient)):
        while fits(symbols[name], rest):
            rest = rest / symbols[name]
            numerator.append(name)
    denominator: list[str] = []
    rest = _settle(rest, symbols, numerator, denominator)
    if not rest.is_constant:
        return None
    order = list(symbols)
    factors = sorted(numerator, key=order.index)
    over = sorted(denominator, key=order.index)
    number = rest.coefficient
    if number.numerator != 1 or not factors:
        factors.insert(0, str(number.numerator))
    if number.denominator != 1:
        over.append(str(number.denominator))
    return factors, over


def _settle(rest: Monomial, symbols: Mapping[str, Monomial], numerator: list[str], denominator: list[str]) -> Monomial:
    """Write what no symbol divides as a quotient: `C//nh` where C is nh times an unknown that has no name."""
    for _ in range(8):
        above = sorted(name for name, power in rest.powers if power > 0)
        holders = [s for s, m in symbols.items() if above and (above[0], 1) in m.powers]
        below = sorted(name for name, power in rest.powers if power < 0)
        divisors = [s for s, m in symbols.items() if below and m.powers == frozenset({(below[0], 1)})]
        if holders:
            holder = min(holders, key=lambda name: symbols[name].degree)
            numerator.append(holder)
            rest = rest / symbols[holder]
        elif divisors:
            denominator.append(divisors[0])
            rest = rest * symbols[divisors[0]]
        else:
            break
    return rest


def _divides(symbol: Monomial, monomial: Monomial) -> bool:
    """Whether the symbol's unknowns are all in the monomial, and its coefficient divides it evenly."""
    quotient = monomial.coefficient / symbol.coefficient
    return quotient.denominator == 1 and _divides_but_for_a_number(symbol, monomial)


def _divides_but_for_a_number(symbol: Monomial, monomial: Monomial) -> bool:
    have = dict(monomial.powers)
    return bool(symbol.powers) and all(have.get(name, 0) >= power > 0 for name, power in symbol.powers)

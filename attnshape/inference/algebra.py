"""Formulas that give measured numbers: products, sums and rounded quotients of sizes."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

Values = tuple[int, ...]
_LARGEST_COEFFICIENT = 6
_LARGEST_ADDEND = 64
_CLOSE = 1e-4
"""How far from a whole number a solution may be; the sum is then checked with the whole numbers."""
_SMALL = 2**31
"""Above it numbers are left to the caller's exact check."""

Term = tuple[int, str]
_DIVISORS = (2, 3, 4, 5, 6, 7, 8, 16, 32, 64)
_ALL_OFFSETS = 8
"""Up to this divisor every number that can be added above is tried; beyond it only those that round up or down."""


@dataclass(frozen=True)
class Monomial:
    """A coefficient times a product of powers of unknowns.

    >>> d = unknown("H") * unknown("Dk")
    >>> format_monomial(d, {"H": unknown("H"), "D": d, "Dk": unknown("Dk")})
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
    total: Counter[str] = Counter()
    for name, power in powers:
        total[name] += power
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
        value, count = value // prime, count + 1
    return count


def format_monomial(monomial: Monomial, symbols: Mapping[str, Monomial]) -> str | None:
    """Write a monomial in the symbols, the composite ones first: `D` rather than `H*Dk`, `Dk//2`, `3*D`.

    The symbols come in the order in which a product is to be written. None if they can't express it.
    """
    attempts = [_cover(monomial, symbols, fits) for fits in (_divides, _divides_but_for_a_number)]
    covers = [attempt for attempt in attempts if attempt is not None]
    factors, over = min(covers, key=lambda cover: (len(cover[1]), len(cover[0])), default=([], []))
    return "//".join(["*".join(factors), *over]) if factors else None


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
    order, number = list(symbols), rest.coefficient
    factors, over = sorted(numerator, key=order.index), sorted(denominator, key=order.index)
    if number.numerator != 1 or not factors:
        factors.insert(0, str(number.numerator))
    return factors, over + [str(number.denominator)] * (number.denominator != 1)


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
    for coefficient, symbol in sorted(terms, key=lambda term: term[0] < 0):
        alone = abs(coefficient) == 1 and re.fullmatch(r"[\w*/]+", symbol)
        text = symbol if alone or re.fullmatch(r"[\w*]+", symbol) else f"({symbol})"
        size = f"{abs(coefficient)}*{text}" if abs(coefficient) != 1 else text
        parts.append(f"{'-' if coefficient < 0 else '+'}{size}")
    if addend:
        parts.append(f"{addend:+d}")
    return "".join(parts).removeprefix("+")


def roundings(values: Values, bases: Sequence[tuple[str, Values]], more: Sequence[tuple[str, Values]]) -> Iterator[str]:
    """Yield each rounded quotient of a base and a number, or of a base and one of `more`, that gives the values."""
    if min(values) < 1 or len(set(values)) < 2:
        return
    divisors = [(str(number), tuple(number for _ in values)) for number in _DIVISORS]
    for name, above in bases:
        for divisor, below in (*divisors, *more):
            if divisor != name:
                yield from _quotients(values, name, above, divisor, below)


def _quotients(values: Values, name: str, above: Values, divisor: str, below: Values) -> Iterator[str]:
    # a quotient that is the same everywhere would make any number of any divisor
    if min(below) < 2 or len({high // low for high, low in zip(above, below, strict=True)}) < 2:
        return
    up = tuple(-(-high // low) for high, low in zip(above, below, strict=True))
    if values == tuple(number * low for number, low in zip(up, below, strict=True)):
        yield f"-(-{_inner(name)}//{_inner(divisor)})*{_inner(divisor)}"
    # -1 stands for one less than the divisor, which rounds up
    shifts = range(int(divisor)) if divisor.isdecimal() and int(divisor) <= _ALL_OFFSETS else (0, -1)
    for shift in shifts:
        numbers = zip(values, above, below, strict=True)
        rest = {value - (high + (low - 1 if shift == -1 else shift)) // low for value, high, low in numbers}
        if len(rest) == 1 and abs(addend := rest.pop()) <= _LARGEST_ADDEND:
            yield _written(name, divisor, shift, addend)


def _written(name: str, divisor: str, shift: int, addend: int) -> str:
    """Write a quotient rounded down after `shift` was added above, -1 for what rounds up, plus a number.

    >>> [_written("L", "4", *numbers) for numbers in ((0, 1), (3, 0), (1, -1))]
    ['L//4+1', '-(-L//4)', '(L-3)//4']
    """
    base, below = _inner(name), _inner(divisor)
    behind = f"{addend:+d}" if addend else ""
    if shift == 0:
        return f"{base}//{below}{behind}"
    if shift == -1 or shift == int(divisor) - 1:
        return f"-(-{base}//{below}){behind}"
    return f"({name}{shift + addend * int(divisor):+d})//{below}"


def _inner(text: str) -> str:
    return text if text.isalnum() else f"({text})"

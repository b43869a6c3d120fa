"""Which sizes vary, under which constraints, and the primes that they take in each round."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from attnshape.inference.monomial import Monomial, constant, unknown
from attnshape.sizes import Sizes

_FIRST = 5
"""2 and 3 are the sizes that coincide with most constants."""

_PLACES: tuple[Callable[[int], int], ...] = (
    lambda place: place,
    lambda place: place + 1,
    lambda place: place + (place + 1) // 2,
    lambda place: place + min(place, 2),
)
"""Which prime the unknown at a place takes in each round: small ones, and not always equally far apart, since evenly
spaced primes make sums of sizes coincide."""


@dataclass(frozen=True)
class Equal:
    """Two sizes that must be one number."""

    symbol: str
    other: str

    def __str__(self) -> str:
        return f"{self.symbol} = {self.other}"


@dataclass(frozen=True)
class Multiple:
    """A size that must be a multiple of a number or of another size."""

    symbol: str
    factor: int | str

    def __str__(self) -> str:
        if self.factor == 2:
            return f"{self.symbol} even"
        return f"{self.factor} divides {self.symbol}"


@dataclass(frozen=True)
class Fixed:
    """A size that stays as the user gave it."""

    symbol: str

    def __str__(self) -> str:
        return f"{self.symbol} fixed"


Constraint = Equal | Multiple | Fixed


@dataclass(frozen=True)
class Plan:
    """How the sizes vary from round to round."""

    sizes: Sizes
    constraints: tuple[Constraint, ...] = ()
    ordered: bool = False
    """Whether products and sums of sizes keep their place in the order too, which makes the runs larger."""

    @property
    def fixed(self) -> tuple[str, ...]:
        """The symbols that keep the user's number."""
        return tuple(c.symbol for c in self.constraints if isinstance(c, Fixed))

    @cached_property
    def symbols(self) -> dict[str, Monomial]:
        """Each varying symbol as a product of unknowns, in canonical order; sums of symbols are left out."""
        found = {letter: self._independent(letter) for letter in self.sizes.independent}
        for letter, expression in self.sizes.follows.items():
            product = _as_product(expression.tree, found)
            if product is not None:
                found[letter] = product
        return {
            letter: found[letter] for letter in self.sizes.records if letter in found and not found[letter].is_constant
        }

    def _independent(self, letter: str) -> Monomial:
        """Return an independent symbol as its constraint has it."""
        match next((c for c in self.constraints if c.symbol == letter), None):
            case Equal(other=other):
                return self._independent(other)
            case Multiple(factor=int(factor)):
                return constant(factor) * unknown(f"{letter}/{factor}")
            case Multiple(factor=str(factor)):
                return self._independent(factor) * unknown(f"{letter}/{factor}")
            case Fixed():
                return constant(self.sizes.records[letter].size)
        return unknown(letter)

    @cached_property
    def unknowns(self) -> tuple[str, ...]:
        """The unknowns that take primes, the one of the smallest size first."""
        numbers = self.sizes.numbers
        independent = [letter for letter in self.sizes.independent if letter in self.symbols]
        independent.sort(key=lambda letter: numbers[letter])
        names = (name for letter in independent for name, _ in sorted(self.symbols[letter].powers))
        return tuple(dict.fromkeys(names))

    def primes(self, round_: int) -> dict[str, int]:
        """Return each unknown's prime in a round: another for each, in the order of the user's sizes."""
        numbers = self.sizes.numbers
        chosen: dict[str, int] = {}
        last = 0
        for position, name in enumerate(self.unknowns):
            if self.ordered:
                owner = self._owner(name)
                for letter, symbol in self.symbols.items():
                    if numbers[letter] < numbers[owner] and all(n in chosen for n, _ in symbol.powers):
                        last = max(last, _value(symbol, chosen))
                if numbers[owner] > sum(numbers[self._owner(other)] for other in chosen):
                    last = max(last, sum(chosen.values()))
            last = max(_prime_after(last), _prime(_PLACES[round_ % len(_PLACES)](position)))
            chosen[name] = last
        return chosen

    def numbers(self, round_: int) -> dict[str, int]:
        """Return every symbol's number in a round."""
        return self.at(self.primes(round_))

    def at(self, chosen: Mapping[str, int]) -> dict[str, int]:
        """Return every symbol's number where the unknowns have the chosen ones."""
        independent = {
            letter: _value(self.symbols[letter], chosen) if letter in self.symbols else self.sizes.records[letter].size
            for letter in self.sizes.independent
        }
        return self.sizes.at(independent)

    def _owner(self, name: str) -> str:
        """Return the independent symbol that an unknown stands in."""
        return next(
            letter
            for letter in self.sizes.independent
            if letter in self.symbols
            and any(n == name for n, _ in self.symbols[letter].powers)
            and (letter == name or name.startswith(f"{letter}/"))
        )


def _as_product(tree: ast.expr, found: Mapping[str, Monomial]) -> Monomial | None:
    """Return an expression as a monomial, None where it is a sum or a quotient that isn't one."""
    match tree:
        case ast.Name(id=name):
            return found.get(name)
        case ast.Constant(value=int(value)) if value > 0:
            return constant(value)
        case ast.BinOp(left=left, op=ast.Mult() | ast.FloorDiv() as operator, right=right):
            first, second = _as_product(left, found), _as_product(right, found)
            if first is None or second is None:
                return None
            if isinstance(operator, ast.Mult):
                return first * second
            quotient = first / second
            whole = quotient.coefficient.denominator == 1 and all(power > 0 for _, power in quotient.powers)
            return quotient if whole else None
    return None


def _value(monomial: Monomial, chosen: Mapping[str, int]) -> int:
    result = monomial.coefficient
    for name, power in monomial.powers:
        result *= chosen[name] ** power
    return int(result)


def _prime(place: int) -> int:
    """Return the prime at a place, counted from the first that is used."""
    number = _FIRST
    for _ in range(place):
        number = _prime_after(number)
    return number


def _prime_after(number: int) -> int:
    """Return the smallest prime above a number."""
    number += 1
    while number < _FIRST or any(number % divisor == 0 for divisor in range(2, int(number**0.5) + 1)):
        number += 1
    return number

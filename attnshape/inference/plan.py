"""Which sizes vary, under which constraints, and the primes that they take in each round."""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from attnshape.inference.constraint import Constraint, Equal, Fixed, Multiple
from attnshape.inference.monomial import Monomial, constant, unknown
from attnshape.sizes import Sizes

_FIRST = 5
"""2 and 3 are the sizes that coincide with most constants."""

_WIDEST = 1000
_MOST_ELEMENTS = 10**6
"""What a size, and the largest tensor, may come to in a small run before another order of the primes is chosen."""

TOO_MANY_ELEMENTS = 5 * 10**6
"""Of the largest tensor, above which every prime is one lower."""

_PLACES: tuple[Callable[[int], int], ...] = (
    lambda place: place,
    lambda place: place + 1,
    lambda place: place + (place + 1) // 2,
    lambda place: place + 2 + place // 2,
)
"""Which prime the unknown at a place takes in each round: small ones, and not always equally far apart, since evenly
spaced primes make sums of sizes coincide."""


@dataclass(frozen=True)
class Plan:
    """How the sizes vary from round to round."""

    sizes: Sizes
    constraints: tuple[Constraint, ...] = ()
    ordered: bool = False
    """Whether products and sums of sizes keep their place in the order too, which makes the runs larger."""
    weights: Mapping[str, int] = field(default_factory=dict)
    """The power in which each unknown is part of the largest tensor, as far as that is known."""
    others: tuple[Mapping[str, int], ...] = ()
    """The powers in the other tensors, one of which may be the largest where the sizes are in another order."""

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
            case Multiple(factor=factor, other=None):
                return constant(factor) * unknown(f"{letter}/{factor}")
            case Multiple(factor=factor, other=str(other)):
                return constant(factor) * self._of(other) * unknown(f"{letter}/{other}")
            case Fixed():
                return constant(self.sizes.records[letter].size)
        return unknown(letter)

    def _of(self, letter: str) -> Monomial:
        """Return a symbol that another is a multiple of; one that isn't a product counts as 1."""
        if letter in self.sizes.independent:
            return self._independent(letter)
        tree = self.sizes.follows[letter].tree
        parts = {name: self._of(name) for name in self.sizes.follows[letter].symbols}
        return _as_product(tree, parts) or constant(1)

    @cached_property
    def unknowns(self) -> tuple[str, ...]:
        """The unknowns that take primes, in the order of the user's sizes where the run then is small enough.

        Otherwise those come first that make it large: the factors of sizes that are products, and high powers.
        """
        numbers = self.sizes.numbers
        independent = [letter for letter in self.sizes.independent if letter in self.symbols]
        independent.sort(key=lambda letter: numbers[letter])
        names = tuple(dict.fromkeys(name for letter in independent for name, _ in sorted(self.symbols[letter].powers)))
        taken = dict(
            zip(names, itertools.accumulate(names, lambda last, _: _prime_after(last), initial=_FIRST), strict=False)
        )
        if self.ordered or self._is_small(taken):
            return names
        degrees = {
            name: max(symbol.degree for symbol in self.symbols.values() if name in dict(symbol.powers))
            for name in names
        }
        widest = max(self.symbols.values(), key=lambda symbol: _value(symbol, taken))
        if _value(widest, taken) ** 2 > self._largest_tensor(taken):
            within = dict(widest.powers)
            return tuple(sorted(names, key=lambda name: (-within.get(name, 0), -self.weight(name), -degrees[name])))
        return tuple(sorted(names, key=lambda name: (-self.weight(name), -degrees[name])))

    def weight(self, name: str) -> int:
        """Return the power in which an unknown is part of the largest tensor, 1 where that isn't known."""
        if not self.weights:
            return 1
        if any("/" in known for known in self.weights):
            return self.weights.get(name, 1)
        # known of the sizes themselves: a factor of several is part of each
        return sum(
            self.weights.get(letter, 0) * dict(symbol.powers).get(name, 0)
            for letter, symbol in self.symbols.items()
            if letter in self.sizes.independent
        )

    @property
    def is_large(self) -> bool:
        """Whether the first rounds make tensors too large to run often."""
        return any(self.elements(self.primes(round_)) > TOO_MANY_ELEMENTS for round_ in range(3))

    def elements(self, chosen: Mapping[str, int]) -> int:
        """Return how many elements the largest tensor may have where the unknowns have these numbers.

        A weight may be as wide as it is long, and is no step's result.
        """
        return max(self._largest_tensor(chosen), max(self.at(chosen).values(), default=0) ** 2)

    def elements_in_any_order(self, chosen: Mapping[str, int]) -> int:
        """Return the same where the numbers of the unknowns are in another order than their primes."""
        found = self.elements(chosen)
        for powers in self.others:
            found = max(found, math.prod(chosen[name] ** power for name, power in powers.items()))
        return found

    def _largest_tensor(self, chosen: Mapping[str, int]) -> int:
        return math.prod(number ** self.weight(name) for name, number in chosen.items()) if self.weights else 0

    def _is_small(self, chosen: Mapping[str, int]) -> bool:
        return (
            max((_value(symbol, chosen) for symbol in self.symbols.values()), default=0) <= _WIDEST
            and self.elements(chosen) <= _MOST_ELEMENTS
        )

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
        if self.elements(chosen) > TOO_MANY_ELEMENTS:
            # one prime lower each; with 3 among them only where it must be
            return {name: _prime_before(prime) for name, prime in chosen.items()}
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


def _prime_before(number: int) -> int:
    """Return the largest prime below a prime from 5 on."""
    number -= 1
    while any(number % divisor == 0 for divisor in range(2, int(number**0.5) + 1)):
        number -= 1
    return number

"""From the numbers that one quantity had in several runs to the formula that gives them all."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from attnshape import axis
from attnshape.inference.monomial import factor, written
from attnshape.inference.plan import Plan
from attnshape.model import Known

Values = tuple[int, ...]
_COEFFICIENTS = (1, 2, 3, 4, -1, -2)
_LARGEST_ADDEND = 64
_DIVISORS = (2, 3, 4, 5, 6, 7, 8, 16, 32, 64)


@dataclass(frozen=True)
class Formula:
    """An expression, and how it is known."""

    text: str
    known: Known
    missed: bool = False
    """Whether the number moved with the sizes and no formula gave it, or is known from one run only."""


class Solver:
    """Finds formulas for quantities measured in each round and at the user's sizes.

    Products come first, since primes factor in one way only. Sums and rounded quotients are looked for where no product
    fits, and `unsure` then says that another round would confirm them.
    """

    def __init__(self, plan: Plan, rounds: int, witnesses: Sequence[Mapping[str, int]] = ()) -> None:
        """`witnesses` are sizes of further runs, whose numbers come behind those of the rounds."""
        self._plan = plan
        self._witnesses = witnesses
        self._primes = [plan.primes(round_) for round_ in range(rounds)]
        self._numbers = [plan.numbers(round_) for round_ in range(rounds)]
        self._actual = plan.sizes.numbers
        still = [
            letter
            for letter in self._actual
            if all(n[letter] == self._actual[letter] for n in (*self._numbers, *witnesses))
        ]
        sizes = [self._actual[letter] for letter in still]
        self._still = {self._actual[letter]: letter for letter in still if sizes.count(self._actual[letter]) == 1}
        self._found: dict[tuple[Values, int], Formula] = {}
        self._sums: dict[str, Values] = {
            letter: tuple(numbers[letter] for numbers in self._numbers)
            for letter in plan.sizes.follows
            if letter not in plan.symbols and letter not in still
        }
        self.unsure = False

    def solve(self, values: Values, actual: int) -> Formula:
        """Return the formula of a quantity from its numbers in each round, at each witness, and in the user's run."""
        key = (values, actual)
        if key not in self._found:
            self._found[key] = self._solve(values, actual)
        return self._found[key]

    def _solve(self, values: Values, actual: int) -> Formula:
        if all(value == values[0] for value in values):
            if values[0] != actual:
                return Formula(str(actual), "literal", missed=True)
            # among small sizes int(L**0.5) is a constant too
            self.unsure = self.unsure or actual > 1
            label = self._still.get(actual) if actual > 1 else None
            return Formula(label, "matched") if label else Formula(str(actual), "literal")
        rounds = values[: len(self._numbers)]
        seen = (*values[len(self._numbers) :], actual)
        text = self.product(rounds) or self._multiple_of_known(rounds, seen) or self._sum(rounds, seen)
        if text is not None and self._gives(text, seen):
            return Formula(text, "proved")
        return Formula(str(actual), "literal", missed=True)

    def _gives(self, text: str, seen: Values) -> bool:
        """Whether the formula gives what was seen at the witnesses and in the user's run."""
        expression = axis.parse(text)
        sizes = (*self._witnesses, self._actual)
        return all(expression.evaluate(numbers) == number for numbers, number in zip(sizes, seen, strict=True))

    def _multiple_of_known(self, values: Values, seen: Values) -> str | None:
        """Return the values as a multiple of a sum that was found before, None where they are none."""
        if min(values) < 1:
            return None
        multiples = (self._multiple(values, text, numbers) for text, numbers in self._sums.items())
        return next((text for text in multiples if text is not None and self._gives(text, seen)), None)

    def _sum(self, values: Values, seen: Values) -> str | None:
        """Return the sum or the rounded quotient that gives the values, None where none does or several differ."""
        if min(values) < 1:
            return None
        self.unsure = True
        fitting: dict[str, str] = {}
        for divisor, quotient in self._quotients(values):
            for inner in itertools.chain(self._additions(quotient), self._roundings(quotient)):
                text = inner if divisor == "1" else f"{divisor}*({inner})"
                if self._gives(text, seen):
                    fitting[text] = inner
        if len({tuple(axis.parse(text).evaluate(numbers) for numbers in self._elsewhere) for text in fitting}) != 1:
            return None
        text, inner = next(iter(fitting.items()))
        self._sums[inner] = tuple(axis.parse(inner).evaluate(numbers) for numbers in self._numbers)
        return text

    @cached_property
    def _elsewhere(self) -> list[dict[str, int]]:
        """Sizes at which formulas that can't be told apart by the runs differ: even and odd, small and large."""
        chance = random.Random(0)
        return [self._plan.at({name: chance.randint(1, 99) for name in self._plan.unknowns}) for _ in range(16)]

    def product(self, values: Values) -> str | None:
        """Return the values as a product of symbols, None where they are none."""
        if min(values) < 1:
            return None
        monomial = factor(values, self._primes)
        return written(monomial, self._plan.symbols) if monomial is not None else None

    def _multiple(self, values: Values, text: str, numbers: Values) -> str | None:
        """Return the values as a product of a known sum and others: `D*(Lp+L)`, `H*(L+1)*(L+1)`."""
        if any(value % number for value, number in zip(values, numbers, strict=True)):
            return None
        quotient = tuple(value // number for value, number in zip(values, numbers, strict=True))
        inner = text if text.isidentifier() else f"({text})"
        if all(value == 1 for value in quotient):
            return text
        if all(value == quotient[0] for value in quotient):
            return f"{quotient[0]}*{inner}"
        rest = self.product(quotient)
        if rest is None and numbers != quotient:
            rest = self._multiple(quotient, text, numbers)
        elif rest is None:
            rest = inner
        return f"{rest}*{inner}" if rest is not None and "//" not in rest else None

    def _quotients(self, values: Values) -> Iterator[tuple[str, Values]]:
        """Yield the values themselves, then what is left when one or two symbols that divide them are taken out."""
        yield "1", values
        symbols = [(letter, self._at(letter)) for letter in self._plan.symbols]
        for (first, numbers), (second, others) in itertools.combinations_with_replacement(
            [("1", _ones(values)), *symbols], 2
        ):
            product = tuple(a * b for a, b in zip(numbers, others, strict=True))
            if second != "1" and all(value % number == 0 for value, number in zip(values, product, strict=True)):
                name = second if first == "1" else f"{first}*{second}"
                yield name, tuple(value // number for value, number in zip(values, product, strict=True))

    def _additions(self, values: Values) -> Iterator[str]:
        """Yield sums that give the values: a symbol and a number, two symbols, two symbols and a number."""
        terms = [(letter, self._at(letter)) for letter in self._plan.symbols]
        for letter, numbers in terms:
            for coefficient in _COEFFICIENTS:
                if (addend := _constant(values, [(coefficient, numbers)])) is not None:
                    yield _sum([(coefficient, letter)], addend)
        for (first, numbers), (second, others) in itertools.combinations(terms, 2):
            for one, other in itertools.product(_COEFFICIENTS, repeat=2):
                addend = _constant(values, [(one, numbers), (other, others)])
                if addend is not None and (one > 0 or other > 0):
                    yield _sum([(one, first), (other, second)], addend)

    def _roundings(self, values: Values) -> Iterator[str]:
        """Yield quotients rounded down, rounded up, and paddings to a multiple."""
        if min(values) < 2:
            return
        for letter in self._plan.symbols:
            numbers = self._at(letter)
            for divisor in _DIVISORS:
                down = tuple(number // divisor for number in numbers)
                up = tuple(-(-number // divisor) for number in numbers)
                if values == down:
                    yield f"{letter}//{divisor}"
                if values == up:
                    yield f"-(-{letter}//{divisor})"
                if values == tuple(number * divisor for number in up):
                    yield f"-(-{letter}//{divisor})*{divisor}"

    def _at(self, letter: str) -> Values:
        return tuple(numbers[letter] for numbers in self._numbers)


def _ones(values: Values) -> Values:
    return tuple(1 for _ in values)


def _constant(values: Values, terms: Sequence[tuple[int, Values]]) -> int | None:
    """Return the number that is left in every round when the terms are taken away, where it is one small number."""
    rests = {
        value - sum(coefficient * numbers[round_] for coefficient, numbers in terms)
        for round_, value in enumerate(values)
    }
    rest = rests.pop()
    return rest if not rests and abs(rest) <= _LARGEST_ADDEND else None


def _sum(terms: Sequence[tuple[int, str]], addend: int) -> str:
    """Write a sum, the positive terms first.

    >>> _sum([(-1, "W"), (2, "L")], 1)
    '2*L-W+1'
    """
    parts = []
    for coefficient, letter in sorted(terms, key=lambda term: term[0] < 0):
        size = f"{abs(coefficient)}*{letter}" if abs(coefficient) != 1 else letter
        parts.append(f"{'-' if coefficient < 0 else '+'}{size}")
    if addend:
        parts.append(f"{addend:+d}")
    return "".join(parts).removeprefix("+")


def matched(actual: int, sizes: Mapping[str, int]) -> Formula:
    """Return what can be said of an axis from one run alone: that it equals exactly one size, or its number."""
    equal = [letter for letter, size in sizes.items() if size == actual]
    return (
        Formula(equal[0], "matched") if actual > 1 and len(equal) == 1 else Formula(str(actual), "literal", missed=True)
    )

"""From the numbers that one quantity had in several runs to the formula that gives them all."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from attnshape.dims.expressions import parse_expression
from attnshape.inference.algebra import factor, format_monomial, roundings, sums, unknown
from attnshape.inference.plan import Plan, is_prime
from attnshape.model.trace import Known


@dataclass(frozen=True)
class Formula:
    """An expression, and how it is known."""

    text: str
    known: Known
    unsolved: bool = False
    """Whether the number varied with the sizes and no formula gave it, or is known from one run only."""
    doubtful: bool = False
    """Whether it is a number that may follow from a size that wasn't varied."""
    condition: str | None = None
    """The comparison of a size with another, or a number, under which it holds; None if it holds at all sizes."""
    arbitrary: bool = False
    """Whether it is the stride of an axis of size 1, which means nothing."""


def matched(actual: int, sizes: Mapping[str, int]) -> Formula:
    """Return the one size that an axis of a single run equals, else its number."""
    equal = [symbol for symbol, size in sizes.items() if size == actual]
    return (
        Formula(equal[0], "matched")
        if actual > 1 and len(equal) == 1
        else Formula(str(actual), "literal", unsolved=True)
    )


Values = tuple[int, ...]
_ADDED = re.compile(r"[+-]\d+$")


class Solver:
    """Finds formulas for quantities measured in each round and at the user's sizes.

    Products come first, since primes factor in one way only. Sums and rounded quotients are looked for where no product
    fits, and `needs_more_runs` then says that another round would confirm them.
    """

    def __init__(
        self,
        plan: Plan,
        rounds: int,
        validation: Sequence[Mapping[str, int]] = (),
        diverging: Sequence[Mapping[str, int]] = (),
    ) -> None:
        """Prepare to solve for what was measured.

        Args:
            plan: Which sizes vary, and their primes in each round.
            rounds: The number of rounds that were run.
            validation: The sizes of further runs, whose numbers follow those of the rounds.
            diverging: Sizes at which the target takes different steps, so that formulas need not agree there.
        """
        self._diverging = diverging
        self._plan = plan
        self._primes = [plan.primes(round_) for round_ in range(rounds)]
        actual = plan.sizes.numbers
        self._runs = [*(plan.numbers(round_) for round_ in range(rounds)), *validation, actual]
        fixed = [symbol for symbol in actual if all(numbers[symbol] == actual[symbol] for numbers in self._runs)]
        sizes = [actual[symbol] for symbol in fixed]
        self._fixed = {actual[symbol]: symbol for symbol in fixed if sizes.count(actual[symbol]) == 1}
        self._any_fixed = any(size > 1 for size in sizes)
        self._found: dict[tuple[Values, int], Formula] = {}
        self._sums: dict[str, Values] = {
            symbol: self._at(symbol)
            for symbol in plan.sizes.follows
            if symbol not in plan.symbols and symbol not in fixed
        }
        self._known_before = len(self._sums)
        self.needs_more_runs = False

    def solve(self, values: Values, actual: int) -> Formula:
        """Return the formula of a quantity from its numbers in the rounds, the validation runs and the user's run."""
        key = (values, actual)
        if key not in self._found:
            self._found[key] = self._solve(values, actual)
        return self._found[key]

    def again(self) -> bool:
        """Forget what had no formula; return whether sums are known now that may be part of one."""
        unsolved = [key for key, formula in self._found.items() if formula.unsolved]
        for key in unsolved:
            del self._found[key]
        grown = bool(unsolved) and len(self._sums) > self._known_before
        self._known_before = len(self._sums)
        return grown

    def _solve(self, values: Values, actual: int) -> Formula:
        if all(value == values[0] for value in values):
            if values[0] != actual:
                return Formula(str(actual), "literal", unsolved=True)
            # among small sizes int(L**0.5) is a constant too
            self.needs_more_runs = self.needs_more_runs or actual > 1
            label = self._fixed.get(actual) if actual > 1 else None
            if label:
                return Formula(label, "matched")
            return Formula(str(actual), "literal", doubtful=self._any_fixed and actual > 1)
        seen = (*values, actual)
        product = self.product(values[: len(self._primes)])
        if product is not None and self._gives(product, seen):
            return Formula(product, "verified")
        text = self._multiple_of_known(seen) or self._sum(seen)
        if text is not None:
            return Formula(text, "verified")
        return self._smaller_or_larger(seen) or Formula(str(actual), "literal", unsolved=True)

    def product(self, values: Values) -> str | None:
        """Return the values in the rounds as a product of symbols, None if they are none."""
        if min(values) < 1:
            return None
        monomial = factor(values, self._primes)
        return format_monomial(monomial, self._plan.symbols) if monomial is not None else None

    def _gives(self, text: str, seen: Values) -> bool:
        """Whether the formula gives what was seen in every run, the user's last."""
        return self._at(text) == seen

    def _at(self, text: str) -> Values:
        expression = parse_expression(text)
        return tuple(expression.evaluate(numbers) for numbers in self._runs)

    def _multiple_of_known(self, seen: Values) -> str | None:
        """Return the values as a product of sums that were found before, and of symbols; None if they are none."""
        if min(seen) < 1:
            return None
        multiples = (self._multiple(seen, text, 3) for text in self._sums)
        return next((text for text in multiples if text is not None and self._gives(text, seen)), None)

    def _multiple(self, values: Values, text: str, depth: int) -> str | None:
        """Return the values as a product of a known sum and others: `D*(Lp+L)`, `H*(L+1)*(L+1)`."""
        numbers = self._sums[text]
        if any(number < 1 or value % number for value, number in zip(values, numbers, strict=True)):
            return None
        quotient = tuple(value // number for value, number in zip(values, numbers, strict=True))
        inner = text if text.isidentifier() else f"({text})"
        if all(value == quotient[0] for value in quotient):
            return text if quotient[0] == 1 else f"{quotient[0]}*{inner}"
        rest = self.product(quotient[: len(self._primes)])
        if (rest is None or not self._gives(rest, quotient)) and depth:
            others = (self._multiple(quotient, other, depth - 1) for other in self._sums)
            rest = next((other for other in others if other is not None), None)
            rest = f"({rest})" if rest in self._sums and not rest.isidentifier() else rest
        return f"{rest}*{inner}" if rest is not None and not rest.count("//") > rest.count("(") else None

    def _sum(self, seen: Values) -> str | None:
        """Return the sum or the rounded quotient that gives the values, None if none does or several differ."""
        if min(seen) < 1:
            return None
        self.needs_more_runs = True
        quotients = list(self._quotients(seen))
        for found in self._by_simplicity(quotients):
            fitting = {text: inner for text, inner in found if self._gives(text, seen)}
            if not fitting:
                continue
            if not self._agree(list(fitting)):
                return None
            text, inner = min(fitting.items(), key=lambda pair: (_ADDED.search(pair[0]) is not None, len(pair[0])))
            self._sums[inner] = self._at(inner)
            return text
        return None

    def _agree(self, texts: Sequence[str]) -> bool:
        """Return whether formulas agree at all sizes at which the target takes the same steps."""
        expressions = [parse_expression(text) for text in texts]

        def same(sizes: Mapping[str, int]) -> bool:
            return len({expression.evaluate(sizes) for expression in expressions}) == 1

        if all(map(same, self._other_sizes)):
            return True
        return all(map(same, self._coprime_sizes)) and not all(map(same, self._diverging))

    def _by_simplicity(self, quotients: Sequence[tuple[str, Values]]) -> Iterator[list[tuple[str, str]]]:
        """Yield formulas, each with the sum in it, the simple kinds first."""
        symbols = self._distinct(self._plan.symbols)
        terms = self._distinct([*self._plan.symbols, *self._ratios, *(text for text in self._sums if "//" in text)])
        bases = self._distinct([*self._plan.symbols, *self._sums])
        products = [f"{one}*{other}" for one, other in itertools.combinations_with_replacement(self._plan.symbols, 2)]
        more = self._distinct([*self._plan.symbols, *self._ratios, *products])
        rounded = [f"({text})" for text in self._sums if "//" in text]
        larger = self._distinct(
            "*".join(factors)
            for factors in (
                *itertools.combinations_with_replacement(self._plan.symbols, 3),
                *itertools.combinations_with_replacement(rounded, 2),
            )
        )
        kinds: tuple[Callable[[Values], Iterator[str]], ...] = (
            lambda values: itertools.chain(
                sums(values, terms, 1), sums(values, terms, 2), roundings(values, symbols, ())
            ),
            lambda values: roundings(values, bases, bases),
            lambda values: itertools.chain(sums(values, more, 1), sums(values, more, 2)),
            lambda values: itertools.chain(sums(values, larger, 1), sums(values, terms, 3)),
        )
        for kind in kinds:
            yield [
                (inner if divisor == "1" else f"{divisor}*({inner})", inner)
                for divisor, values in quotients
                for inner in kind(values)
            ]

    def _smaller_or_larger(self, seen: Values) -> Formula | None:
        """Return the formula with the smaller, or the larger, of two sizes: `2*min(L, W)`.

        The formula has the one that is chosen at the user's sizes.
        """
        if min(seen) < 1:
            return None
        found: dict[Formula, None] = {}
        for one, other in itertools.combinations(self._plan.symbols, 2):
            for choose, sign in ((min, "<="), (max, ">=")):
                numbers = tuple(map(choose, self._at(one), self._at(other)))
                if numbers in (self._at(one), self._at(other)):
                    continue
                first, second = (one, other) if numbers[-1] == self._at(one)[-1] else (other, one)
                found |= {
                    Formula(text, "verified", condition=f"{first} {sign} {second}"): None
                    for text in self._with_symbol(seen, first, numbers)
                }
        found |= dict.fromkeys(self._bounded_by_number(seen))
        return next(iter(found)) if len(found) == 1 else None

    def _bounded_by_number(self, seen: Values) -> Iterator[Formula]:
        """Yield the smaller, or the larger, of a size and a number: `min(L, 512)`, `max(D, 128)`."""
        for symbol in self._plan.symbols:
            numbers = self._at(symbol)
            bounds = [value for value, number in zip(seen, numbers, strict=True) if value != number]
            if len(set(bounds)) != 1 or not 1 < len(bounds) < len(seen) - 1:
                continue
            for choose, below, above in ((min, "<=", ">="), (max, ">=", "<=")):
                if all(choose(number, bounds[0]) == value for value, number in zip(seen, numbers, strict=True)):
                    if seen[-1] == numbers[-1]:
                        yield Formula(symbol, "verified", condition=f"{symbol} {below} {bounds[0]}")
                    else:
                        yield Formula(str(bounds[0]), "literal", condition=f"{symbol} {above} {bounds[0]}")

    def _with_symbol(self, seen: Values, symbol: str, numbers: Values) -> Iterator[str]:
        """Yield the values as a product with a symbol that has these numbers, or as a sum with it."""
        if all(value % number == 0 for value, number in zip(seen, numbers, strict=True)):
            quotient = tuple(value // number for value, number in zip(seen, numbers, strict=True))
            if len(set(quotient)) == 1:
                yield symbol if quotient[0] == 1 else f"{quotient[0]}*{symbol}"
                return
            rest = self.product(quotient[: len(self._primes)])
            if rest is not None and "//" not in rest and self._gives(rest, quotient):
                yield f"{rest}*{symbol}"
                return
        yield from sums(seen, [(symbol, numbers)], 1)

    def _quotients(self, values: Values) -> Iterator[tuple[str, Values]]:
        """Yield the values themselves, then what is left when one or two symbols that divide them are taken out."""
        yield "1", values
        symbols = [(symbol, self._at(symbol)) for symbol in self._plan.symbols]
        ones = tuple(1 for _ in values)
        for (first, numbers), (second, others) in itertools.combinations_with_replacement([("1", ones), *symbols], 2):
            product = tuple(a * b for a, b in zip(numbers, others, strict=True))
            if second != "1" and all(value % number == 0 for value, number in zip(values, product, strict=True)):
                name = second if first == "1" else f"{first}*{second}"
                yield name, tuple(value // number for value, number in zip(values, product, strict=True))

    @cached_property
    def _ratios(self) -> list[str]:
        """How often one size is part of another: `L//W` where W divides L."""
        texts = (format_monomial(unknown(name), self._plan.symbols) for name in self._plan.unknowns)
        return [text for text in texts if text is not None and "//" in text]

    def _distinct(self, names: Iterable[str]) -> list[tuple[str, Values]]:
        found: dict[Values, str] = {}
        for name in names:
            found.setdefault(self._at(name), name)
        return [(name, values) for values, name in found.items()]

    @cached_property
    def _coprime_sizes(self) -> list[dict[str, int]]:
        """Sizes none of which divides another."""
        chance = random.Random(0)
        names = self._plan.unknowns
        primes = list(filter(is_prime, range(67, 499)))
        return [self._plan.at(dict(zip(names, chance.sample(primes, len(names)), strict=True))) for _ in range(16)]

    @cached_property
    def _other_sizes(self) -> list[dict[str, int]]:
        """Sizes at which formulas that can't be told apart by the runs differ: even and odd, small and large."""
        chance = random.Random(0)
        return [self._plan.at({name: chance.randint(1, 99) for name in self._plan.unknowns}) for _ in range(16)]

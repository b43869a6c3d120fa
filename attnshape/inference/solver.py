"""From the numbers that one quantity had in several runs to the formula that gives them all."""

from __future__ import annotations

import itertools
import operator
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from attnshape.dims.expressions import parse_expression
from attnshape.inference.algebra import Monomial, factor, format_monomial, roundings, sums, unknown
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
    if actual > 1 and len(equal) == 1:
        return Formula(equal[0], "matched")
    return Formula(str(actual), "literal", unsolved=True)


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
        last: Mapping[str, int] | None = None,
    ) -> None:
        """Prepare to solve for what was measured.

        Args:
            plan: Which sizes vary, and their primes in each round.
            rounds: The number of rounds that were run.
            validation: The sizes of further runs, whose numbers follow those of the rounds.
            diverging: Sizes at which the target takes different steps, so that formulas need not agree there.
            last: The sizes of the run whose numbers come last; the user's unless given.
        """
        self._diverging = diverging
        self._plan = plan
        self._primes = [plan.primes(round_) for round_ in range(rounds)]
        actual = plan.sizes.numbers
        own = actual if last is None else last
        self._runs = [*(plan.numbers(round_) for round_ in range(rounds)), *validation, own]
        fixed = {
            symbol: n for symbol, n in actual.items() if all(numbers[symbol] == n for numbers in [*self._runs, actual])
        }
        counts = Counter(fixed.values())
        matchable = plan.sizes.matchable
        self._fixed = {size: symbol for symbol, size in fixed.items() if counts[size] == 1 and symbol in matchable}
        self._symbols = _with_written_first(plan)
        self._any_fixed = any(size > 1 for size in counts)
        self._found: dict[tuple[Values, int], Formula] = {}
        dependent = [symbol for symbol in plan.sizes.follows if symbol not in plan.symbols and symbol not in fixed]
        self._sums: dict[str, Values] = {symbol: self._at(symbol) for symbol in dependent}
        self._known_before = len(self._sums)
        self.needs_more_runs = False

    def solve(self, values: Values, actual: int) -> Formula:
        """Return the formula of a quantity from its numbers in the rounds, the validation runs and the user's run."""
        if (values, actual) not in self._found:
            self._found[values, actual] = self._solve(values, actual)
        return self._found[values, actual]

    def again(self) -> bool:
        """Forget what had no formula; return whether sums are known now that may be part of one."""
        solved = {key: formula for key, formula in self._found.items() if not formula.unsolved}
        grown = len(solved) < len(self._found) and len(self._sums) > self._known_before
        self._found, self._known_before = solved, len(self._sums)
        return grown

    def _solve(self, values: Values, actual: int) -> Formula:
        if all(value == values[0] for value in values):
            if values[0] != actual:
                return Formula(str(actual), "literal", unsolved=True)
            # among small sizes int(L**0.5) is a constant too
            self.needs_more_runs = self.needs_more_runs or actual > 1
            if actual > 1 and actual in self._fixed:
                return Formula(self._fixed[actual], "matched")
            return Formula(str(actual), "literal", doubtful=self._any_fixed and actual > 1)
        every = (*values, actual)
        product = self._product(values[: len(self._primes)])
        if product is not None and self._gives(product, every):
            return Formula(product, "verified")
        formula = None
        if min(every) > 0:
            text = self._multiple_of_known(every) or self._sum(every)
            formula = Formula(text, "verified") if text is not None else self._smaller_or_larger(every)
        return formula or Formula(str(actual), "literal", unsolved=True)

    def _product(self, values: Values) -> str | None:
        """Return the values in the rounds as a product of symbols, None if they are none."""
        if min(values) < 1:
            return None
        monomial = factor(values, self._primes)
        return format_monomial(monomial, self._symbols) if monomial is not None else None

    def _gives(self, text: str, values: Values) -> bool:
        """Whether the formula gives the values in every run, the user's last."""
        return self._at(text) == values

    def _at(self, text: str) -> Values:
        expression = parse_expression(text)
        return tuple(expression.evaluate(numbers) for numbers in self._runs)

    def _multiple_of_known(self, values: Values) -> str | None:
        """Return the values as a product of sums that were found before, and of symbols; None if they are none."""
        multiples = (self._multiple(values, text, 3) for text in self._sums)
        return next((text for text in multiples if text is not None and self._gives(text, values)), None)

    def _multiple(self, values: Values, text: str, depth: int) -> str | None:
        """Return the values as a product of a known sum and others: `D*(Lp+L)`, `H*(L+1)*(L+1)`."""
        quotient = _quotient(values, self._sums[text])
        if quotient is None:
            return None
        inner = text if text.isidentifier() else f"({text})"
        if all(value == quotient[0] for value in quotient):
            return text if quotient[0] == 1 else f"{quotient[0]}*{inner}"
        rest = self._product(quotient[: len(self._primes)])
        if (rest is None or not self._gives(rest, quotient)) and depth:
            others = (self._multiple(quotient, other, depth - 1) for other in self._sums)
            rest = next((other for other in others if other is not None), None)
            rest = f"({rest})" if rest in self._sums and not rest.isidentifier() else rest
        return f"{rest}*{inner}" if rest is not None and not rest.count("//") > rest.count("(") else None

    def _sum(self, values: Values) -> str | None:
        """Return the sum or the rounded quotient that gives the values, None if none does or several differ."""
        self.needs_more_runs = True
        kinds = self._by_simplicity(list(self._quotients(values)))
        every = ({text: inner for text, inner in formulas if self._gives(text, values)} for formulas in kinds)
        fitting = next(filter(None, every), None)
        if fitting is None or not self._agree(list(fitting)):
            return None
        text, inner = min(fitting.items(), key=lambda pair: (_ADDED.search(pair[0]) is not None, len(pair[0])))
        self._sums[inner] = self._at(inner)
        return text

    def _agree(self, texts: Sequence[str]) -> bool:
        """Return whether formulas agree at all sizes at which the target takes the same steps."""
        expressions = list(map(parse_expression, texts))

        def agree_at(places: Iterable[Mapping[str, int]]) -> bool:
            return all(len({expression.evaluate(sizes) for expression in expressions}) == 1 for sizes in places)

        return agree_at(self._other_sizes) or (agree_at(self._coprime_sizes) and not agree_at(self._diverging))

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

    def _smaller_or_larger(self, values: Values) -> Formula | None:
        """Return the formula with the smaller, or the larger, of two sizes: `2*min(L, W)`.

        The formula has the one that is chosen at the user's sizes.
        """
        formulas = set(self._bounded_by_number(values))
        for (first, numbers), (second, others) in itertools.combinations(self._sizes, 2):
            for choose, sign in ((min, "<="), (max, ">=")):
                chosen = tuple(map(choose, numbers, others))
                if chosen not in (numbers, others):
                    symbols = (first, second) if chosen[-1] == numbers[-1] else (second, first)
                    condition = f" {sign} ".join(symbols)
                    texts = self._with_symbol(values, symbols[0], chosen)
                    formulas |= {Formula(text, "verified", condition=condition) for text in texts}
        return formulas.pop() if len(formulas) == 1 else None

    def _bounded_by_number(self, values: Values) -> Iterator[Formula]:
        """Yield the smaller, or the larger, of a size and a number: `min(L, 512)`, `max(D, 128)`."""
        for symbol, numbers in self._sizes:
            bounds = [value for value, number in zip(values, numbers, strict=True) if value != number]
            if len(set(bounds)) != 1 or not 1 < len(bounds) < len(values) - 1:
                continue
            for choose, below, above in ((min, "<=", ">="), (max, ">=", "<=")):
                if values == tuple(choose(number, bounds[0]) for number in numbers):
                    if values[-1] == numbers[-1]:
                        yield Formula(symbol, "verified", condition=f"{symbol} {below} {bounds[0]}")
                    else:
                        yield Formula(str(bounds[0]), "literal", condition=f"{symbol} {above} {bounds[0]}")

    def _with_symbol(self, values: Values, symbol: str, numbers: Values) -> Iterator[str]:
        """Yield the values as a product with a symbol that has these numbers, or as a sum with it."""
        if (quotient := _quotient(values, numbers)) is not None:
            if len(set(quotient)) == 1:
                yield symbol if quotient[0] == 1 else f"{quotient[0]}*{symbol}"
                return
            rest = self._product(quotient[: len(self._primes)])
            if rest is not None and "//" not in rest and self._gives(rest, quotient):
                yield f"{rest}*{symbol}"
                return
        yield from sums(values, [(symbol, numbers)], 1)

    def _quotients(self, values: Values) -> Iterator[tuple[str, Values]]:
        """Yield the values themselves, then what is left when one or two symbols that divide them are taken out."""
        yield "1", values
        sizes = [("1", tuple(1 for _ in values)), *self._sizes]
        for (first, numbers), (second, others) in itertools.combinations_with_replacement(sizes, 2):
            quotient = _quotient(values, tuple(map(operator.mul, numbers, others)))
            if second != "1" and quotient is not None:
                yield second if first == "1" else f"{first}*{second}", quotient

    @cached_property
    def _sizes(self) -> list[tuple[str, Values]]:
        """The varying symbols with their numbers."""
        return [(symbol, self._at(symbol)) for symbol in self._plan.symbols]

    @cached_property
    def _ratios(self) -> list[str]:
        """How often one size is part of another: `L//W` where W divides L."""
        texts = (format_monomial(unknown(name), self._plan.symbols) for name in self._plan.unknowns)
        return [text for text in texts if text is not None and "//" in text]

    def _distinct(self, names: Iterable[str]) -> list[tuple[str, Values]]:
        distinct: dict[Values, str] = {}
        for name in names:
            distinct.setdefault(self._at(name), name)
        return [(name, values) for values, name in distinct.items()]

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


def _with_written_first(plan: Plan) -> dict[str, Monomial]:
    """Return the varying symbols, of equal ones first those that the user wrote for an axis of an input."""
    written = {symbol for axes in plan.sizes.inputs.values() for axis in axes for symbol in axis.symbols}
    order = list(plan.symbols.values())
    names = sorted(plan.symbols, key=lambda name: (order.index(plan.symbols[name]), name not in written))
    return {name: plan.symbols[name] for name in names}


def _quotient(values: Values, numbers: Values) -> Values | None:
    """Return the values divided by the numbers, None if some value isn't a multiple."""
    if any(number < 1 or value % number for value, number in zip(values, numbers, strict=True)):
        return None
    return tuple(map(operator.floordiv, values, numbers))

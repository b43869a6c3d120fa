"""The sizes of the small runs: primes under the constraints of the target, and further sizes that validate formulas."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from attnshape.dims.arithmetic import Node, Number, Operation, Symbol
from attnshape.dims.sizes import Sizes, is_length
from attnshape.inference.algebra import Monomial, constant, unknown
from attnshape.inference.work import WorkEstimate

LARGEST_FIXED = 4096
"""A size above this is never fixed: the run would not be small."""
_FEW = (1, 2, 3, 4)
_FACTORS = (2, 4, 8, 16, 32, 64, 3, 5, 6, 7, 12)


@dataclass(frozen=True)
class Equal:
    """A size that must be equal to another, or to the product of two others."""

    symbol: str
    other: str
    times: str | None = None

    def __str__(self) -> str:
        return f"{self.symbol} = {self.other}{f'*{self.times}' if self.times is not None else ''}"


@dataclass(frozen=True)
class Multiple:
    """A size that must be a multiple of a number, of another size, or of a number times that."""

    symbol: str
    factor: int
    other: str | None = None

    def next(self, numbers: Mapping[str, int]) -> dict[str, int]:
        """Return the numbers with the symbol's raised to the next multiple.

        >>> Multiple("L", 2, "W").next({"L": 10, "W": 3})
        {'L': 12, 'W': 3}
        """
        part = self.factor * (numbers[self.other] if self.other is not None else 1)
        return {**numbers, self.symbol: -(-numbers[self.symbol] // part) * part}

    def near_misses(self, numbers: Mapping[str, int]) -> Iterator[dict[str, int]]:
        """Yield the numbers with the symbol's a little larger than a multiple.

        Half of a number one larger than a multiple of 4 is even too, when it is rounded down: one is not enough.
        """
        within = {1, 2, 3, self.factor // 2, self.factor - 1} & set(range(1, self.factor))
        for more in sorted(within) if self.other is None else (1, 2, 3):
            yield {**numbers, self.symbol: numbers[self.symbol] + more}

    def __str__(self) -> str:
        if self.other is None:
            return f"{self.symbol} even" if self.factor == 2 else f"{self.factor} divides {self.symbol}"
        return f"{self.other if self.factor == 1 else f'{self.factor}*{self.other}'} divides {self.symbol}"


@dataclass(frozen=True)
class Fixed:
    """A size that stays as the user gave it."""

    symbol: str

    def __str__(self) -> str:
        return f"{self.symbol} fixed"


Constraint = Equal | Multiple | Fixed


def holds(constraint: Constraint, numbers: Mapping[str, int]) -> bool:
    """Return whether sizes meet a constraint.

    >>> holds(Multiple("L", 2, "W"), {"L": 12, "W": 3}), holds(Equal("D", "H"), {"D": 8, "H": 4})
    (True, False)
    """
    match constraint:
        case Equal(symbol, other, times):
            return numbers[symbol] == numbers[other] * (numbers[times] if times is not None else 1)
        case Multiple(symbol, factor, other):
            return numbers[symbol] % (factor * (numbers[other] if other is not None else 1)) == 0
    return True


def related(constraint: Constraint) -> tuple[str, ...]:
    """Return the other sizes that a constraint relates its own to."""
    match constraint:
        case Equal(other=other, times=None) | Multiple(other=str(other)):
            return (other,)
        case Equal(other=other, times=str(times)):
            return other, times
    return ()


def _made_of(sizes: Sizes, constraints: Sequence[Constraint], symbol: str) -> set[str]:
    """Return the independent sizes that a size follows from, by its own expression or by a constraint."""
    parts = {symbol}
    for _ in sizes.records:
        follows = (name for part in parts & sizes.follows.keys() for name in sizes.follows[part].symbols)
        bound = (name for c in constraints if c.symbol in parts for name in related(c))
        parts |= {*follows, *bound}
    return parts


def candidates(sizes: Sizes, constraints: Sequence[Constraint]) -> Iterator[Constraint]:
    """Yield the constraints that the user's own sizes meet, the simplest first."""
    numbers = sizes.numbers
    taken = {constraint.symbol for constraint in constraints}
    free = [symbol for symbol in sizes.independent if symbol not in taken]
    for symbol in free:
        if numbers[symbol] == 1:
            yield Fixed(symbol)
    for symbol in free:
        if numbers[symbol] % 2 == 0:
            yield Multiple(symbol, 2)
    roots = [c.other for c in constraints if isinstance(c, Equal)]
    for place, symbol in enumerate(free):
        bound = [c.symbol for c in constraints if isinstance(c, Multiple)]
        for other in [*free[:place], *bound]:
            tied = symbol in roots or symbol in _made_of(sizes, constraints, other)
            if numbers[symbol] == numbers[other] and not tied:
                yield Equal(symbol, other)
    for symbol in free:
        for other, factor in itertools.product([name for name in sizes.records if name not in sizes.labels], _FEW):
            part = factor * numbers[other]
            whole = numbers[symbol] % part == 0 and numbers[symbol] > part > factor
            if whole and symbol not in _made_of(sizes, constraints, other):
                yield Multiple(symbol, factor, other)
    for symbol in free:
        for factor in _FACTORS[1:]:
            if numbers[symbol] % factor == 0:
                yield Multiple(symbol, factor)
    for symbol in free:
        for other, times in itertools.combinations_with_replacement(sizes.independent, 2):
            parts = _made_of(sizes, constraints, other) | _made_of(sizes, constraints, times)
            is_product = numbers[symbol] == numbers[other] * numbers[times] > max(numbers[other], numbers[times])
            if is_product and symbol not in parts:
                yield Equal(symbol, other, times)
    for symbol in free:
        if 1 < numbers[symbol] <= LARGEST_FIXED:
            yield Fixed(symbol)


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
"""Which prime the unknown at a place takes in each round: small ones, not evenly spaced, since sums of sizes coincide
there."""

_FIRST_ROUNDS = 3
_FIRST_CLOSE = (3, 2)
"""The smallest primes of the first round where those from 5 on would take too much work."""


@dataclass(frozen=True)
class Plan:
    """How the sizes vary from round to round."""

    sizes: Sizes
    constraints: tuple[Constraint, ...] = ()
    ordered: bool = False
    """Whether products and sums of sizes keep their place in the order too, which makes the runs larger."""
    powers: Mapping[str, int] = field(default_factory=dict)
    """The power in which each unknown is part of the largest tensor, as far as that is known."""
    other_powers: tuple[Mapping[str, int], ...] = ()
    """The powers in the other tensors, one of which may be the largest where the sizes are in a different order."""
    work: WorkEstimate | None = None
    """How the work of a run grows, as far as that is known."""
    most_work: float = math.inf
    """The work that one run should take at most."""
    counts: frozenset[str] = frozenset()
    """The symbols that only count something, such as layers: they are no part of any axis, and stay small."""
    fewest: Mapping[str, int] = field(default_factory=dict)
    """Of which of them it is known beforehand how few show all there is."""

    @property
    def fixed(self) -> tuple[str, ...]:
        """The symbols that keep the user's number."""
        return tuple(c.symbol for c in self.constraints if isinstance(c, Fixed))

    def under(self, constraint: Constraint) -> Plan:
        """Return the plan with one constraint more."""
        return replace(self, constraints=(*self.constraints, constraint))

    @cached_property
    def symbols(self) -> dict[str, Monomial]:
        """Each varying symbol as a product of unknowns, in canonical order; sums of symbols are left out."""
        products = {symbol: self._independent(symbol) for symbol in self.sizes.independent}
        for symbol, expression in self.sizes.follows.items():
            if (product := _as_product(expression.tree, products)) is not None:
                products[symbol] = product
        varying = {symbol: product for symbol, product in products.items() if not product.is_constant}
        return {symbol: varying[symbol] for symbol in self.sizes.records if symbol in varying}

    def _independent(self, symbol: str) -> Monomial:
        match next((c for c in self.constraints if c.symbol == symbol), None):
            case Equal(other=other, times=times):
                return self._independent(other) * (self._independent(times) if times is not None else constant(1))
            case Multiple(factor=factor, other=None):
                return constant(factor) * unknown(f"{symbol}/{factor}")
            case Multiple(factor=factor, other=str(other)):
                return constant(factor) * self._of(other) * unknown(f"{symbol}/{other}")
            case Fixed():
                return constant(self.sizes.records[symbol].size)
        return unknown(symbol)

    def _of(self, symbol: str) -> Monomial:
        """Return a symbol that another is a multiple of; one that isn't a product counts as 1."""
        if symbol in self.sizes.independent:
            return self._independent(symbol)
        expression = self.sizes.follows[symbol]
        return _as_product(expression.tree, {name: self._of(name) for name in expression.symbols}) or constant(1)

    @cached_property
    def unknowns(self) -> tuple[str, ...]:
        """The unknowns that take primes, in the order of the user's sizes where the run then is small enough.

        Otherwise those come first that make it large: the factors of sizes that are products, and high powers.
        """
        numbers = self.sizes.numbers
        independent = [dim for dim in self.sizes.independent if dim in self.symbols]
        independent.sort(key=lambda dim: numbers[dim])
        names = tuple(dict.fromkeys(name for dim in independent for name, _ in sorted(self.symbols[dim].powers)))
        if not names:
            return ()
        taken = dict(zip(names, filter(is_prime, itertools.count(_FIRST)), strict=False))
        if self.ordered or (self._is_small(taken) and self._cheapest_are_affordable(names)):
            return names
        with_name = {name: [m.degree for m in self.symbols.values() if name in dict(m.powers)] for name in names}
        widest = max(self.symbols.values(), key=lambda symbol: _value(symbol, taken))
        within = dict(widest.powers) if _value(widest, taken) ** 2 > self._largest_tensor(taken) else {}
        order = {name: (-within.get(name, 0), -self.power(name), -max(with_name[name])) for name in names}
        names = tuple(sorted(names, key=order.__getitem__))
        return names if self._cheapest_are_affordable(names) else self._from_the_costliest(names)

    @cached_property
    def of_axes(self) -> tuple[str, ...]:
        """The unknowns that axes may depend on, in order."""
        return tuple(name for name in self.unknowns if not self.is_count(name))

    @property
    def of_counts(self) -> tuple[str, ...]:
        """The other unknowns, which only count something."""
        return tuple(name for name in self.unknowns if self.is_count(name))

    def is_count(self, name: str) -> bool:
        """Return whether an unknown only counts something."""
        return name.partition("/")[0] in self.counts

    @property
    def whole_counts(self) -> dict[str, int]:
        """Numbers of the unknowns that only count something that show all there is: the user's, or fewer if known."""
        owners = {name: self.owner(name) for name in self.of_counts}
        least = self.at(dict.fromkeys(self.unknowns, 1))
        own = {name: self.sizes.numbers[owner] // least[owner] for name, owner in owners.items()}
        return {name: min(number, self.fewest.get(owners[name], number)) for name, number in own.items()}

    @property
    def fewest_counts(self) -> dict[str, int]:
        """How few of each unknown that only counts something show all there is: 2 where that isn't known."""
        return {name: self.fewest.get(name.partition("/")[0], 2) for name in self.of_counts}

    def with_small_counts(self, chosen: Mapping[str, int]) -> dict[str, int]:
        """Return the chosen numbers with one of three for each unknown that only counts, not always the same."""
        others = sum(chosen[name] for name in self.of_axes)
        few = {name: fewest + (others + place) % 3 for place, (name, fewest) in enumerate(self.fewest_counts.items())}
        return {**chosen, **few}

    def _cheapest_are_affordable(self, names: Sequence[str]) -> bool:
        """Return whether small primes in this order make the first rounds cheap enough."""
        return all(self.is_affordable(_close_primes(names, round_, _FIRST_CLOSE[0])) for round_ in range(_FIRST_ROUNDS))

    @property
    def cheapest_order(self) -> tuple[str, ...]:
        """The unknowns in the order in which rising numbers take the least work."""
        return self._from_the_costliest(self.unknowns)

    def _from_the_costliest(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the unknowns sorted by how much the work grows with each."""
        chosen = dict(zip(names, filter(is_prime, itertools.count(_FIRST)), strict=False))
        return tuple(sorted(names, key=lambda name: -self.estimated_work({**chosen, name: 2 * chosen[name]})))

    def power(self, name: str) -> int:
        """Return the power in which an unknown is part of the largest tensor, 1 if that isn't known."""
        if self.is_count(name):
            return 0
        if not self.powers:
            return 1
        if any("/" in known for known in self.powers):
            return self.powers.get(name, 1)
        # known of the sizes themselves: a factor of several is part of each
        return sum(
            self.powers.get(dim, 0) * dict(symbol.powers).get(name, 0)
            for dim, symbol in self.symbols.items()
            if dim in self.sizes.independent
        )

    @property
    def is_large(self) -> bool:
        """Whether the first rounds make tensors too large to run often."""
        return any(self.elements(self.primes(round_)) > TOO_MANY_ELEMENTS for round_ in range(3))

    def elements(self, chosen: Mapping[str, int]) -> int:
        """Return how many elements the largest tensor may have where the unknowns have these numbers.

        A weight may be as wide as it is long, and is not a step's result.
        """
        return max(self._largest_tensor(chosen), max(self.at(chosen).values(), default=0) ** 2)

    def is_affordable(self, chosen: Mapping[str, int]) -> bool:
        """Return whether a run should take no more than its part of the work, as far as that is known."""
        return self.estimated_work(chosen) <= self.most_work

    def estimated_work(self, chosen: Mapping[str, int]) -> float:
        """Return the work of a run where the unknowns have these numbers, 0 if that isn't known."""
        return self.work.at(self.at(chosen)) if self.work is not None else 0.0

    def elements_in_any_order(self, chosen: Mapping[str, int]) -> int:
        """Return the same where the numbers of the unknowns are in a different order from their primes."""
        elements: list[int] = [
            math.prod(chosen[n] ** power for n, power in powers.items()) for powers in self.other_powers
        ]
        return max(self.elements(chosen), *elements, 0)

    def _largest_tensor(self, chosen: Mapping[str, int]) -> int:
        return math.prod(number ** self.power(name) for name, number in chosen.items()) if self.powers else 0

    def _is_small(self, chosen: Mapping[str, int]) -> bool:
        widest = max((_value(symbol, chosen) for symbol in self.symbols.values()), default=0)
        return widest <= _WIDEST and self.elements(chosen) <= _MOST_ELEMENTS

    def primes(self, round_: int) -> dict[str, int]:
        """Return each unknown's prime in a round: another for each, in the order of the user's sizes."""
        if self._close_from is not None:
            return self._close_primes(round_, self._close_from)
        return self._spread_primes(round_)

    def _close_primes(self, round_: int, first: int) -> dict[str, int]:
        return _close_primes(self.of_axes, round_, first) | self._counts_in(round_)

    def _counts_in(self, round_: int) -> dict[str, int]:
        """Return the numbers in a round of what only counts: the smallest primes."""
        return _close_primes(self.of_counts, round_, 2)

    @cached_property
    def _close_from(self) -> int | None:
        """The first of primes close to each other, where only these make the first rounds cheap enough."""
        if self.work is None or all(self.is_affordable(self._spread_primes(round_)) for round_ in range(_FIRST_ROUNDS)):
            return None
        rounds = {
            first: [self._close_primes(round_, first) for round_ in range(_FIRST_ROUNDS)] for first in _FIRST_CLOSE
        }
        affordable = (first for first, chosen in rounds.items() if all(map(self.is_affordable, chosen)))
        return next(affordable, _FIRST_CLOSE[-1])

    def _spread_primes(self, round_: int) -> dict[str, int]:
        chosen: dict[str, int] = {}
        last = 0
        for position, name in enumerate(self.of_axes):
            last = max(last, self.largest_below(name, chosen))
            last = max(_prime_after(last), _prime(_PLACES[round_ % len(_PLACES)](position)))
            chosen[name] = last
        if self.elements(chosen | self._counts_in(round_)) > TOO_MANY_ELEMENTS:
            # one prime lower each; with 3 among them only if it must be
            chosen = {name: _prime_before(prime) for name, prime in chosen.items()}
        return chosen | self._counts_in(round_)

    def largest_below(self, name: str, chosen: Mapping[str, int]) -> int:
        """Return what an unknown's number must be above for products and sums to keep their place in the order."""
        if not self.ordered:
            return 0
        numbers = self.sizes.numbers
        size = numbers[self.owner(name)]
        below = [
            _value(symbol, chosen)
            for dim, symbol in self.symbols.items()
            if numbers[dim] < size and all(n in chosen for n, _ in symbol.powers)
        ]
        if size > sum(numbers[self.owner(other)] for other in chosen):
            below.append(sum(chosen.values()))
        return max(below, default=0)

    def numbers(self, round_: int) -> dict[str, int]:
        """Return every symbol's number in a round."""
        return self.at(self.primes(round_))

    def at(self, chosen: Mapping[str, int]) -> dict[str, int]:
        """Return every symbol's number where the unknowns have the chosen ones."""
        independent = {
            symbol: _value(self.symbols[symbol], chosen) if symbol in self.symbols else self.sizes.records[symbol].size
            for symbol in self.sizes.independent
        }
        return self.sizes.at(independent)

    def values_with(self, name: str, chosen: Mapping[str, int]) -> dict[str, int]:
        """Return the number of each symbol that an unknown is part of and whose other unknowns are chosen too."""
        powers = {dim: dict(symbol.powers) for dim, symbol in self.symbols.items()}
        known = [dim for dim, names in powers.items() if name in names and names.keys() <= chosen.keys()]
        return {dim: _value(self.symbols[dim], chosen) for dim in known}

    def owner(self, name: str) -> str:
        """Return the independent symbol that an unknown stands in."""
        owners = (symbol for symbol in self.sizes.independent if name == symbol or name.startswith(f"{symbol}/"))
        return next(symbol for symbol in owners if symbol in self.symbols and name in dict(self.symbols[symbol].powers))


def _as_product(tree: Node, found: Mapping[str, Monomial]) -> Monomial | None:
    """Return an expression as a monomial, None if it is a sum or a quotient that isn't one."""
    match tree:
        case Symbol(name):
            return found.get(name)
        case Number(int(value)) if value > 0:
            return constant(value)
        case Operation("*" | "//" as operator, left, right):
            first, second = _as_product(left, found), _as_product(right, found)
            if first is None or second is None:
                return None
            if operator == "*":
                return first * second
            quotient = first / second
            whole = quotient.coefficient.denominator == 1 and all(power > 0 for _, power in quotient.powers)
            return quotient if whole else None
        case Operation("**", base, Number(int(exponent))) if exponent > 0:
            factor = _as_product(base, found)
            return math.prod([factor] * exponent, start=constant(1)) if factor is not None else None
    return None


def _value(monomial: Monomial, chosen: Mapping[str, int]) -> int:
    result = monomial.coefficient
    for name, power in monomial.powers:
        result *= chosen[name] ** power
    return int(result)


def is_prime(number: int) -> bool:
    """Return whether a number from 2 on is a prime."""
    return all(number % divisor for divisor in range(2, math.isqrt(number) + 1))


def _close_primes(names: Sequence[str], round_: int, first: int) -> dict[str, int]:
    """Return a prime for each name: without gaps, the next one for each in the next round."""
    primes = itertools.islice(filter(is_prime, itertools.count(first)), round_, None)
    return dict(zip(names, primes, strict=False))


def _prime(place: int) -> int:
    return next(itertools.islice(filter(is_prime, itertools.count(_FIRST)), place, None))


def _prime_after(number: int) -> int:
    return next(filter(is_prime, itertools.count(max(number + 1, _FIRST))))


def _prime_before(number: int) -> int:
    """Return the largest prime below a prime from 5 on."""
    return next(filter(is_prime, itertools.count(number - 1, -1)))


_COMPOSITE = (12, 16, 15, 18, 20, 24, 14, 21, 27, 25, 22, 26)
_SMALL_COMPOSITE = (4, 6, 8, 9, 10, 12, 14, 15, 16, 18, 20, 21)
_FALLING = (22, 21, 20, 18, 16, 15, 14, 12, 10, 9)
_LARGE = (131, 71, 41, 23, 17, 13)
"""Primes: what pads to a multiple would take another branch at a multiple."""
_OF_UNKNOWN = 3
"""How many of these, the smallest, are tried where it isn't known what they make large."""
_FIRST_HELD_OUT = (7, 25, 3)
"""The least of the sizes held out, in the order in which they are tried: parts such as `x[10:]` of less are empty."""
_WIDEST_VALIDATED, _MOST_VALIDATED = 400, 10**6
_MIXTURES = 4


def reversed_sizes(plan: Plan) -> Iterator[dict[str, int]]:
    """Yield a number for each unknown, the smallest for the one whose prime is the largest.

    At primes in the order of the user's sizes `max(Lq, Lk)` is `Lk`; here it isn't.
    """
    count = len(plan.unknowns)
    falling = _FALLING[-count:] if count <= len(_FALLING) else range(8 + count, 8, -1)
    choices = [dict(zip(plan.unknowns, numbers, strict=False)) for numbers in (falling, range(count + 2, 2, -1))]
    yield from _affordable(plan, choices)


def large_sizes(plan: Plan) -> Iterator[dict[str, int]]:
    """Yield numbers where the lengths are much larger than the rest, then the others: `min(L, 12)`, `int(L**0.5)`."""
    lengths = [name for name in plan.of_axes if is_length(name)]
    for names in (lengths, [name for name in plan.of_axes if name not in lengths]):
        if names:
            yield from _enlarged(plan, names)


def mixed_sizes(plan: Plan) -> Iterator[dict[str, int]]:
    """Yield numbers with all sorts of remainders, then one unknown after the other much larger than the rest.

    A prime never leaves the remainder 0, so `L//3+1` is `-(-L//3)` there.
    """
    for shift in range(_MIXTURES):
        mixtures = (
            {name: sizes[(place + 3 * shift) % len(sizes)] for place, name in enumerate(plan.unknowns)}
            for sizes in (_COMPOSITE, _SMALL_COMPOSITE)
        )
        yield from _affordable(plan, mixtures)
    for name in plan.of_axes:
        yield from _enlarged(plan, (name,))
    # rounded up and rounded down with one added differ only if one length divides another
    small = {name: 6 + place for place, name in enumerate(plan.unknowns)}
    for multiple, divisor in itertools.permutations([name for name in plan.of_axes if is_length(name)], 2):
        yield plan.with_small_counts(small | {multiple: 3 * small[divisor]})


def held_out_sizes(plan: Plan, used: Iterable[Mapping[str, int]]) -> Iterator[dict[str, int]]:
    """Yield sizes under a plan's constraints at which no varying symbol has a size that was used for it.

    No two symbols have one size, so that a wrong axis shows. The first sets keep the order of the user's sizes, and
    with it comparisons such as `Lq <= Lk`.
    """
    numbers = plan.sizes.numbers
    fixed = {size for symbol, size in numbers.items() if symbol not in plan.symbols}
    used = list(used)
    taken = {symbol: fixed | {sizes[symbol] for sizes in used} for symbol in plan.symbols}
    rising = sorted(plan.unknowns, key=lambda name: numbers[plan.owner(name)])
    orders = (plan.unknowns,) if plan.ordered else (rising, plan.unknowns, plan.unknowns[::-1], plan.cheapest_order)
    choices = [_unused(plan, order, first, taken) for order, first in itertools.product(orders, _FIRST_HELD_OUT)]
    elements = [(plan.elements_in_any_order(chosen), chosen) for chosen in choices if chosen]
    for count, chosen in sorted(
        elements, key=lambda pair: (not plan.is_affordable(pair[1]), pair[0] > _MOST_VALIDATED)
    ):
        if count <= TOO_MANY_ELEMENTS:
            yield plan.at(chosen)


def _unused(plan: Plan, order: Sequence[str], first: int, taken: Mapping[str, set[int]]) -> dict[str, int]:
    """Return rising numbers for the unknowns in this order; none if one can't be found."""
    chosen: dict[str, int] = {}
    last = first - 1
    sizes: dict[Monomial, int] = {}
    counts = {
        name: next(number for number in itertools.count(fewest) if number not in taken[plan.owner(name)])
        for name, fewest in plan.fewest_counts.items()
    }
    for name in order:
        if name in counts:
            continue
        last = max(last, plan.largest_below(name, chosen))
        for number in range(last + 1, last + 1 + _WIDEST_VALIDATED):
            made = plan.values_with(name, {**chosen, name: number})
            distinct = {**sizes, **{plan.symbols[symbol]: size for symbol, size in made.items()}}
            if len(set(distinct.values())) == len(distinct) and not any(n in taken[s] for s, n in made.items()):
                break
        else:
            return {}
        chosen[name], sizes, last = number, distinct, number
    return chosen | counts


def _enlarged(plan: Plan, names: Sequence[str]) -> Iterator[dict[str, int]]:
    """Yield numbers where these are large; less so where they are factors of other sizes, to stay cheap to run."""
    small = {name: 6 + place for place, name in enumerate(plan.unknowns)}
    # where the very first call fails, nothing tells how large tensors would be
    choices = (
        small | {name: size + place for place, name in enumerate(names)}
        for size in (_LARGE if plan.powers else _LARGE[-_OF_UNKNOWN:])
    )
    yield from _affordable(plan, (chosen for chosen in choices if max(plan.at(chosen).values()) <= _WIDEST_VALIDATED))


def _affordable(plan: Plan, choices: Iterable[dict[str, int]]) -> Iterator[dict[str, int]]:
    """Yield the first choice whose tensors are small and whose work isn't too much, else the last of small tensors."""
    small = [
        plan.with_small_counts(chosen) for chosen in choices if plan.elements_in_any_order(chosen) <= _MOST_VALIDATED
    ]
    yield from [chosen for chosen in small if plan.is_affordable(chosen)][:1] or small[-1:]

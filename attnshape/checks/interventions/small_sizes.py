"""Chooses the sizes at which a target is checked: small, distinct, and such that each identifies its axis."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from attnshape.dims.sizes import Sizes, is_length
from attnshape.dims.symbols import SYMBOLS_BY_NAME
from attnshape.inference.plan import Constraint, Multiple, Plan
from attnshape.inference.work import WorkEstimate

Cost = Callable[[Mapping[str, int]], float]
"""Estimates the cost of a run where the unknowns have these numbers."""
Idle = Callable[[Mapping[str, int]], int]
"""Counts the parts of a claim that say nothing at these sizes."""
_LARGEST_AMBIGUOUS = 3
"""Sizes up to this divide too many numbers to identify an axis."""
PAST = "Lp"
LENGTHS = ("L", "Lq", "Lk", PAST)


UNNAMED_LENGTH = "tokens"
"""The symbol of a number of tokens that has none of the user's, often a product or a sum of other sizes."""
_PARTS = (1, 2, 3, 4)
"""How many projections may be fused, each as wide as the model."""


def involves(size: int, symbol: str, numbers: Mapping[str, int]) -> bool:
    """Return whether an axis of this size is likely a symbol or a product with it.

    A product of other sizes is as likely without the symbol, unless the symbol's size is a prime.

    >>> involves(35, "B", {"B": 5, "H": 7}), involves(14, "B", {"B": 5, "H": 7})
    (True, False)
    >>> involves(70, "L", {"L": 10, "H": 14, "Dk": 5}), involves(60, "L", {"L": 10, "H": 14, "Dk": 5})
    (False, True)
    >>> involves(165, "tokens", {"H": 5, "Dk": 11, "tokens": 15})  # 3*H*Dk
    False
    """
    number = numbers.get(symbol, 0)
    if number <= _LARGEST_AMBIGUOUS or size <= 0 or size % number:
        return False
    is_prime = symbol != UNNAMED_LENGTH and all(number % factor for factor in range(2, math.isqrt(number) + 1))
    return is_prime or size == number or not _is_product_of_others(size, symbol, numbers)


def _is_product_of_others(size: int, symbol: str, numbers: Mapping[str, int]) -> bool:
    others = sorted({number for name, number in numbers.items() if name != symbol})
    products = (math.prod(some) for count in (1, 2, 3) for some in itertools.combinations(others, count))
    return any(size == parts * one for one in products for parts in _PARTS)


def symbol_or_number(size: int, numbers: Mapping[str, int]) -> str:
    """Return a size's symbol if it has one, else the number.

    >>> symbol_or_number(7, {"B": 5, "H": 7})
    'H'
    """
    known = sorted(numbers, key=lambda symbol: list(SYMBOLS_BY_NAME).index(symbol) if symbol in SYMBOLS_BY_NAME else -1)
    return next((symbol for symbol in known if numbers[symbol] == size and size > 1), str(size))


def length_text(size: int, numbers: Mapping[str, int]) -> str:
    """Return the symbol of a length, the sum of two lengths that it certainly is, such as cached and new tokens, or it.

    >>> length_text(12, {"B": 2, "Lp": 5, "L": 7, "H": 3})
    'Lp+L'
    """
    text = symbol_or_number(size, numbers)
    pairs = itertools.combinations((symbol for symbol in numbers if is_length(symbol)), 2)
    sums = [f"{one}+{other}" for one, other in pairs if numbers[one] + numbers[other] == size]
    return sums[0] if text == str(size) and len(sums) == 1 else text


_PRIMES = (5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61)
"""2 and 3 divide too many numbers."""
_OF_OWN_SYMBOLS = ((3,), (2, 3))
"""For the user's own symbols, such as the rows of a grid, where runs take much work; both where that isn't enough."""
_GROUPS = (4, 6)
_MAX_PERMUTED = 6
"""Up to this many unknowns, every assignment of the primes is tried; with more, primes are swapped while that helps."""
_MOST_COMPARED = 500
"""How many sets of sizes are tried for one at which every part of a claim matters."""
_HEADS = ("H", "Hkv", "G")
_HEAD_WIDTHS = ("Dk", "Dv")
"""Times the number of heads, either is a width of the model or of its values."""


_ELEMENT_BYTES = 8
MAX_RESULT_BYTES = 150 * 2**20
"""If the results of one run take more bytes, other sizes are tried first."""
_MOST_BYTES = 300 * 2**20
"""What the results of a run may take. A check keeps those of several runs at a time."""
_MOST_WORK = 10**9
"""The work of a run, of which a check makes hundreds, above which sizes are chosen by their work alone."""


def small_sizes(plan: Plan, work: WorkEstimate | None = None, idle: Idle = lambda _: 0) -> list[dict[str, int]]:
    """Return two sets of sizes under a plan's constraints, then those of the plan's own runs.

    The primes are assigned so that the largest tensor is as small as possible, or so that `work`, which estimates the
    work of a run, is the least, where it is much. Lengths keep the user's order, and the user's own symbols stay
    below the lengths that are larger. What only counts something, such as layers, keeps the user's number, since every
    layer may differ; where runs then take much work, it is the least that shows all there is. `idle` says how many
    parts of a claim would say nothing at a set of sizes; those with the fewest are chosen.
    """
    unknowns = plan.of_axes
    if len(unknowns) >= len(_PRIMES) or not unknowns:
        return [plan.numbers(0), plan.numbers(1)]
    extra = max(1, _MAX_PERMUTED + 1 - len(unknowns))
    by_size = _cost_of(plan)
    by_work = _cost_of_work(plan, work) if work is not None else by_size
    chosen = _two_sets(
        plan, _PRIMES, extra, by_work if len(unknowns) > _MAX_PERMUTED else by_size, plan.whole_counts, idle
    )
    for own in _OF_OWN_SYMBOLS if work is not None else ():
        if any(by_work(one) > _MOST_WORK or _result_bytes(work, plan.at(one)) > MAX_RESULT_BYTES for one in chosen):
            chosen = _two_sets(plan, (*own, *_PRIMES), extra, by_work, plan.fewest_counts, idle)
    return [*map(plan.at, chosen), plan.numbers(0), plan.numbers(1)]


def _two_sets(
    plan: Plan, primes: Sequence[int], extra: int, cost: Cost, counts: Mapping[str, int], idle: Idle
) -> tuple[dict[str, int], dict[str, int]]:
    count = len(plan.of_axes)
    first = _cheapest(plan, primes, count + min(extra, 3), _GROUPS[0], cost, counts, idle)
    return first, _cheapest(plan, primes, count + min(extra + 1, 4), _GROUPS[1], cost, counts, idle, avoid=first)


def even_head_width(sizes: Sizes) -> tuple[Constraint, ...]:
    """Return the constraint that the head width is even, as where features rotate in pairs, if the user's own is."""
    numbers = sizes.numbers
    if "Dk" in sizes.independent:
        return (Multiple("Dk", 2),) if numbers["Dk"] % 2 == 0 else ()
    # a number of heads that only the target's inputs have, such as G*Hkv, is no symbol that can vary
    has_heads = "H" in sizes.independent or "H" in sizes.follows
    derived = "D" in sizes.independent and has_heads and numbers["D"] % (2 * numbers["H"]) == 0
    return (Multiple("D", 2, "H"),) if derived else ()


def cheap_first(choices: Sequence[Mapping[str, int]], work: WorkEstimate | None) -> list[Mapping[str, int]]:
    """Return the different sizes in their order, those last at which runs take much work, or heads have few features.

    Half of three features is one, which broadcasts: code that rotates halves runs, and does something else. Sizes at
    which the results of a run take too many bytes are left out, unless all do: then one is left.

    >>> cheap_first([{"D": 30, "H": 10}, {"D": 272, "H": 8}, {"Dk": 3}, {"Dk": 5}], None)
    [{'D': 272, 'H': 8}, {'Dk': 5}, {'D': 30, 'H': 10}, {'Dk': 3}]
    """
    different = [numbers for place, numbers in enumerate(choices) if numbers not in choices[:place]]
    different.sort(key=_has_few_features)
    if work is None:
        return different
    fitting = [numbers for numbers in different if _result_bytes(work, numbers) <= _MOST_BYTES]
    fitting = fitting or [min(different, key=work.elements_at)]
    return sorted(fitting, key=lambda numbers: work.at(numbers) > _MOST_WORK)


def _result_bytes(work: WorkEstimate | None, numbers: Mapping[str, int]) -> float:
    return work.elements_at(numbers) * _ELEMENT_BYTES if work is not None else 0


def _has_few_features(numbers: Mapping[str, int]) -> bool:
    """Return whether a head has so few features that their number doesn't identify an axis, nor half of it."""
    width = numbers.get("Dk", numbers.get("D", 0) // max(numbers.get("H", 1), 1))
    return 0 < width <= _LARGEST_AMBIGUOUS


def near_sizes(sizes: Sizes) -> list[dict[str, int]]:
    """Return the user's sizes with another batch and other lengths, twice: primes that identify their axes.

    They serve a target whose widths can't be small. The width of one head is another one first, of the same parity:
    that of an example often divides the rows of its map, which then hold whole vectors however they are laid out.
    """
    free = [symbol for symbol in sizes.independent if symbol == "B" or symbol in LENGTHS]
    free.sort(key=lambda symbol: sizes.numbers[symbol])
    primes = [prime for prime in _PRIMES if prime not in sizes.numbers.values()]
    if not free or len(primes) < 2 * len(free):
        return []
    batches = [dict(zip(free, primes[start:], strict=False)) for start in (0, len(free))]
    users = {symbol: sizes.numbers[symbol] for symbol in sizes.independent}
    taken = {number for new in batches for number in new.values()}
    width = next((prime for prime in primes if prime not in taken), 0)
    widths = [{"Dk": width * (1 if users["Dk"] % 2 else 2)}] if width and "Dk" in users else []
    return [sizes.at(users | other | new) for other in (*widths, {}) for new in batches]


def other_lengths(plan: Plan, numbers: Mapping[str, int], known: Sequence[Constraint] = ()) -> dict[str, int] | None:
    """Return sizes that differ only in the lengths; None if no length is independent.

    The constraints that are `known` bind no length, and the numbers meet them.
    """
    plan = replace(plan, constraints=tuple(constraint for constraint in plan.constraints if constraint not in known))
    lengths = [name for name in plan.unknowns if name in LENGTHS]
    if not lengths or any(name not in numbers for name in plan.unknowns):
        return None
    return plan.at({name: numbers[name] + 2 * (name in lengths) for name in plan.unknowns})


def _cheapest(
    plan: Plan,
    primes: Sequence[int],
    few: int,
    group: int,
    cost: Cost,
    counts: Mapping[str, int],
    idle: Idle,
    avoid: Mapping[str, int] | None = None,
) -> dict[str, int]:
    """Return the assignment of primes to unknowns with the cheapest run; no unknown keeps its prime in `avoid`.

    Where all assignments are tried, the first `few` of the primes are used. `group` is the number of query heads per
    key head; a prime would make the heads, and so the widths, large. `counts` has the numbers of the unknowns that only
    count something.
    """
    groups = dict.fromkeys((name for name in plan.unknowns if name in ("G", "H/Hkv")), group)
    unknowns = [name for name in plan.of_axes if name not in groups]
    given = {**groups, **counts}
    lengths = [name for name in unknowns if _symbol_in(name) in (*LENGTHS, "W")]
    lengths.sort(key=lambda name: plan.sizes.numbers[_symbol_in(name)])
    ordered = [*((a, b, 1) for a, b in itertools.pairwise(lengths)), *_own_below_lengths(plan, unknowns)]
    fixed_numbers = {plan.sizes.numbers[symbol] for symbol in plan.fixed} | plan.sizes.literals

    def chosen_by(order: Sequence[int]) -> dict[str, int]:
        return dict(zip(unknowns, order, strict=True)) | given

    is_ambiguous = min(primes) <= _LARGEST_AMBIGUOUS
    known = [name for name in unknowns if is_ambiguous and _symbol_in(name) in SYMBOLS_BY_NAME]

    def misfits(chosen: Mapping[str, int]) -> Iterator[bool]:
        """Yield for each rule and number whether it doesn't fit."""
        yield from (times * chosen[a] >= chosen[b] for a, b, times in ordered)
        if avoid is not None:
            yield from (avoid[name] == chosen[name] for name in unknowns)
        yield from (chosen[name] <= _LARGEST_AMBIGUOUS for name in known)
        if fixed_numbers:
            yield from (chosen[name] in fixed_numbers for name in unknowns)

    if len(unknowns) > _MAX_PERMUTED:

        def badness(order: Sequence[int]) -> tuple[int, int, float]:
            chosen = chosen_by(order)
            numbers = plan.at(chosen)
            return sum(misfits(chosen)) + _has_coincidence(plan, numbers), idle(numbers), cost(chosen)

        return chosen_by(_swapped(primes, len(unknowns), badness))
    every = map(chosen_by, itertools.permutations(primes[:few], len(unknowns)))
    fitting = sorted((chosen for chosen in every if not any(misfits(chosen))), key=cost)
    distinct = (chosen for chosen in fitting if not _has_coincidence(plan, plan.at(chosen)))
    best = _least_idle(distinct, lambda chosen: idle(plan.at(chosen)))
    return best or chosen_by((_PRIMES[1:] if avoid is not None else _PRIMES)[: len(unknowns)])


def _least_idle(choices: Iterable[dict[str, int]], idle: Idle) -> dict[str, int] | None:
    """Return the first of the choices at which the fewest parts of a claim say nothing; None if there is none."""
    best, least = None, math.inf
    for chosen in itertools.islice(choices, _MOST_COMPARED):
        if (number := idle(chosen)) < least:
            best, least = chosen, number
        if not least:
            break
    return best


def _swapped(
    primes: Sequence[int], count: int, badness: Callable[[Sequence[int]], tuple[int, int, float]]
) -> Sequence[int]:
    """Return so many of the primes in an order that no swap of two makes better."""
    order = list(primes)
    least = badness(order[:count])
    improved = True
    while improved:
        improved = False
        for a, b in itertools.product(range(count), range(len(order))):
            order[a], order[b] = order[b], order[a]
            if (now := badness(order[:count])) < least:
                least, improved = now, True
            else:
                order[a], order[b] = order[b], order[a]
    return order[:count]


def _own_below_lengths(plan: Plan, unknowns: Sequence[str]) -> list[tuple[str, str, int]]:
    """Return the pairs of a symbol of the user's own and a length that is larger than it, or than twice as much.

    What is chosen of the tokens, as the largest of their scores, is chosen only where there are more tokens. And there
    must be more than two chunks for a chunk to have one before it that isn't adjacent.
    """
    numbers = plan.sizes.numbers
    own = [name for name in unknowns if _symbol_in(name) not in SYMBOLS_BY_NAME]
    lengths = [name for name in unknowns if _symbol_in(name) in LENGTHS]
    pairs = [(a, b, numbers[_symbol_in(a)], numbers[_symbol_in(b)]) for a in own for b in lengths]
    return [(a, b, 2 if 2 * size < length else 1) for a, b, size, length in pairs if size < length]


def _has_coincidence(plan: Plan, numbers: Mapping[str, int]) -> bool:
    """Return whether a size equals a number that code derives from lengths, such as `2 * L - 1` or `L + 1`.

    Or one that the user derives from others, as in `X = W + 2`, where it doesn't do so always.
    """
    for symbol, other in itertools.product(plan.sizes.follows, numbers):
        if symbol != other and numbers[symbol] == numbers[other]:
            always = all(plan.numbers(round_)[symbol] == plan.numbers(round_)[other] for round_ in (0, 1))
            if not always:
                return True
    lengths = [numbers[name] for name in numbers if name in LENGTHS]
    derived = {number for n in lengths for number in (2 * n - 1, 2 * n + 1, n + 1, n - 1, 2 * n)}
    derived |= {a + b for a, b in itertools.combinations(lengths, 2)}
    return not derived.isdisjoint(numbers.values())


def _cost_of_work(plan: Plan, work: WorkEstimate) -> Cost:
    return lambda numbers: work.at(plan.at(numbers))


def _cost_of(plan: Plan) -> Cost:
    """Return a function that estimates the cost of a run: its largest tensor, and the weights of a projection.

    A projection is as wide as its heads together on one side, and on the other as the model, whose width may be `D`.
    """
    powers = {name: plan.power(name) for name in plan.unknowns}
    heads = [name for name in plan.unknowns if _symbol_in(name) in _HEADS]
    of_head = [name for name in plan.unknowns if _symbol_in(name) in _HEAD_WIDTHS]

    def cost(chosen: Mapping[str, int]) -> float:
        tensor = math.prod([number ** powers[name] for name, number in chosen.items()])
        width = math.prod([chosen[name] for name in heads]) * max([chosen[name] for name in of_head], default=1)
        return float(tensor + width * chosen.get("D", width))

    return cost


def _symbol_in(name: str) -> str:
    """Return the symbol of an unknown, which may be a quotient such as `H/Hkv`."""
    return name.partition("/")[0]

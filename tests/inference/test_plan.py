"""The primes of each round: distinct, in the order of the user's sizes, and within the constraints."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnshape.dims.expressions import parse_expression
from attnshape.dims.sizes import Sizes
from attnshape.inference.plan import Equal, Fixed, Multiple, Plan
from attnshape.model.trace import Size

SYMBOLS = ("B", "H", "L", "Lq", "Lk", "Dk", "Dv")


def plan_of(numbers, constraints=(), follows=None, ordered=False):
    expressions = {symbol: parse_expression(text) for symbol, text in (follows or {}).items()}
    every = dict(numbers)
    for symbol, expression in expressions.items():
        every[symbol] = expression.evaluate(every)
    records = {symbol: Size(size, "given") for symbol, size in every.items()}
    return Plan(Sizes(records, expressions), tuple(constraints), ordered)


def is_prime(number):
    return number > 1 and all(number % divisor for divisor in range(2, number))


drawn_numbers = st.dictionaries(st.sampled_from(SYMBOLS), st.integers(1, 200), min_size=1, max_size=7)


@settings(max_examples=100, deadline=None)
@given(numbers=drawn_numbers, round_=st.integers(0, 5))
def test_primes_are_distinct_and_keep_the_order(numbers, round_):
    plan = plan_of(numbers)
    primes = plan.primes(round_)
    assert set(primes) == set(numbers)
    assert all(is_prime(prime) and prime >= 5 for prime in primes.values())
    assert len(set(primes.values())) == len(primes)
    for first_symbol in numbers:
        for other in numbers:
            if numbers[first_symbol] < numbers[other]:
                assert primes[first_symbol] < primes[other]
    assert plan.numbers(round_) == primes


@pytest.mark.parametrize("count", range(1, 8))
def test_every_size_differs_between_rounds(count):
    plan = plan_of({symbol: place + 2 for place, symbol in enumerate(SYMBOLS[:count])})
    first, second = plan.primes(0), plan.primes(1)
    assert all(first[symbol] != second[symbol] for symbol in first)


@settings(max_examples=100, deadline=None)
@given(data=st.data(), round_=st.integers(0, 3), ordered=st.booleans())
def test_constraints_are_met(data, round_, ordered):
    numbers = data.draw(st.dictionaries(st.sampled_from(SYMBOLS), st.integers(1, 40), min_size=4, max_size=7))
    symbols = list(numbers)
    factor = data.draw(st.sampled_from((2, 3, 8)))
    one, other, third, fourth = symbols[:4]
    numbers[one] *= factor
    numbers[third] = numbers[other] * data.draw(st.integers(2, 5))
    constraints = (Multiple(one, factor), Multiple(third, 1, other), Fixed(fourth))
    plan = plan_of(numbers, constraints, ordered=ordered)
    sizes = plan.numbers(round_)
    assert sizes[one] % factor == 0
    assert sizes[third] % sizes[other] == 0
    assert sizes[third] > sizes[other]
    assert sizes[fourth] == numbers[fourth]
    assert plan.fixed == (fourth,)
    primes = plan.primes(round_)
    assert len(set(primes.values())) == len(primes) == len(numbers) - 1


def test_equal_sizes_share_one_prime():
    plan = plan_of({"Lq": 7, "Lk": 7, "Dk": 64}, [Equal("Lk", "Lq")])
    for round_ in range(4):
        sizes = plan.numbers(round_)
        assert sizes["Lq"] == sizes["Lk"] != sizes["Dk"]
    assert plan.unknowns == ("Lq", "Dk")


def test_derived_sizes_are_computed():
    plan = plan_of({"H": 8, "Dk": 64, "Lp": 6, "L": 10}, follows={"D": "H*Dk", "T": "Lp+L", "C": "3*D", "hs": "D//H"})
    for round_ in range(4):
        sizes = plan.numbers(round_)
        assert sizes["D"] == sizes["H"] * sizes["Dk"]
        assert sizes["T"] == sizes["Lp"] + sizes["L"]
        assert sizes["C"] == 3 * sizes["D"]
        assert sizes["hs"] == sizes["Dk"]
    assert "T" not in plan.symbols
    assert plan.symbols["hs"] == plan.symbols["Dk"]
    assert set(plan.unknowns) == {"H", "Dk", "Lp", "L"}


def test_ordered_plan_keeps_the_order_of_derived_sizes():
    numbers = {"H": 2, "Dk": 3, "L": 100}
    loose = plan_of(numbers, follows={"D": "H*Dk"}).numbers(0)
    strict = plan_of(numbers, follows={"D": "H*Dk"}, ordered=True).numbers(0)
    assert loose["L"] < loose["D"]
    assert strict["H"] < strict["Dk"] < strict["D"] < strict["L"]
    assert all(is_prime(strict[symbol]) for symbol in numbers)


@pytest.mark.parametrize(
    ("constraint", "words"),
    [
        (Equal("Lq", "Lk"), "Lq = Lk"),
        (Multiple("Dk", 2), "Dk even"),
        (Multiple("L", 8), "8 divides L"),
        (Multiple("L", 1, "W"), "W divides L"),
        (Multiple("L", 2, "W"), "2*W divides L"),
    ],
)
def test_constraint_text(constraint, words):
    assert str(constraint) == words

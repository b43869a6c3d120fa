"""The primes of each round: distinct, in the order of the user's sizes, and within the constraints."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnshape.dims.expressions import parse_expression
from attnshape.dims.sizes import Sizes
from attnshape.inference.plan import Equal, Fixed, Multiple, Plan
from attnshape.model.trace import Size

LETTERS = ("B", "H", "L", "Lq", "Lk", "Dk", "Dv")


def plan_of(numbers, constraints=(), follows=None, ordered=False):
    expressions = {letter: parse_expression(text) for letter, text in (follows or {}).items()}
    every = dict(numbers)
    for letter, expression in expressions.items():
        every[letter] = expression.evaluate(every)
    records = {letter: Size(size, "given") for letter, size in every.items()}
    return Plan(Sizes(records, expressions), tuple(constraints), ordered)


def is_prime(number):
    return number > 1 and all(number % divisor for divisor in range(2, number))


numbers_drawn = st.dictionaries(st.sampled_from(LETTERS), st.integers(1, 200), min_size=1, max_size=7)


@settings(max_examples=100, deadline=None)
@given(numbers=numbers_drawn, round_=st.integers(0, 5))
def test_primes_are_distinct_and_keep_the_order(numbers, round_):
    plan = plan_of(numbers)
    primes = plan.primes(round_)
    assert set(primes) == set(numbers)
    assert all(is_prime(prime) and prime >= 5 for prime in primes.values())
    assert len(set(primes.values())) == len(primes)
    for one in numbers:
        for other in numbers:
            if numbers[one] < numbers[other]:
                assert primes[one] < primes[other]
    assert plan.numbers(round_) == primes


@pytest.mark.parametrize("count", range(1, 8))
def test_rounds_differ_from_one_another_for_every_size(count):
    plan = plan_of({letter: place + 2 for place, letter in enumerate(LETTERS[:count])})
    first, second = plan.primes(0), plan.primes(1)
    assert all(first[letter] != second[letter] for letter in first)


@settings(max_examples=100, deadline=None)
@given(data=st.data(), round_=st.integers(0, 3), ordered=st.booleans())
def test_constraints_are_met(data, round_, ordered):
    numbers = data.draw(st.dictionaries(st.sampled_from(LETTERS), st.integers(1, 40), min_size=4, max_size=7))
    letters = list(numbers)
    factor = data.draw(st.sampled_from((2, 3, 8)))
    one, other, third, fourth = letters[:4]
    numbers[one] *= factor
    numbers[third] = numbers[other] * data.draw(st.integers(2, 5))
    constraints = (Multiple(one, factor), Multiple(third, 1, other), Fixed(fourth))
    plan = plan_of(numbers, constraints, ordered=ordered)
    taken = plan.numbers(round_)
    assert taken[one] % factor == 0
    assert taken[third] % taken[other] == 0
    assert taken[third] > taken[other]
    assert taken[fourth] == numbers[fourth]
    assert plan.fixed == (fourth,)
    primes = plan.primes(round_)
    assert len(set(primes.values())) == len(primes) == len(numbers) - 1


def test_equal_sizes_are_one_number():
    plan = plan_of({"Lq": 7, "Lk": 7, "Dk": 64}, [Equal("Lk", "Lq")])
    for round_ in range(4):
        taken = plan.numbers(round_)
        assert taken["Lq"] == taken["Lk"] != taken["Dk"]
    assert plan.unknowns == ("Lq", "Dk")


def test_what_follows_follows():
    plan = plan_of({"H": 8, "Dk": 64, "Lp": 6, "L": 10}, follows={"D": "H*Dk", "T": "Lp+L", "C": "3*D", "hs": "D//H"})
    for round_ in range(4):
        taken = plan.numbers(round_)
        assert taken["D"] == taken["H"] * taken["Dk"]
        assert taken["T"] == taken["Lp"] + taken["L"]
        assert taken["C"] == 3 * taken["D"]
        assert taken["hs"] == taken["Dk"]
    assert "T" not in plan.symbols
    assert plan.symbols["hs"] == plan.symbols["Dk"]
    assert set(plan.unknowns) == {"H", "Dk", "Lp", "L"}


def test_sizes_that_follow_keep_their_place_where_that_is_asked_for():
    numbers = {"H": 2, "Dk": 3, "L": 100}
    loose = plan_of(numbers, follows={"D": "H*Dk"}).numbers(0)
    strict = plan_of(numbers, follows={"D": "H*Dk"}, ordered=True).numbers(0)
    assert loose["L"] < loose["D"]
    assert strict["H"] < strict["Dk"] < strict["D"] < strict["L"]
    assert all(is_prime(strict[letter]) for letter in numbers)


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
def test_constraints_in_words(constraint, words):
    assert str(constraint) == words

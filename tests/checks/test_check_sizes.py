"""The small sizes of a check: all different, within the constraints, and different in the second set."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnshape.checks.interventions.small_sizes import (
    cheap_first,
    even_head_width,
    involves,
    near_sizes,
    other_lengths,
    small_sizes,
    symbol_or_number,
)
from attnshape.dims.expressions import parse_expression
from attnshape.dims.sizes import Sizes
from attnshape.inference.plan import Equal, Fixed, Multiple, Plan
from attnshape.inference.work import Growth, WorkEstimate
from attnshape.model.trace import Size
from tests.checks.subjects import plan_of, target_and_sizes

SYMBOLS = ("B", "H", "L", "Lq", "Lk", "Lp", "Dk", "Dv", "W")
LENGTHS = ("L", "Lq", "Lk", "Lp")


def plan(numbers, constraints=(), follows=None):
    expressions = {symbol: parse_expression(text) for symbol, text in (follows or {}).items()}
    every = dict(numbers)
    for symbol, expression in expressions.items():
        every[symbol] = expression.evaluate(every)
    return Plan(Sizes({symbol: Size(size, "given") for symbol, size in every.items()}, expressions), tuple(constraints))


def has_few_lengths(numbers):
    return sum(symbol in (*LENGTHS, "W") for symbol in numbers) < 3


few = st.dictionaries(st.sampled_from(SYMBOLS), st.integers(1, 99), min_size=1, max_size=5).filter(has_few_lengths)


@settings(max_examples=60, deadline=None)
@given(few)
def test_sizes_are_different_primes(numbers):
    for chosen in small_sizes(plan(numbers))[:2]:
        assert chosen.keys() == numbers.keys()
        assert len(set(chosen.values())) == len(chosen)
        assert all(size >= 5 and all(size % divisor for divisor in range(2, size)) for size in chosen.values())


@settings(max_examples=60, deadline=None)
@given(few, st.sets(st.sampled_from([5, 7, 11, 13]), max_size=2))
def test_sizes_are_no_number_that_the_target_is_given(numbers, literals):
    free = plan(numbers)
    for chosen in small_sizes(replace(free, sizes=replace(free.sizes, literals=frozenset(literals))))[:2]:
        assert literals.isdisjoint(chosen.values())
        assert len(set(chosen.values())) == len(chosen)


@settings(max_examples=60, deadline=None)
@given(few)
def test_lengths_keep_the_users_order(numbers):
    for chosen in small_sizes(plan(numbers))[:2]:
        for one, other in itertools.permutations([symbol for symbol in numbers if symbol in (*LENGTHS, "W")], 2):
            if numbers[one] < numbers[other]:
                assert chosen[one] < chosen[other]


@pytest.mark.parametrize("count", [1, 3, 9])
def test_symbols_of_the_user_stay_below_larger_lengths(count):
    """Of as many keys as there are tokens, or of fewer, none would be chosen."""
    for chosen in small_sizes(plan({"B": 2, "H": 2, "L": 10, "Dk": 4, "K": count}))[:2]:
        assert chosen["K"] < chosen["L"]


@settings(max_examples=60, deadline=None)
@given(few)
def test_both_sets_differ_in_every_size(numbers):
    first, second, *rounds = small_sizes(plan(numbers))
    assert all(first[symbol] != second[symbol] for symbol in numbers)
    assert rounds == [plan(numbers).numbers(0), plan(numbers).numbers(1)]


def test_six_sizes_differ_and_twelve_still_get_sizes():
    six = plan({symbol: 10 + place for place, symbol in enumerate(SYMBOLS[:6])})
    first, second, *_ = small_sizes(six)
    assert all(first[symbol] != second[symbol] for symbol in SYMBOLS[:6])
    many = plan({symbol: 10 + place for place, symbol in enumerate((*SYMBOLS, "C", "E", "F"))})
    assert all(len(set(chosen.values())) == 12 for chosen in small_sizes(many))


@pytest.mark.parametrize("lengths", [("Lp", "L", "W"), ("Lp", "Lq", "Lk", "L", "W")])
def test_derived_lengths_coincide_with_no_size(lengths):
    first, second, *_ = small_sizes(plan({symbol: 10 + place for place, symbol in enumerate(lengths)}))
    for chosen in (first, second):
        derived = {size for n in chosen.values() for size in (2 * n - 1, 2 * n + 1, n + 1, n - 1, 2 * n)}
        assert not derived & set(chosen.values())
    assert all(first[symbol] != second[symbol] for symbol in lengths)


@pytest.mark.parametrize("work", [None, WorkEstimate((Growth(1.0, (("Dk", 3), ("H", 2))),))])
def test_many_sizes_keep_their_order_and_the_costly_ones_are_small(work):
    many = plan({"B": 2, "L": 13, "D": 20, "H": 3, "Dk": 7, "Dv": 8, "C": 5})
    first, second = small_sizes(many, work)[:2]
    assert not first.items() & second.items()
    for chosen in (first, second):
        assert len({*chosen.values()}) == len(chosen)
        assert 2 * chosen["C"] < chosen["L"]
        if work is not None:
            assert max(chosen["Dk"], chosen["H"]) < min(chosen[name] for name in ("B", "D", "Dv"))


def test_few_assignments_are_tried_beside_groups_of_heads(monkeypatch):
    tried = []
    permutations = itertools.permutations
    monkeypatch.setattr(itertools, "permutations", lambda *of: (tried.append(one) or one for one in permutations(*of)))
    names = ("B", "Hkv", "G", "L", "Dk", "V", "F")
    small_sizes(plan({symbol: 10 + place for place, symbol in enumerate(names)}))
    assert 0 < len(tried) < 100_000


def test_seven_sizes_differ():
    first, second, *_ = small_sizes(plan({symbol: 10 + place for place, symbol in enumerate(SYMBOLS[:7])}))
    assert all(first[symbol] != second[symbol] for symbol in SYMBOLS[:7])


@settings(max_examples=60, deadline=None)
@given(data=st.data(), factor=st.sampled_from((2, 3, 8)), times=st.integers(2, 5))
def test_constraints_are_kept(data, factor, times):
    symbols = data.draw(st.permutations(SYMBOLS))[:4]
    even, part, whole, equal = symbols
    numbers = {even: factor * 4, part: 5, whole: 5 * times, equal: factor * 4}
    constraints = [Multiple(even, factor), Multiple(whole, 1, part), Equal(equal, even)]
    for chosen in small_sizes(plan(numbers, constraints))[:2]:
        assert chosen[even] % factor == 0
        assert chosen[whole] % chosen[part] == 0 != chosen[whole] - chosen[part]
        assert chosen[equal] == chosen[even]
        assert len(set(chosen.values())) == 3


@pytest.mark.parametrize("number", [1, 6, 64])
def test_fixed_size_is_kept(number):
    for chosen in small_sizes(plan({"B": 2, "L": number, "Dk": 8}, [Fixed("L")]))[:2]:
        assert chosen["L"] == number
        assert len(set(chosen.values())) == 3


def test_no_other_size_equals_a_fixed_one():
    for fixed in (5, 7, 11):
        for chosen in small_sizes(plan({"B": 2, "L": fixed, "Dk": 8}, [Fixed("L")]))[:2]:
            assert len(set(chosen.values())) == 3


def test_no_size_is_a_sum_of_others():
    """The number of cached and new tokens together must not equal the number of heads."""
    numbers = {"B": 2, "H": 4, "Lp": 6, "L": 10, "Dk": 8}
    for chosen in small_sizes(plan(numbers, follows={"T": "Lp+L", "D": "H*Dk"}))[:2]:
        assert chosen["T"] == chosen["Lp"] + chosen["L"]
        assert len(set(chosen.values())) == len(chosen)


def test_a_size_that_the_user_derives_equals_another_only_where_it_always_does():
    numbers = {"B": 2, "H": 4, "W": 10, "Dk": 8}
    for chosen in small_sizes(plan(numbers, follows={"Y": "W", "X": "W+2", "Z": "W-2"}))[:2]:
        assert chosen["Y"] == chosen["W"]
        assert len(set(chosen.values())) == len(chosen) - 1


@settings(max_examples=40, deadline=None)
@given(few)
def test_no_size_is_derived_from_a_length(numbers):
    """A table of all distances has 2*L - 1 rows, and a sequence with one more token has L + 1."""
    for chosen in small_sizes(plan(numbers))[:2]:
        lengths = [chosen[symbol] for symbol in numbers if symbol in LENGTHS]
        derived = {size for n in lengths for size in (2 * n - 1, 2 * n + 1, n + 1, n - 1, 2 * n)}
        assert not derived & set(chosen.values())


def test_derived_sizes_are_computed():
    sizes_plan = plan_of(lambda x: x, {"x": "B L D", "y": "B H L Dk"})
    for chosen in small_sizes(sizes_plan):
        assert chosen["D"] == chosen["H"] * chosen["Dk"]


def test_size_with_a_high_power_is_small():
    sizes = plan({"B": 2, "L": 10}).sizes
    assert small_sizes(Plan(sizes, (), False, {"B": 1, "L": 2}))[0] == {"B": 7, "L": 5}
    assert small_sizes(Plan(sizes, (), False, {"B": 2, "L": 1}))[0] == {"B": 5, "L": 7}


def test_fixed_sizes_never_vary():
    every = [Fixed(symbol) for symbol in ("B", "L")]
    assert all(chosen == {"B": 2, "L": 10} for chosen in small_sizes(plan({"B": 2, "L": 10}, every)))


@settings(max_examples=40, deadline=None)
@given(few)
def test_other_lengths_change_only_lengths(numbers):
    sizes_plan = plan(numbers)
    chosen = small_sizes(sizes_plan)[0]
    other = other_lengths(sizes_plan, chosen)
    lengths = [symbol for symbol in numbers if symbol in LENGTHS]
    if not lengths:
        assert other is None
    else:
        assert {symbol for symbol in numbers if other[symbol] != chosen[symbol]} == set(lengths)


def test_other_lengths_recompute_derived_sizes():
    sizes_plan = plan({"B": 2, "Lp": 6, "L": 10}, follows={"T": "Lp+L"})
    other = other_lengths(sizes_plan, {"B": 5, "Lp": 7, "L": 11, "T": 18})
    assert other == {"B": 5, "Lp": 9, "L": 13, "T": 22}
    assert other_lengths(plan({"B": 2, "L": 10}, [Multiple("L", 2)]), {"B": 5, "L": 14}) is None


@given(st.integers(4, 60), st.integers(0, 20))
def test_multiple_involves_the_symbol(number, times):
    assert involves(number * times, "H", {"H": number}) is (times > 0)
    assert not involves(number * times + 1, "H", {"H": number})
    assert not involves(number, "B", {"H": number})


def test_small_factors_involve_no_symbol():
    assert not involves(6, "H", {"H": 3})
    assert not involves(5, "H", {"H": 1})


def test_symbol_or_number():
    numbers = {"Lq": 11, "B": 5, "Lk": 11, "one": 1}
    assert [symbol_or_number(size, numbers) for size in (5, 11, 12, 1)] == ["B", "Lq", "12", "1"]


WIDE = WorkEstimate((Growth(6400.0, (("Dk", 6), ("H", 2))),))
"""A module whose weight is as wide and as long as H*Dk*Dk*Dk."""


def test_sizes_are_chosen_by_their_work_where_it_is_much():
    subject = plan({"B": 2, "H": 2, "L": 5, "Dk": 4})
    first, second = small_sizes(subject, WIDE)[:2]
    assert first["Dk"] == 5 and second["Dk"] == 7
    assert WIDE.at(first) < WIDE.at(small_sizes(subject)[0])
    cheap = WorkEstimate((Growth(64.0, (("Dk", 1), ("H", 1))),))
    assert small_sizes(subject, cheap) == small_sizes(subject)


def test_symbols_of_the_user_take_small_primes_where_results_fill_the_memory():
    windows = plan({"B": 2, "H": 3, "Dk": 4, "R": 14, "S": 21}, [Multiple("R", 7), Multiple("S", 7)])
    heavy = WorkEstimate((), written=(Growth(1200.0, (("B", 1), ("H", 1), ("R", 1), ("S", 1))),))
    light = WorkEstimate((), written=(Growth(12.0, (("B", 1), ("H", 1), ("R", 1), ("S", 1))),))
    assert min(chosen["R"] for chosen in small_sizes(windows, light)[:2]) >= 35
    assert max(chosen["R"] * chosen["S"] for chosen in small_sizes(windows, heavy)[:2]) < 35 * 35


def test_sizes_that_take_much_work_come_last():
    large, small, other = ({"H": 5, "Dk": dk} for dk in (13, 2, 3))
    assert cheap_first([large, small, other], WIDE) == [small, other, large]
    assert cheap_first([large, small, other], None) == [large, small, other]


def test_sizes_whose_results_fill_the_memory_are_left_out_and_none_is_tried_twice():
    small, large = ({"B": 2, "T": size} for size in (5, 31))
    scores = WorkEstimate((), written=(Growth(100.0, (("B", 1), ("T", 4))),))  # 1.4 GiB at the larger sizes
    assert cheap_first([large, small, small], scores) == [small]
    much = WorkEstimate((), written=(Growth(1e9, (("T", 1),)),))
    assert cheap_first([large, small], much) == [small]


def test_sizes_near_the_users_have_another_batch_and_other_lengths():
    sizes = target_and_sizes(lambda x: x, {"x": "B L D"}, given={"B": 2, "L": 10, "D": 512})[1]
    first, second = near_sizes(sizes)
    assert first == {"B": 5, "L": 7, "D": 512}
    assert second == {"B": 11, "L": 13, "D": 512}
    assert near_sizes(target_and_sizes(lambda x: x, {"x": "D"})[1]) == []


@pytest.mark.parametrize(("depth", "other"), [(8, 34), (9, 17)], ids=["even", "odd"])
def test_sizes_near_the_users_have_another_width_of_one_head_first(depth: int, other: int) -> None:
    sizes = target_and_sizes(lambda x: x, {"x": "B L H*Dk"}, given={"B": 2, "L": 10, "H": 3, "Dk": depth})[1]
    found = [(each["B"], each["L"], each["Dk"], each["H"]) for each in near_sizes(sizes)]
    assert found == [(5, 7, other, 3), (11, 13, other, 3), (5, 7, depth, 3), (11, 13, depth, 3)]


def test_batch_stays_identifiable_where_only_the_smallest_primes_are_cheap():
    """Symbols of the user's own, such as the rows and columns of a grid, take 2 and 3, and known ones don't."""
    numbers = {"B": 2, "H": 2, "Dk": 4, "R": 4, "T": 4, "S": 4}
    heavy = WorkEstimate((Growth(3000.0, tuple((symbol, 2) for symbol in ("R", "T", "S", "H"))),))
    for chosen in small_sizes(plan(numbers), heavy)[:2]:
        assert {2, 3} <= {chosen[symbol] for symbol in ("R", "T", "S")}
        assert min(chosen[symbol] for symbol in ("B", "H", "Dk")) > 3


@pytest.mark.parametrize(
    ("numbers", "follows", "expected"),
    [
        ({"B": 2, "H": 3, "L": 5, "Dk": 8}, None, "Dk"),
        ({"H": 3, "L": 5, "Dk": 8}, {"D": "H*Dk"}, "Dk"),
        ({"H": 4, "L": 5, "D": 24}, None, "D"),
        ({"H": 4, "L": 5, "D": 24}, {"Dk": "D//H"}, "D"),
        ({"H": 3, "L": 5, "Dk": 7}, None, None),
        ({"H": 8, "L": 5, "D": 24}, None, None),
        ({"B": 2, "L": 5}, None, None),
    ],
)
def test_even_head_width_is_kept_where_it_is_independent(numbers, follows, expected):
    sizes = plan(numbers, follows=follows).sizes
    known = even_head_width(sizes)
    assert [constraint.symbol for constraint in known] == ([expected] if expected else [])
    even = plan(numbers, known, follows)
    for chosen in small_sizes(even)[:2] if known else ():
        width = chosen.get("Dk") or chosen["D"] // chosen["H"]
        assert width % 2 == 0
        assert chosen["D"] % chosen["H"] == 0 if "D" in chosen else True
        assert other_lengths(even, chosen, known) == {**chosen, "L": chosen["L"] + 2}

"""Monomials of unknowns: factoring inverts evaluation, and `format_monomial` writes an equivalent formula."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnshape.dims.expressions import parse_expression
from attnshape.inference.algebra import Monomial, constant, factor, format_monomial, unknown

NAMES = ("B", "H", "L", "Dk", "Dv")
PRIMES = (5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43)


def value(monomial, numbers):
    total = monomial.coefficient
    for name, power in monomial.powers:
        total *= Fraction(numbers[name]) ** power
    return total


@st.composite
def drawn_rounds(draw):
    """Draw two to four rounds, in each of which every unknown has another prime."""
    count = draw(st.integers(2, 4))
    columns = {
        name: draw(st.lists(st.sampled_from(PRIMES), min_size=count, max_size=count, unique=True)) for name in NAMES
    }
    found = [{name: columns[name][place] for name in NAMES} for place in range(count)]
    if any(len(set(primes.values())) < len(NAMES) for primes in found):
        return [dict(zip(NAMES, PRIMES[place : place + len(NAMES)], strict=True)) for place in range(count)]
    return found


@settings(max_examples=200, deadline=None)
@given(
    rounds=drawn_rounds(),
    powers=st.fixed_dictionaries({name: st.integers(0, 3) for name in NAMES}),
    coefficient=st.integers(1, 4),
)
def test_factoring_inverts_evaluation(rounds, powers, coefficient):
    monomial = constant(coefficient)
    for name, power in powers.items():
        for _ in range(power):
            monomial = monomial * unknown(name)
    values = [int(value(monomial, primes)) for primes in rounds]
    assert factor(values, rounds) == monomial


@pytest.mark.parametrize(
    "values", [(5 + 7, 7 + 11), (35, 78), (1, 2), (5 * 7, 7 * 11 * 3)], ids=["sum", "none", "moved", "coefficient"]
)
def test_sum_has_no_factors(values):
    assert factor(values, [{"B": 5, "H": 7}, {"B": 7, "H": 11}]) is None


def test_unchanged_number_is_a_constant():
    found = factor((6, 6), [{"B": 5, "H": 7}, {"B": 7, "H": 11}])
    assert found == constant(6)
    assert found.is_constant


def test_prime_of_a_single_round_is_not_a_factor():
    # 35 is B*H in the first round, but doesn't change in the second
    assert factor((35, 35), [{"B": 5, "H": 7}, {"B": 11, "H": 13}]) == constant(35)


def test_monomial_arithmetic():
    b, h = unknown("B"), unknown("H")
    assert b * h == h * b
    assert (b * h) / h == b
    assert b / b == constant(1)
    assert (constant(6) / constant(4)).coefficient == Fraction(3, 2)
    assert (b * b * h).degree == 3


H, DK, B, L, KV, G = (unknown(name) for name in ("H", "Dk", "B", "L", "Hkv", "G"))


@pytest.mark.parametrize(
    ("monomial", "symbols", "expected"),
    [
        (H * DK, {"H": H, "D": H * DK, "Dk": DK}, "D"),
        (H * DK, {"H": H, "Dk": DK}, "H*Dk"),
        (B * H * DK * L, {"B": B, "H": H, "L": L, "D": H * DK, "Dk": DK}, "B*L*D"),
        (constant(3) * H * DK, {"H": H, "D": H * DK, "Dk": DK}, "3*D"),
        (L * L, {"B": B, "L": L}, "L*L"),
        (unknown("Dk/2"), {"Dk": constant(2) * unknown("Dk/2")}, "Dk//2"),
        (constant(3) * unknown("Dk/2"), {"Dk": constant(2) * unknown("Dk/2")}, "3*Dk//2"),
        (constant(2) * unknown("Dk/2"), {"Dk": constant(2) * unknown("Dk/2")}, "Dk"),
        (constant(5), {"B": B}, "5"),
        (constant(1), {"B": B}, "1"),
        (KV * G, {"H": KV * G, "Hkv": KV, "G": G}, "H"),
        (KV, {"H": KV * G, "Hkv": KV, "G": G}, "Hkv"),
        (unknown("C/nh"), {"nh": unknown("nh"), "C": unknown("nh") * unknown("C/nh")}, "C//nh"),
        (L, {"B": B}, None),
    ],
)
def test_format_monomial(monomial, symbols, expected):
    assert format_monomial(monomial, symbols) == expected


@st.composite
def symbol_tables(draw):
    """Draw symbols in terms of the unknowns: one unknown, one with a coefficient, and products of two."""
    found: dict[str, Monomial] = {}
    for name in NAMES:
        found[name] = constant(draw(st.sampled_from((1, 1, 2, 3, 4)))) * unknown(name)
    for position in range(draw(st.integers(0, 2))):
        first, second = draw(st.permutations(NAMES))[:2]
        found[f"P{position}"] = found[first] * found[second]
    order = draw(st.permutations(list(found)))
    return {name: found[name] for name in order}


@settings(max_examples=300, deadline=None)
@given(
    symbols=symbol_tables(),
    powers=st.fixed_dictionaries({name: st.integers(0, 2) for name in NAMES}),
    coefficient=st.integers(1, 12),
    chance=st.randoms(use_true_random=False),
)
def test_formatted_monomial_is_equivalent(symbols, powers, coefficient, chance):
    monomial = constant(coefficient)
    for name, power in powers.items():
        for _ in range(power):
            monomial = monomial * unknown(name)
    text = format_monomial(monomial, symbols)
    assert text is not None
    for _ in range(10):
        numbers = {name: chance.randint(1, 50) for name in NAMES}
        sizes = {name: int(value(symbol, numbers)) for name, symbol in symbols.items()}
        assert parse_expression(text).evaluate(sizes) == value(monomial, numbers), text

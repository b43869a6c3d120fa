"""Verified formulas also hold at other sizes."""

import ast
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from attnshape.dims.expressions import parse_expression
from attnshape.dims.sizes import Sizes
from attnshape.inference.plan import Equal, Fixed, Multiple, Plan
from attnshape.inference.solver import Solver, matched
from attnshape.model.trace import Size

SYMBOLS = ("B", "H", "L", "Lk", "Dk")
ROUNDS = 4


def sizes_of(numbers: dict[str, int], follows: dict[str, str] | None = None) -> Sizes:
    """Return sizes of these numbers, and compute the derived ones."""
    expressions = {symbol: parse_expression(text) for symbol, text in (follows or {}).items()}
    numbers = dict(numbers)
    records = {symbol: Size(size, "given") for symbol, size in numbers.items()}
    for symbol, expression in expressions.items():
        numbers[symbol] = expression.evaluate(numbers)
        records[symbol] = Size(numbers[symbol], "derived", expression.text)
    return Sizes(records, expressions)


def solved(truth: str, plan: Plan, rounds: int = ROUNDS) -> Any:
    expression = parse_expression(truth)
    values = tuple(expression.evaluate(plan.numbers(round_)) for round_ in range(rounds))
    return Solver(plan, rounds).solve(values, expression.evaluate(plan.sizes.numbers))


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Draw two to five sizes, up to two of which must be multiples of a number."""
    symbols = draw(st.lists(st.sampled_from(SYMBOLS), min_size=2, max_size=5, unique=True))
    symbols.sort(key=SYMBOLS.index)
    numbers = {symbol: draw(st.integers(1, 40)) for symbol in symbols}
    constraints = []
    for symbol in draw(st.lists(st.sampled_from(symbols), max_size=2, unique=True)):
        factor = draw(st.sampled_from((2, 3, 4, 8)))
        numbers[symbol] *= factor
        constraints.append(Multiple(symbol, factor))
    follows = {}
    if "H" in symbols and "Dk" in symbols and draw(st.booleans()):
        follows["D"] = "H*Dk"
    return Plan(sizes_of(numbers, follows), tuple(constraints), draw(st.booleans()))


def truths(plan: Plan) -> st.SearchStrategy[str]:
    symbols = st.sampled_from(list(plan.sizes.records))
    products = st.lists(symbols, min_size=1, max_size=4).map("*".join)
    scaled = st.tuples(st.integers(1, 6), products).map(lambda pair: f"{pair[0]}*{pair[1]}")
    quotients = [f"{c.symbol}//{c.factor}" for c in plan.constraints if isinstance(c, Multiple)]
    sums = st.tuples(
        st.sampled_from(("", "2*", "3*")), symbols, st.sampled_from("+-"), symbols, st.integers(-9, 20)
    ).map(lambda parts: f"{parts[0]}{parts[1]}{parts[2]}{parts[3]}" + (f"{parts[4]:+d}" if parts[4] else ""))
    shifted = st.tuples(symbols, st.integers(-9, 64)).map(lambda pair: f"{pair[0]}{pair[1]:+d}")
    rounded = st.tuples(symbols, st.sampled_from((2, 3, 4, 5, 7, 8, 16))).flatmap(
        lambda pair: st.sampled_from(
            (f"{pair[0]}//{pair[1]}", f"-(-{pair[0]}//{pair[1]})", f"-(-{pair[0]}//{pair[1]})*{pair[1]}")
        )
    )
    inner = st.one_of(sums, shifted, rounded)
    several = st.tuples(symbols, inner).map(lambda pair: f"{pair[0]}*({pair[1]})")
    found = [products, scaled, inner, several]
    if quotients:
        quotient = st.sampled_from(quotients)
        found += [quotient, st.tuples(symbols, quotient).map(lambda pair: f"{pair[0]}*({pair[1]})")]
    return st.one_of(found)


def other_sizes(plan: Plan, data: st.DataObject, count: int) -> list[dict[str, int]]:
    """Draw sizes that meet the constraints: small and large, even and odd."""
    random = data.draw(st.randoms(use_true_random=False))
    found = []
    for _ in range(count):
        chosen = {}
        for symbol in plan.sizes.independent:
            factor = next((c.factor for c in plan.constraints if c.symbol == symbol), 1)
            chosen[symbol] = random.randint(1, 60) * factor
        found.append(plan.sizes.at(chosen))
    return found


def assert_holds_elsewhere(truth: str, plan: Plan, others: list[dict[str, int]]) -> None:
    """Assert that the solver's formula for an expression is right at other sizes, or a literal."""
    expression = parse_expression(truth)
    actual = expression.evaluate(plan.sizes.numbers)
    formula = solved(truth, plan)
    if formula.known != "verified":
        assert formula.known == "literal"
        assert formula.text == str(actual)
        return
    claimed = parse_expression(formula.text)
    for numbers in others:
        right = expression.evaluate(numbers)
        if right > 0:
            assert claimed.evaluate(numbers) == right, (truth, formula.text, plan.sizes.numbers, numbers)


def quotients_vary(truth: str, plan: Plan) -> bool:
    """Return whether each rounded quotient varies in the runs; otherwise they can't reveal it."""
    runs = [plan.sizes.numbers, *(plan.numbers(round_) for round_ in range(ROUNDS))]
    quotients = [
        parse_expression(ast.unparse(node))
        for node in ast.walk(ast.parse(truth, mode="eval"))
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv)
    ]
    return all(len({quotient.evaluate(numbers) for numbers in runs}) > 1 for quotient in quotients)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_verified_axes_hold_at_other_sizes(data):
    plan = data.draw(plans())
    truth = data.draw(truths(plan))
    expression = parse_expression(truth)
    runs = [plan.sizes.numbers, *(plan.numbers(round_) for round_ in range(ROUNDS))]
    assume(all(expression.evaluate(numbers) >= 0 for numbers in runs))
    assume(quotients_vary(truth, plan))
    assert_holds_elsewhere(truth, plan, other_sizes(plan, data, 20))


@pytest.mark.parametrize(
    ("truth", "numbers", "constraints"),
    [
        # at odd sizes, padding to an even number adds one
        ("-(-Dk//2)*2", {"Lk": 5, "Dk": 5}, ()),
        ("B*(-(-Lk//2)*2)", {"B": 32, "H": 36, "L": 33, "Lk": 3}, ()),
        # a few small numbers fit many rounded quotients
        ("-(-L//7)", {"B": 29, "H": 7, "L": 39, "Lk": 78, "Dk": 31}, ()),
        ("-(-Lk//4)", {"Lk": 4, "Dk": 13}, (Multiple("Lk", 2),)),
        ("Dk//5", {"B": 20, "H": 27, "L": 36, "Lk": 152, "Dk": 39}, ()),
        ("-(-H//4)*4", {"B": 84, "H": 36, "L": 18, "Lk": 9}, (Multiple("Lk", 3), Multiple("B", 4))),
    ],
)
def test_indistinguishable_formulas_are_not_verified(truth, numbers, constraints):
    plan = Plan(sizes_of(numbers), constraints)
    factors = {c.symbol: c.factor for c in constraints}
    others = [
        {
            symbol: (7 * place + 5 * n) % 50 * factors.get(symbol, 1) + factors.get(symbol, 1)
            for n, symbol in enumerate(numbers)
        }
        for place in range(20)
    ]
    assert_holds_elsewhere(truth, plan, others)


@pytest.mark.parametrize(
    ("truth", "expected"),
    [
        ("B*H*L*Dk", "B*L*D"),
        ("H*Dk", "D"),
        ("3*H*Dk", "3*D"),
        ("L*L", "L*L"),
        ("4*B", "4*B"),
        ("L+Lk", "L+Lk"),
        ("2*L-1", "2*L-1"),
        ("L+1", "L+1"),
        ("L-1", "L-1"),
        ("B*(L+Lk)", "B*(L+Lk)"),
        ("H*Dk*(L+Lk)", "D*(L+Lk)"),
        ("L//2", "L//2"),
    ],
)
def test_verified_formulas_use_the_symbols(truth, expected):
    plan = Plan(sizes_of({"B": 2, "H": 8, "L": 100, "Lk": 160, "Dk": 64}, {"D": "H*Dk"}))
    formula = solved(truth, plan)
    assert (formula.text, formula.known) == (expected, "verified")


@pytest.mark.parametrize(("truth", "number"), [("7", "7"), ("2", "2"), ("64", "64"), ("0", "0"), ("1", "1")])
def test_constant_number_is_literal(truth, number):
    formula = solved(truth, Plan(sizes_of({"B": 2, "H": 7, "Dk": 64})))
    assert (formula.text, formula.known, formula.unsolved) == (number, "literal", False)


def test_fixed_size_is_matched_unless_ambiguous():
    sizes = sizes_of({"B": 2, "L": 7, "Lk": 7, "Dk": 64})
    fixed = Plan(sizes, (Fixed("B"), Fixed("L"), Fixed("Lk")))
    assert (solved("B", fixed).text, solved("B", fixed).known) == ("B", "matched")
    assert (solved("L", fixed).text, solved("L", fixed).known) == ("7", "literal")
    one = Plan(sizes_of({"B": 1, "L": 7}), (Fixed("B"),))
    assert (solved("B", one).text, solved("B", one).known) == ("1", "literal")


def test_equal_sizes_are_one_symbol():
    plan = Plan(sizes_of({"L": 7, "Lk": 7, "Dk": 64}), (Equal("Lk", "L"),))
    assert solved("L", plan).known == "verified"
    assert solved("L", plan).text == solved("Lk", plan).text == "L"


def test_formula_that_fails_at_the_users_sizes_is_not_verified():
    plan = Plan(sizes_of({"L": 40, "W": 7}))
    smaller = [min(plan.numbers(round_).values()) for round_ in range(3)]
    assert Solver(plan, 3).solve(tuple(smaller), 7).text == "W"
    assert Solver(plan, 3).solve(tuple(smaller), 40).known == "literal"
    assert Solver(plan, 3).solve(tuple(smaller), 40).unsolved


def test_sums_and_constants_need_more_runs():
    plan = Plan(sizes_of({"L": 40, "W": 7}))
    for truth, unsure in (("L*W", False), ("L+W", True), ("9", True), ("1", False)):
        expression = parse_expression(truth)
        solver = Solver(plan, 3)
        values = tuple(expression.evaluate(plan.numbers(round_)) for round_ in range(3))
        solver.solve(values, expression.evaluate(plan.sizes.numbers))
        assert solver.needs_more_runs is unsure


def test_match_from_one_run_needs_a_unique_size():
    sizes = {"B": 2, "L": 7, "Lk": 7, "H": 1}
    expected = {2: ("B", "matched"), 7: ("7", "literal"), 1: ("1", "literal"), 5: ("5", "literal")}
    assert {size: (matched(size, sizes).text, matched(size, sizes).known) for size in expected} == expected

"""The formulas of a page: trees, conditions, which sizes can be chosen, and sizes at which tensors can be drawn."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from attnshape.dims.arithmetic import SIZE, evaluate, parse
from attnshape.errors import AttnshapeError
from attnshape.inference.plan import Constraint, Equal, Multiple
from attnshape.model.trace import Axis, Known, Loop, Size
from attnshape.reporters.web.formulas import PageSize, PageSizes, condition_tree, formula_tree, page_sizes
from tests.reporters.sample_pages import QUICK, PageNumbers, PageTarget, data_of, evaluated, page_of, traces_of
from tests.reporters.sample_traces import multi_head, tensor, trace_of

SIZES = {"H": 4, "Dk": 6, "L": 10, "Lp": 3}
_SYMBOLS = st.sampled_from([*SIZES, "2", "3", "7"])
_FORMULAS = st.recursive(
    _SYMBOLS,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "//"]), inner).map(lambda part: "({}{}{})".format(*part)),
        inner.map(lambda part: f"-({part})"),
    ),
    max_leaves=8,
)


@given(_FORMULAS)
def test_a_tree_has_the_value_of_its_formula(text: str) -> None:
    try:
        expected = evaluate(parse(text, SIZE), SIZES)
    except AttnshapeError:
        return
    assert evaluated(formula_tree(text), SIZES) == expected


@pytest.mark.parametrize("text", ["?", "", "H*", "j1 + ", "torch.ones(3)", "x" * 300, "a b"])
def test_no_formula_has_no_tree(text: str) -> None:
    assert formula_tree(text) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("W <= L", True),
        ("W > L", False),
        ("2 < W <= 3", True),
        ("not W == 3 or L == 10", True),
        ("abs(W-L) == 7", True),
    ],
)
def test_conditions(text: str, expected: bool) -> None:
    assert evaluated(condition_tree(text), {"W": 3, "L": 10}) is expected


@pytest.mark.parametrize(
    ("constraint", "sizes"),
    [
        (Multiple("D", 2), {"D": 7}),
        (Multiple("D", 3), {"D": 7}),
        (Multiple("D", 1, "H"), {"D": 10, "H": 4}),
        (Multiple("D", 2, "H"), {"D": 12, "H": 4}),
    ],
)
def test_preconditions_of_a_trace_are_checked(constraint: Constraint, sizes: dict[str, int]) -> None:
    page = page_sizes(
        trace_of((), sizes={symbol: Size(1, "given") for symbol in sizes}, preconditions=(str(constraint),))
    )
    assert [text for text, _ in page.conditions] == [str(constraint)]
    assert page.at(sizes) is None
    fulfilled = {**sizes, "D": 24}
    assert page.at(fulfilled) == fulfilled


@pytest.mark.parametrize(("constraint", "expected"), [(Equal("L", "Lk"), 5), (Equal("L", "Lk", "W"), 15)])
def test_a_size_that_must_equal_others_follows_them(constraint: Constraint, expected: int) -> None:
    sizes = {symbol: Size(6, "given") for symbol in ("L", "Lk", "W")}
    page = page_sizes(trace_of((), sizes=sizes, preconditions=(str(constraint),)))
    assert page.at({"Lk": 5, "W": 3}) == {"L": expected, "Lk": 5, "W": 3}


def test_attnshapes_own_symbols_divide_without_a_remainder() -> None:
    sizes = {"H": Size(8, "given"), "D": Size(512, "given"), "Dk": Size(64, "derived", "D//H")}
    page = page_sizes(trace_of((), sizes=sizes))
    assert page.at({"H": 4, "D": 20}) == {"H": 4, "D": 20, "Dk": 5}
    assert page.at({"H": 8, "D": 20}) is None
    own = page_sizes(trace_of((), sizes={"C": Size(20, "given"), "hs": Size(2, "derived", "C//8")}))
    assert own.at({"C": 20}) == {"C": 20, "hs": 2}


def test_a_size_on_which_no_verified_formula_depends_is_fixed() -> None:
    whole = multi_head()
    assert not any(record.fixed for record in page_sizes(whole).records)
    matched = replace(tensor("B Lq D"), axes=tuple(Axis(symbol, "matched") for symbol in ("B", "Lq", "D")))
    steps = tuple(replace(step, outputs=(replace(step.outputs[0], tensor=matched),)) for step in whole.steps)
    inputs = tuple(replace(named, tensor=matched) for named in whole.inputs)
    unverified = replace(whole, steps=steps, inputs=inputs)
    assert all(record.fixed for record in page_sizes(unverified).records if record.expression is None)
    looped = replace(unverified, loops=(Loop(1, 2, 2, "B", "verified"),))
    assert not next(record for record in page_sizes(looped).records if record.symbol == "B").fixed


def test_a_size_that_follows_in_an_unknown_way_is_fixed() -> None:
    unreadable = replace(multi_head(), sizes={**multi_head().sizes, "Dk": Size(64, "derived", "len(x)")})
    assert [record.symbol for record in page_sizes(unreadable).records if record.fixed] == ["Dk"]


@pytest.mark.parametrize(("known", "trees"), [("verified", ["N"]), ("matched", [None])])
def test_a_number_of_iterations_follows_only_where_it_is_verified(known: Known, trees: list[str | None]) -> None:
    looped = replace(multi_head(), loops=(Loop(1, 2, 6, "N", known),))
    data = data_of(page_of(looped))
    assert [data["quantities"][place][2] for _, _, place in data["loops"]] == trees


def test_small_sizes_meet_the_conditions_and_keep_fixed_ones() -> None:
    records = (PageSize("H", 8), PageSize("W", 9, fixed=True), PageSize("D", 512), PageSize("Dk", 64, "D//H"))
    small = PageSizes(records, (("H divides D", "D % H == 0"), ("D even", "D % 2 == 0"))).small()
    assert small == {"H": 2, "W": 9, "D": 4, "Dk": 2}
    assert PageSizes(records, (("never", "D == 0"),)).small() is None


@pytest.mark.parametrize("target", QUICK)
def test_formulas_give_the_numbers_of_a_trace_at_other_sizes(target: PageTarget) -> None:
    at_default, at_moved = traces_of(target)
    page = PageNumbers(data := data_of(page_of(at_default)), target.moved)
    assert page.sizes == {symbol: size.size for symbol, size in at_moved.sizes.items()}
    assert page.holds
    tensors = [output.tensor for step in at_moved.steps for output in step.outputs]
    assert page.results() == [(tensor.shape, tensor.bytes) for tensor in tensors]
    # where a cost has no formula, the page says that it isn't known
    assert at_moved.cost and at_moved.cost.flops and at_moved.cost.moved
    totals = {name: page.quantity(place) for name, place, _ in data["totals"]}
    assert totals["FLOPs"] == at_moved.cost.flops.value
    assert totals["moved"] in (at_moved.cost.moved.value, None)
    counted = [(step[10], own.cost) for step, own in zip(data["steps"], at_moved.steps, strict=True) if own.cost]
    assert counted
    for (flops, moved, _, _), cost in counted:
        assert cost.flops and cost.moved
        assert page.quantity(flops) == cost.flops.value
        assert page.quantity(moved) in (cost.moved.value, None)

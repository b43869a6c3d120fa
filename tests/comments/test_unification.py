"""The sizes of the author's dimension names are inferred from the documented and observed shapes alone."""

import itertools
import random
from collections.abc import Mapping, Sequence

from hypothesis import assume, given
from hypothesis import strategies as st

from attnshape.comments.notation import ShapeText, find_shapes, parse_axis
from attnshape.comments.observed_shapes import FunctionCall, Shape
from attnshape.comments.unification import (
    NameAssignment,
    ShapeConstraint,
    axis_size,
    constrain,
    fits,
    holds,
    unify,
    without_remainders,
)
from attnshape.observation.forms import FunctionId
from attnshape.observation.watch import Binding, Invocation, TensorValue

FUNCTION = FunctionId("code.py", "f", 1)


def call(
    numbers: Mapping[str, int], arguments: Mapping[str, int] | None = None, **bound: Sequence[int]
) -> FunctionCall:
    """Return a call at some sizes, with integer arguments and the integers that each variable is bound to in turn."""
    invocation = Invocation(FUNCTION, dict(arguments or {}), {}, 0)
    for name, values in bound.items():
        invocation.bindings += [Binding(1, 0, name, value) for value in values]
    return FunctionCall(numbers, invocation, ())


def claim(text: str, *shapes: Shape | list[Shape], weight: float = 1.0) -> ShapeConstraint:
    """Return the constraint of a documented shape and the tensor's shape in each call; a list has candidate tensors."""
    written = list(find_shapes(text))
    return constrain(written, [[[shape] if isinstance(shape, tuple) else shape] for shape in shapes], weight)


def wrong_claims(constraints: Sequence[ShapeConstraint], assignment: NameAssignment) -> list[int]:
    return [place for place, one in enumerate(constraints) if not holds(one, assignment.chosen)]


CALLS = [call({"B": 5, "L": 7, "D": 11}), call({"B": 3, "L": 13, "D": 17})]


def test_majority_of_claims_wins() -> None:
    claims = [
        claim("(p, q)", (5, 7), (3, 13)),
        claim("(p, q, r)", (5, 7, 11), (3, 13, 17)),
        claim("(q, r)", (7, 11), (13, 17)),
        claim("(r, p)", (5, 11), (3, 17)),
    ]
    assignment = unify(claims, CALLS)
    assert assignment.chosen == {"p": (5, 3), "q": (7, 13), "r": (11, 17)}
    assert wrong_claims(claims, assignment) == [3]
    assert (assignment.supported["p"], assignment.is_known("p")) == (2, True)


def test_number_in_the_code_wins_over_a_majority() -> None:
    calls = [call({}, {"p": 7}), call({}, {"p": 13})]
    claims = [claim("(p, q)", (5, 7), (3, 13)), claim("(p, q)", (5, 7), (3, 13)), claim("(q, p)", (5, 7), (3, 13))]
    assignment = unify(claims, calls)
    assert (assignment.chosen["p"], assignment.from_code) == ((7, 13), frozenset("p"))
    assert wrong_claims(claims, assignment) == [0, 1]


def test_number_that_changes_during_the_call_is_ignored() -> None:
    assert call({}, i=[0, 1, 2]).integers == {}
    assert call({}, n=[4, 4]).integers == {"n": 4}
    assert call({}, {"n": 4}, n=[5]).integers == {}
    assert call({}, P=[0, 9]).integers == {"P": 9}
    assert call({}, P=[0, 9, 10]).integers == {}
    assert call({}, P=[0, 1]).integers == {}
    assert call({}, {"n": 4}).tensors == set()


def test_usual_meaning_decides_a_tie() -> None:
    claims = [claim("(batch, T)", (5, 7), (3, 13)), claim("(T, batch)", (5, 7), (3, 13))]
    assert wrong_claims(claims, unify(claims, CALLS)) == [1]
    claims = [claim("(T, batch)", (5, 7), (3, 13)), claim("(batch, T)", (5, 7), (3, 13))]
    assert wrong_claims(claims, unify(claims, CALLS)) == [0]


def test_two_names_are_preferably_two_sizes() -> None:
    claims = [claim("(p, q)", (5, 7), (3, 13)), claim("(q, r)", (7, 7), (13, 13)), claim("(p, r)", (5, 7), (3, 13))]
    assert wrong_claims(claims, unify(claims, CALLS)) == []


def test_name_may_have_another_size_in_each_call() -> None:
    calls = [call({"Lq": 7, "Lk": 13}), call({"Lq": 7, "Lk": 13})]
    claims = [claim("(T, C)", (7, 11), (13, 11)), claim("(C, T)", (11, 7), (11, 13))]
    assignment = unify(claims, calls)
    assert assignment.chosen == {"T": (7, 13), "C": (11, 11)}
    assert wrong_claims(claims, assignment) == []


def test_one_name_for_two_lengths_in_one_call_is_wrong() -> None:
    claims = [
        claim("(B, T, C)", (5, 7, 11), (3, 13, 17)),
        claim("(B, T)", (5, 7), (3, 13)),
        claim("(B, T, C)", (5, 19, 11), (3, 23, 17)),
    ]
    assert wrong_claims(claims, unify(claims, CALLS)) == [2]


def test_name_is_inferred_from_sums() -> None:
    claims = [
        claim("(B, T)", (5, 7), (3, 13)),
        claim("(B, P+T)", (5, 9), (3, 24)),
        claim("(P+T, T)", (9, 7), (24, 13)),
        claim("(B, P)", (5, 9), (3, 24)),
    ]
    assignment = unify(claims, CALLS)
    assert assignment.chosen["P"] == (2, 11)
    assert wrong_claims(claims, assignment) == [3]


def test_usual_sizes_are_tried_for_ambiguous_claims() -> None:
    claims = [claim("(T, D)", [(7, 11), (11, 7)], [(13, 17), (17, 13)]), claim("(D, T)", (7, 11), (13, 17))]
    assignment = unify(claims, CALLS)
    assert assignment.chosen == {"T": (7, 13), "D": (11, 17)}
    assert wrong_claims(claims, assignment) == [1]


def test_usual_meaning_decides_which_of_two_exchanged_axes_is_wrong() -> None:
    calls = [call({"B": 5, "H": 2, "Dk": 11}), call({"B": 3, "H": 4, "Dk": 17})]
    claims = [claim("(B, H, S, E)", (5, 7, 2, 11), (3, 13, 4, 17)), claim("(S, E)", (7, 11), (13, 17))]
    assignment = unify(claims, calls)
    assert assignment.chosen["S"] == (7, 13)
    assert wrong_claims(claims, assignment) == [0]


def test_unconstrained_names_are_unknown() -> None:
    claims = [claim("(zz, ww)", [(5, 7), (7, 5)], [(3, 13), (13, 3)])]
    assignment = unify(claims, CALLS)
    assert assignment.chosen == {}
    assert wrong_claims(claims, assignment) == []
    assert unify([], CALLS).chosen == {}
    assert unify(claims, []).chosen == {}


def test_numbers_of_one_configuration_match_anything() -> None:
    varied = claim("(B, 12, T)", (5, 2, 7), (3, 4, 13))
    constant = claim("(B, 12, T)", (5, 2, 7), (3, 2, 13))
    assert [axis.kind for axis in varied.shapes[0].axes] == ["name", "any", "name"]
    assert [axis.kind for axis in constant.shapes[0].axes] == ["name", "number", "name"]
    assert claim("(B, 1, T)", (5, 2, 7), (3, 4, 13)).shapes[0].axes[1].kind == "number"


CHOSEN = {"B": (5,), "T": (7,), "H'": (4,), "z": (0,)}


def test_fits() -> None:
    def fit(text: str, shape: Shape) -> bool:
        (documented,) = find_shapes(text)
        return fits(documented.axes, shape, CHOSEN, 0)

    assert fit("(B, T)", (5, 7))
    assert not fit("(B, T)", (7, 5))
    assert not fit("(B, T)", (5, 7, 1))
    assert fit("(B, ?)", (5, 99))
    assert fit("(..., T)", (1, 2, 3, 7))
    assert fit("(B, ..., T)", (5, 7))
    assert not fit("(B, ..., T)", (5,))
    assert not fit("(..., T)", (1, 2, 3, 8))
    assert fit("(..., T, ...)", (1, 2))
    assert fit("(B, 2*T)", (5, 14))
    assert fit("(B, 2H')", (5, 8))
    assert fit("(B, T/z)", (5, 3))
    assert fit("(B, unknown)", (5, 3))
    assert fit("(B, 3)", (5, 3))
    assert not fit("(B, 3)", (5, 4))


def test_axis_size() -> None:
    for text, expected in {
        "B": 5,
        "3": 3,
        "B*T": 35,
        "T-B": 2,
        "?": None,
        "...": None,
        "B*x": None,
        "T/z": None,
    }.items():
        axis = parse_axis(text)
        assert axis is not None
        assert axis_size(axis, CHOSEN, 0) == expected, text


SIZES = [(5, 3), (7, 13), (11, 17), (2, 19)]
"""The sizes of four axes in two calls."""
AXES = "abcd"
NAMES = ("p", "qq", "Z", "foo", "m1", "Kx", "uu", "w")
"""Names without a usual meaning."""


@st.composite
def consistent(draw: st.DrawFn) -> list[list[int]]:
    """Draw shapes as lists of axis numbers, such that the size of every axis can be inferred."""
    shapes = draw(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), min_size=2, max_size=8))
    return [*shapes, [0, 1, 2, 3], [3, 1, 2, 0]]


def constraints(
    shapes: Sequence[Sequence[int]], observed: Sequence[Sequence[int]], names: Sequence[str]
) -> list[ShapeConstraint]:
    return [
        claim(
            f"({', '.join(names[axis] for axis in shape)},)",
            *(tuple(SIZES[axis][run] for axis in real) for run in (0, 1)),
        )
        for shape, real in zip(shapes, observed, strict=True)
    ]


@given(consistent(), st.permutations(NAMES))
def test_consistent_claims_hold_for_any_names(shapes: list[list[int]], names: list[str]) -> None:
    claims = constraints(shapes, shapes, names)
    assignment = unify(claims, CALLS)
    assert wrong_claims(claims, assignment) == []
    assert assignment.chosen == {names[axis]: SIZES[axis] for axis in {axis for shape in shapes for axis in shape}}


@given(st.permutations(range(4)), st.permutations(["batch", "n_heads", "T", "head_dim", "d_model", "B", "nh", "C"]))
def test_consistent_claims_hold_with_usual_names_of_unusual_sizes(order: list[int], names: list[str]) -> None:
    shapes = [order, order[:3], order[1:], order[:2]]
    claims = constraints(shapes, shapes, names)
    assert wrong_claims(claims, unify(claims, CALLS)) == []


@given(consistent(), st.permutations(NAMES), st.data())
def test_swapped_axes_among_three_claims_are_found(
    shapes: list[list[int]], names: list[str], data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(shapes) - 1))
    faulty = shapes[place]
    pairs = [
        (one, other)
        for one, other in itertools.combinations(range(len(faulty)), 2)
        if faulty[one] != faulty[other]
        and all(
            sum(axis in shape for at, shape in enumerate(shapes) if at != place) >= 2
            for axis in (faulty[one], faulty[other])
        )
    ]
    assume(pairs)
    one, other = data.draw(st.sampled_from(pairs))
    documented = [list(shape) for shape in shapes]
    documented[place][one], documented[place][other] = documented[place][other], documented[place][one]
    claims = constraints(documented, shapes, names)
    assert place in wrong_claims(claims, unify(claims, CALLS))


def test_many_names_are_unified() -> None:
    rng = random.Random(0)
    names = [f"x{number}" for number in range(12)]
    real = {name: (rng.randrange(2, 90), rng.randrange(2, 90)) for name in names}
    claims = []
    for _ in range(40):
        shape = rng.sample(names, 4)
        claims.append(claim(f"({', '.join(shape)})", *(tuple(real[name][run] for name in shape) for run in (0, 1))))
    faulty = rng.sample(names, 4)
    claims.append(
        claim(f"({', '.join(reversed(faulty))})", *(tuple(real[name][run] for name in faulty) for run in (0, 1)))
    )
    assignment = unify(claims, CALLS)
    assert wrong_claims(claims, assignment) == [40]
    assert assignment.chosen == real


def test_tensor_argument_is_not_an_integer() -> None:
    invocation = Invocation(FUNCTION, {"q": TensorValue((2,), "float32"), "n": 3}, {"m": 4, "q": 5}, 0)
    function_call = FunctionCall({}, invocation, ())
    assert (function_call.integers, function_call.tensors) == ({"m": 4, "n": 3}, {"q"})


def test_alternative_of_the_right_rank_is_used() -> None:
    both = claim("(L, E) or (B, L, E)", (5, 7, 11), (3, 13, 17))
    assert isinstance(both.sole, ShapeText)
    assert both.sole.text == "(B, L, E)"
    assert unify([both], CALLS).chosen == {"B": (5, 3), "L": (7, 13), "E": (11, 17)}


def chunks(length: int, *widths: int, text: str = "(p, w)") -> tuple[ShapeConstraint, list[FunctionCall]]:
    """Return the constraint of a shape that a loop makes in chunks of these widths, without the remainder."""
    calls = [call({"L": length}, {"w": max(widths)})]
    claimed = constrain(list(find_shapes(text)), [[[(5, width)] for width in widths]])
    return without_remainders(claimed, calls), calls


def test_last_chunk_may_be_smaller() -> None:
    for length, widths in ((13, (4, 4, 4, 1)), (7, (4, 3)), (13, (4, 4, 4, 1, 4, 4, 4, 1)), (8, (4, 4))):
        claimed, calls = chunks(length, *widths)
        assert not wrong_claims([claimed], unify([claimed], calls))


def test_other_smaller_shapes_are_no_remainders() -> None:
    for length, widths in ((13, (4, 3)), (13, (4, 1, 2)), (4, (4, 1)), (13, (13, 11))):
        claimed, calls = chunks(length, *widths)
        assert wrong_claims([claimed], unify([claimed], calls)) == [0]

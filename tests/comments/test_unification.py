"""The sizes of an author's own axis names are inferred from the documented and observed shapes alone."""

import itertools
import random
from collections.abc import Mapping, Sequence

from hypothesis import assume, given
from hypothesis import strategies as st

from attnshape.comments.notation import ShapeText, find_shapes, parse_axis
from attnshape.comments.observed_shapes import FunctionCall, Shape
from attnshape.comments.unification import NameAssignment, ShapeConstraint, axis_size, constrain, fits, holds, unify
from attnshape.observation.forms import FunctionId
from attnshape.observation.watch import Binding, Invocation, TensorValue

FUNCTION = FunctionId("code.py", "f", 1)


def call(
    numbers: Mapping[str, int], arguments: Mapping[str, int] | None = None, **bound: Sequence[int]
) -> FunctionCall:
    """Return a call at some sizes, with the whole numbers that are its arguments or that it binds one after another."""
    made = Invocation(FUNCTION, dict(arguments or {}), {}, 0)
    for name, values in bound.items():
        made.bindings += [Binding(1, 0, name, value) for value in values]
    return FunctionCall(numbers, made, ())


def said(text: str, *shapes: Shape | list[Shape], weight: float = 1.0) -> ShapeConstraint:
    """Return what is written of one tensor in each call; a list has tensors of which any may be meant."""
    written = list(find_shapes(text))
    return constrain(written, [[[one] if isinstance(one, tuple) else one] for one in shapes], weight)


def wrong(constraints: Sequence[ShapeConstraint], assignment: NameAssignment) -> list[int]:
    return [place for place, one in enumerate(constraints) if not holds(one, assignment.chosen)]


CALLS = [call({"B": 5, "L": 7, "D": 11}), call({"B": 3, "L": 13, "D": 17})]


def test_the_majority_is_right() -> None:
    claims = [
        said("(p, q)", (5, 7), (3, 13)),
        said("(p, q, r)", (5, 7, 11), (3, 13, 17)),
        said("(q, r)", (7, 11), (13, 17)),
        said("(r, p)", (5, 11), (3, 17)),
    ]
    assignment = unify(claims, CALLS)
    assert assignment.chosen == {"p": (5, 3), "q": (7, 13), "r": (11, 17)}
    assert wrong(claims, assignment) == [3]
    assert (assignment.supported["p"], assignment.is_known("p")) == (2, True)


def test_the_code_s_own_number_is_right_against_a_majority() -> None:
    calls = [call({}, {"p": 7}), call({}, {"p": 13})]
    claims = [said("(p, q)", (5, 7), (3, 13)), said("(p, q)", (5, 7), (3, 13)), said("(q, p)", (5, 7), (3, 13))]
    assignment = unify(claims, calls)
    assert (assignment.chosen["p"], assignment.from_code) == ((7, 13), frozenset("p"))
    assert wrong(claims, assignment) == [0, 1]


def test_a_number_that_changes_in_the_call_is_not_the_code_s_own() -> None:
    assert call({}, i=[0, 1, 2]).integers == {}
    assert call({}, n=[4, 4]).integers == {"n": 4}
    assert call({}, {"n": 4}, n=[5]).integers == {}
    assert call({}, P=[0, 9]).integers == {"P": 9}
    assert call({}, P=[0, 9, 10]).integers == {}
    assert call({}, P=[0, 1]).integers == {}
    assert call({}, {"n": 4}).tensors == set()


def test_usual_meanings_decide_a_tie() -> None:
    claims = [said("(batch, T)", (5, 7), (3, 13)), said("(T, batch)", (5, 7), (3, 13))]
    assert wrong(claims, unify(claims, CALLS)) == [1]
    claims = [said("(T, batch)", (5, 7), (3, 13)), said("(batch, T)", (5, 7), (3, 13))]
    assert wrong(claims, unify(claims, CALLS)) == [0]


def test_two_letters_are_rather_two_sizes_than_one() -> None:
    claims = [said("(p, q)", (5, 7), (3, 13)), said("(q, r)", (7, 7), (13, 13)), said("(p, r)", (5, 7), (3, 13))]
    assert wrong(claims, unify(claims, CALLS)) == []


def test_a_letter_may_be_another_size_in_each_call() -> None:
    calls = [call({"Lq": 7, "Lk": 13}), call({"Lq": 7, "Lk": 13})]
    claims = [said("(T, C)", (7, 11), (13, 11)), said("(C, T)", (11, 7), (11, 13))]
    assignment = unify(claims, calls)
    assert assignment.chosen == {"T": (7, 13), "C": (11, 11)}
    assert wrong(claims, assignment) == []


def test_one_letter_for_two_lengths_in_one_call_is_wrong() -> None:
    claims = [
        said("(B, T, C)", (5, 7, 11), (3, 13, 17)),
        said("(B, T)", (5, 7), (3, 13)),
        said("(B, T, C)", (5, 19, 11), (3, 23, 17)),
    ]
    assert wrong(claims, unify(claims, CALLS)) == [2]


def test_sums_give_a_letter_that_stands_nowhere_alone() -> None:
    claims = [
        said("(B, T)", (5, 7), (3, 13)),
        said("(B, P+T)", (5, 9), (3, 24)),
        said("(P+T, T)", (9, 7), (24, 13)),
        said("(B, P)", (5, 9), (3, 24)),
    ]
    assignment = unify(claims, CALLS)
    assert assignment.chosen["P"] == (2, 11)
    assert wrong(claims, assignment) == [3]


def test_usual_sizes_are_tried_where_every_claim_may_mean_several() -> None:
    claims = [said("(T, D)", [(7, 11), (11, 7)], [(13, 17), (17, 13)]), said("(D, T)", (7, 11), (13, 17))]
    assignment = unify(claims, CALLS)
    assert assignment.chosen == {"T": (7, 13), "D": (11, 17)}
    assert wrong(claims, assignment) == [1]


def test_nothing_is_known_of_letters_that_nothing_says() -> None:
    claims = [said("(zz, ww)", [(5, 7), (7, 5)], [(3, 13), (13, 3)])]
    assignment = unify(claims, CALLS)
    assert assignment.chosen == {}
    assert wrong(claims, assignment) == []
    assert unify([], CALLS).chosen == {}
    assert unify(claims, []).chosen == {}


def test_numbers_of_the_author_s_own_configuration_are_left_open() -> None:
    varied = said("(B, 12, T)", (5, 2, 7), (3, 4, 13))
    constant = said("(B, 12, T)", (5, 2, 7), (3, 2, 13))
    assert [one.kind for one in varied.shapes[0].axes] == ["name", "any", "name"]
    assert [one.kind for one in constant.shapes[0].axes] == ["name", "number", "name"]
    assert said("(B, 1, T)", (5, 2, 7), (3, 4, 13)).shapes[0].axes[1].kind == "number"


CHOSEN = {"B": (5,), "T": (7,), "H'": (4,), "z": (0,)}


def test_a_shape_fits_what_is_written() -> None:
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


def test_the_size_of_an_axis() -> None:
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
        one = parse_axis(text)
        assert one is not None
        assert axis_size(one, CHOSEN, 0) == expected, text


SIZES = [(5, 3), (7, 13), (11, 17), (2, 19)]
"""What each of four axes is in two calls."""
AXES = "abcd"
NAMES = ("p", "qq", "Z", "foo", "m1", "Kx", "uu", "w")
"""Names that usually mean nothing."""


@st.composite
def consistent(draw: st.DrawFn) -> list[list[int]]:
    """Draw shapes, by the numbers of their axes, in which each axis stands alone somewhere."""
    shapes = draw(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), min_size=2, max_size=8))
    return [*shapes, [0, 1, 2, 3], [3, 1, 2, 0]]


def constraints(
    shapes: Sequence[Sequence[int]], observed: Sequence[Sequence[int]], names: Sequence[str]
) -> list[ShapeConstraint]:
    return [
        said(
            f"({', '.join(names[axis] for axis in shape)},)",
            *(tuple(SIZES[axis][run] for axis in real) for run in (0, 1)),
        )
        for shape, real in zip(shapes, observed, strict=True)
    ]


@given(consistent(), st.permutations(NAMES))
def test_consistent_claims_hold_whatever_the_letters(shapes: list[list[int]], names: list[str]) -> None:
    claims = constraints(shapes, shapes, names)
    assignment = unify(claims, CALLS)
    assert wrong(claims, assignment) == []
    assert assignment.chosen == {names[axis]: SIZES[axis] for axis in {axis for shape in shapes for axis in shape}}


@given(st.permutations(range(4)), st.permutations(["batch", "n_heads", "T", "head_dim", "d_model", "B", "nh", "C"]))
def test_consistent_claims_hold_with_usual_names_of_unusual_sizes(order: list[int], names: list[str]) -> None:
    shapes = [order, order[:3], order[1:], order[:2]]
    claims = constraints(shapes, shapes, names)
    assert wrong(claims, unify(claims, CALLS)) == []


@given(consistent(), st.permutations(NAMES), st.data())
def test_two_axes_exchanged_among_three_claims_or_more_are_found(
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
    written = [list(shape) for shape in shapes]
    written[place][one], written[place][other] = written[place][other], written[place][one]
    claims = constraints(written, shapes, names)
    assert place in wrong(claims, unify(claims, CALLS))


def test_many_letters_take_no_long_time() -> None:
    rng = random.Random(0)
    names = [f"x{number}" for number in range(12)]
    real = {name: (rng.randrange(2, 90), rng.randrange(2, 90)) for name in names}
    claims = []
    for _ in range(40):
        shape = rng.sample(names, 4)
        claims.append(said(f"({', '.join(shape)})", *(tuple(real[name][run] for name in shape) for run in (0, 1))))
    faulty = rng.sample(names, 4)
    claims.append(
        said(f"({', '.join(reversed(faulty))})", *(tuple(real[name][run] for name in faulty) for run in (0, 1)))
    )
    assignment = unify(claims, CALLS)
    assert wrong(claims, assignment) == [40]
    assert assignment.chosen == real


def test_what_a_variable_is_counts_as_a_tensor() -> None:
    made = Invocation(FUNCTION, {"q": TensorValue((2,), "float32"), "n": 3}, {"m": 4, "q": 5}, 0)
    one = FunctionCall({}, made, ())
    assert (one.integers, one.tensors) == ({"m": 4, "n": 3}, {"q"})


def test_a_group_of_the_right_rank_is_the_one_that_votes() -> None:
    both = said("(L, E) or (B, L, E)", (5, 7, 11), (3, 13, 17))
    assert isinstance(both.sole, ShapeText)
    assert both.sole.text == "(B, L, E)"
    assert unify([both], CALLS).chosen == {"B": (5, 3), "L": (7, 13), "E": (11, 17)}

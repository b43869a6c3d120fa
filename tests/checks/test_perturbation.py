"""Where a change of one token, head or batch element is found again, and where it first is at other places."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnshape.checks.attention.perturbation import (
    PerturbationDiff,
    changed_indices,
    differs,
    divergences,
    is_at_one_index,
)
from attnshape.checks.interventions.experiment import ReplayRun
from tests.checks.subjects import normal, replayed

NUMBERS = {"B": 5, "H": 7, "L": 11, "Dk": 13}


def moved_by(function, index, axis, **tensors):
    """Return what moves where the first tensor is another at one index of an axis."""
    name, value = next(iter(tensors.items()))
    changed = value.clone()
    changed.select(axis, index).add_(1)
    base = replayed(function, **{other: tensor.clone() for other, tensor in tensors.items()})
    return PerturbationDiff(base, replayed(function, **{**tensors, name: changed}), 1e-9)


def parted(function, letter, index, axis, *shape):
    moved = moved_by(function, index, axis, x=normal(*shape))
    return list(divergences(moved, letter, index, NUMBERS, ["x"]))


def mask_at(shape, axis, indices):
    mask = torch.zeros(shape, dtype=torch.bool)
    mask.movedim(axis, 0)[list(indices)] = True
    return mask


@given(st.integers(0, 6), st.permutations((5, 7, 11)))
def test_one_index_of_its_axis_stays(index, shape):
    axis = list(shape).index(7)
    assert is_at_one_index(mask_at(shape, axis, [index]), "H", index, NUMBERS) == (True, axis)
    assert is_at_one_index(mask_at(shape, axis, [(index + 1) % 7]), "H", index, NUMBERS) == (False, axis)
    assert is_at_one_index(mask_at(shape, axis, range(7)), "H", index, NUMBERS) == (False, axis)


@given(st.integers(0, 6), st.integers(0, 4), st.booleans())
def test_one_index_of_a_folded_axis_stays_either_way(head, batch, batch_outside):
    rows = [b * 7 + head if batch_outside else head * 5 + b for b in range(5)]
    assert is_at_one_index(mask_at((35, 11), 0, rows), "H", head, NUMBERS)[0] is True
    rows = [batch * 7 + h if batch_outside else h * 5 + batch for h in range(7)]
    assert is_at_one_index(mask_at((35, 11), 0, rows), "B", batch, NUMBERS)[0] is True


def test_an_index_within_a_product_of_three_stays():
    rows = [(b * 7 + 3) * 11 + token for b in range(5) for token in range(11)]
    assert is_at_one_index(mask_at((385, 2), 0, rows), "H", 3, NUMBERS) == (True, 0)
    assert is_at_one_index(mask_at((385, 2), 0, rows), "H", 2, NUMBERS) == (False, 0)


def test_nothing_is_told_where_no_axis_stands_for_it():
    assert is_at_one_index(mask_at((7, 13), 0, [1, 2]), "L", 1, NUMBERS) == (None, -1)
    assert is_at_one_index(torch.zeros(5, dtype=torch.bool), "H", 1, NUMBERS) == (None, -1)


def test_an_axis_that_no_symbol_explains_may_stand_for_it():
    mask = mask_at((11, 17), 1, [15]) & mask_at((11, 17), 0, range(11))
    assert is_at_one_index(mask, "L", 9, NUMBERS)[0] is True
    assert is_at_one_index(mask_at((11, 17), 1, [14, 15]), "L", 9, NUMBERS)[0] is False


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10))
def test_what_keeps_its_place_never_parts(token):
    def aligned(x):
        heads = (x @ normal(91, 91)).unflatten(-1, (7, 13)).transpose(1, 2)
        folded = heads.flatten(0, 1) * 2
        back = folded.unflatten(0, (5, 7)).transpose(1, 2).flatten(2)
        outside = heads.transpose(0, 1).flatten(0, 1)
        return back.relu() + x, outside.chunk(13, dim=-1), x.sum((0, 1))

    assert parted(lambda x: aligned(x)[0], "L", token, 1, 5, 11, 91) == []
    assert parted(lambda x: (aligned(x)[0], *aligned(x)[1]), "L", token, 1, 5, 11, 91) == []


def test_heads_split_without_a_transpose_part_at_the_view():
    def scrambled(x):
        doubled = x * 2
        heads = doubled.view(5, 7, 11, 13)
        return (heads * 3).softmax(-1)

    (found,) = parted(scrambled, "L", 3, 1, 5, 11, 91)
    assert found.event.name == "view"
    assert found.ref.order == 2
    assert found.axis == 2
    assert 3 not in found.indices or len(found.indices) > 1
    assert found.summary is None


def test_a_permutation_parts_with_the_other_place():
    (found,) = parted(lambda x: x.roll(2, 1) + 1, "L", 3, 1, 5, 11, 2)
    assert found.event.name == "roll"
    assert found.indices == (5,)
    assert found.indices_text == "index 5"
    (found,) = parted(lambda x: x.flip(1), "L", 3, 1, 5, 11, 2)
    assert found.indices == (7,)


def test_what_is_found_everywhere_is_shortened():
    (found,) = parted(lambda x: x.softmax(1), "L", 3, 1, 5, 11, 2)
    assert found.indices == tuple(range(11))
    assert found.indices_text == "indices 0, 1, 2, 3, 4, 5, …"


def test_what_is_behind_a_parting_is_passed_over():
    def twice(x):
        rolled = x.roll(1, 1)
        return rolled.roll(1, 1), x.flip(1)

    found = parted(twice, "L", 3, 1, 5, 11, 2)
    assert [one.event.name for one in found] == ["roll", "flip"]


def test_a_summary_is_named_where_it_is_spread_again():
    def spread(x):
        mean = x.mean(1)
        again = (mean * 2)[:, None].expand(5, 11, 2)
        return again + x

    (found,) = parted(spread, "L", 3, 1, 5, 11, 2)
    assert found.event.name == "add"
    assert found.summary is not None
    assert found.summary.name == "mean"


def test_a_change_is_followed_from_a_result_too():
    def function(x):
        first = x * 2
        return first.flip(1), x.roll(1, 1)

    moved = moved_by(function, 3, 1, x=normal(5, 11, 2))
    found = list(divergences(moved, "L", 3, NUMBERS, [moved.base.events[0].refs[0]]))
    assert [one.event.name for one in found] == ["flip"]


def test_moved_knows_where_results_differ():
    moved = moved_by(lambda x: (x * 2, x.sum(-1)), 2, 0, x=normal(4, 3))
    double, total = (event.refs[0] for event in moved.base.events)
    assert moved.comparable
    assert changed_indices(moved.mask(double), 0) == {2}
    assert changed_indices(moved.mask(double), 1) == {0, 1, 2}
    assert moved.any(total)
    assert [changed_indices(mask, 0) for _, mask in moved.returned()][-1] == {2}


def test_other_steps_are_not_comparable():
    moved = moved_by(lambda x: x.relu() if x.sum() > 1e3 else x.tanh(), 0, 0, x=normal(4, 3) + 499)
    assert isinstance(moved.base, ReplayRun)
    base, changed = replayed(lambda x: x.relu(), x=normal(3)), replayed(lambda x: x.tanh(), x=normal(3))
    assert not PerturbationDiff(base, changed, 1e-9).comparable


def test_what_differs():
    nan, inf = float("nan"), float("inf")
    before = torch.tensor([1.0, nan, inf, -inf, 0.0, 1e-12])
    assert not differs(before, before.clone(), 1e-9).any()
    after = torch.tensor([1.0 + 1e-6, 0.0, -inf, -inf, 1e-3, 0.0], dtype=torch.float64)
    assert differs(before.double(), after, 1e-9).tolist() == [True, True, True, False, True, False]
    assert differs(torch.tensor([1, 2]), torch.tensor([1, 3]), 1e-9).tolist() == [False, True]
    assert differs(torch.ones(2), torch.ones(3), 1e-9).tolist() == [True, True]
    assert not differs(torch.full((2,), nan), torch.full((2,), nan), 1e-9).any()
    assert differs(torch.zeros(2), torch.ones(2) * 1e-3, 1e-9).all()

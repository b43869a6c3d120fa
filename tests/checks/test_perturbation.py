"""A change of one token, head or batch element is followed, and the first result with it at another index is found."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnshape.checks.attention.perturbation import (
    PerturbationDiff,
    changed_indices,
    differs,
    divergences,
    is_at_one_index,
    other_numbers,
    other_pattern,
)
from attnshape.checks.interventions.experiment import ReplayRun
from tests.checks.subjects import normal, replayed

INTEGERS = ("uint8", "int8", "int32", "int64", "uint16", "uint32")
NUMBERS = {"B": 5, "H": 7, "L": 11, "Dk": 13}


@pytest.mark.parametrize("dtype", INTEGERS)
def test_other_integers_differ_and_stay_in_range(dtype: str) -> None:
    kind = getattr(torch, dtype)
    value = torch.tensor([0, 1, min(torch.iinfo(kind).max, 2**31)]).to(kind)
    other = other_numbers(value)
    assert other.dtype == kind
    assert bool((other.long() != value.long()).all())
    assert int(other.long().max()) <= int(value.long().max())


@pytest.mark.parametrize("value", [torch.ones(2, 3), torch.zeros(2, 3).T, torch.ones(3, dtype=torch.bool)])
def test_other_pattern_of_a_constant_mask_has_both_numbers(value: torch.Tensor) -> None:
    other = other_pattern(value)
    assert (other.shape, other.dtype) == (value.shape, value.dtype)
    assert set(other.flatten().tolist()) == {0, 1}


def perturbation_diff(function, index, axis, **tensors):
    """Return the difference that changing the first tensor at one index of an axis makes."""
    name, value = next(iter(tensors.items()))
    changed = value.clone()
    changed.select(axis, index).add_(1)
    base = replayed(function, **{other: tensor.clone() for other, tensor in tensors.items()})
    return PerturbationDiff(base, replayed(function, **{**tensors, name: changed}), 1e-9)


def divergences_of(function, symbol, index, axis, *shape):
    diff = perturbation_diff(function, index, axis, x=normal(*shape))
    return list(divergences(diff, symbol, index, NUMBERS, ["x"]))


def mask_at(shape, axis, indices):
    mask = torch.zeros(shape, dtype=torch.bool)
    mask.movedim(axis, 0)[list(indices)] = True
    return mask


@given(st.integers(0, 6), st.permutations((5, 7, 11)))
def test_change_stays_at_one_index(index, shape):
    axis = list(shape).index(7)
    assert is_at_one_index(mask_at(shape, axis, [index]), "H", index, NUMBERS) == (True, axis)
    assert is_at_one_index(mask_at(shape, axis, [(index + 1) % 7]), "H", index, NUMBERS) == (False, axis)
    assert is_at_one_index(mask_at(shape, axis, range(7)), "H", index, NUMBERS) == (False, axis)


@given(st.integers(0, 6), st.integers(0, 4), st.booleans())
def test_change_stays_at_one_index_of_a_folded_axis(head, batch, batch_outside):
    rows = [b * 7 + head if batch_outside else head * 5 + b for b in range(5)]
    assert is_at_one_index(mask_at((35, 11), 0, rows), "H", head, NUMBERS)[0] is True
    rows = [batch * 7 + h if batch_outside else h * 5 + batch for h in range(7)]
    assert is_at_one_index(mask_at((35, 11), 0, rows), "B", batch, NUMBERS)[0] is True


def test_change_stays_at_one_index_of_a_triple_product():
    rows = [(b * 7 + 3) * 11 + token for b in range(5) for token in range(11)]
    assert is_at_one_index(mask_at((385, 2), 0, rows), "H", 3, NUMBERS) == (True, 0)
    assert is_at_one_index(mask_at((385, 2), 0, rows), "H", 2, NUMBERS) == (False, 0)


def test_no_answer_without_a_matching_axis():
    assert is_at_one_index(mask_at((7, 13), 0, [1, 2]), "L", 1, NUMBERS) == (None, -1)
    assert is_at_one_index(torch.zeros(5, dtype=torch.bool), "H", 1, NUMBERS) == (None, -1)


def test_unexplained_axis_may_match():
    mask = mask_at((11, 17), 1, [15]) & mask_at((11, 17), 0, range(11))
    assert is_at_one_index(mask, "L", 9, NUMBERS)[0] is True
    assert is_at_one_index(mask_at((11, 17), 1, [14, 15]), "L", 9, NUMBERS)[0] is False


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10))
def test_aligned_change_never_diverges(token):
    def aligned(x):
        heads = (x @ normal(91, 91)).unflatten(-1, (7, 13)).transpose(1, 2)
        folded = heads.flatten(0, 1) * 2
        back = folded.unflatten(0, (5, 7)).transpose(1, 2).flatten(2)
        outside = heads.transpose(0, 1).flatten(0, 1)
        return back.relu() + x, outside.chunk(13, dim=-1), x.sum((0, 1))

    assert divergences_of(lambda x: aligned(x)[0], "L", token, 1, 5, 11, 91) == []
    assert divergences_of(lambda x: (aligned(x)[0], *aligned(x)[1]), "L", token, 1, 5, 11, 91) == []


def test_missing_transpose_diverges_at_the_view():
    def scrambled(x):
        doubled = x * 2
        heads = doubled.view(5, 7, 11, 13)
        return (heads * 3).softmax(-1)

    (found,) = divergences_of(scrambled, "L", 3, 1, 5, 11, 91)
    assert found.event.name == "view"
    assert found.ref.order == 2
    assert found.axis == 2
    assert 3 not in found.indices or len(found.indices) > 1
    assert found.summary is None


def test_permutation_diverges_with_the_other_index():
    (found,) = divergences_of(lambda x: x.roll(2, 1) + 1, "L", 3, 1, 5, 11, 2)
    assert found.event.name == "roll"
    assert found.indices == (5,)
    assert found.indices_text == "index 5"
    (found,) = divergences_of(lambda x: x.flip(1), "L", 3, 1, 5, 11, 2)
    assert found.indices == (7,)


def test_many_indices_are_shortened():
    (found,) = divergences_of(lambda x: x.softmax(1), "L", 3, 1, 5, 11, 2)
    assert found.indices == tuple(range(11))
    assert found.indices_text == "indices 0, 1, 2, 3, 4, 5, …"


def test_results_after_a_divergence_are_skipped():
    def twice(x):
        rolled = x.roll(1, 1)
        return rolled.roll(1, 1), x.flip(1)

    found = divergences_of(twice, "L", 3, 1, 5, 11, 2)
    assert [divergence.event.name for divergence in found] == ["roll", "flip"]


def test_broadcast_summary_is_named():
    def spread(x):
        mean = x.mean(1)
        again = (mean * 2)[:, None].expand(5, 11, 2)
        return again + x

    (found,) = divergences_of(spread, "L", 3, 1, 5, 11, 2)
    assert found.event.name == "add"
    assert found.summary is not None
    assert found.summary.name == "mean"


def test_change_is_followed_from_a_result():
    def function(x):
        first = x * 2
        return first.flip(1), x.roll(1, 1)

    diff = perturbation_diff(function, 3, 1, x=normal(5, 11, 2))
    found = list(divergences(diff, "L", 3, NUMBERS, [diff.base.events[0].refs[0]]))
    assert [divergence.event.name for divergence in found] == ["flip"]


def test_perturbation_diff_has_the_changed_indices():
    diff = perturbation_diff(lambda x: (x * 2, x.sum(-1)), 2, 0, x=normal(4, 3))
    double, total = (event.refs[0] for event in diff.base.events)
    assert diff.comparable
    assert changed_indices(diff.mask(double), 0) == {2}
    assert changed_indices(diff.mask(double), 1) == {0, 1, 2}
    assert diff.any(total)
    assert [changed_indices(mask, 0) for _, mask in diff.returned()][-1] == {2}


def test_runs_with_other_steps_are_not_comparable():
    diff = perturbation_diff(lambda x: x.relu() if x.sum() > 1e3 else x.tanh(), 0, 0, x=normal(4, 3) + 499)
    assert isinstance(diff.base, ReplayRun)
    base, changed = replayed(lambda x: x.relu(), x=normal(3)), replayed(lambda x: x.tanh(), x=normal(3))
    assert not PerturbationDiff(base, changed, 1e-9).comparable


def test_differing_elements():
    nan, inf = float("nan"), float("inf")
    before = torch.tensor([1.0, nan, inf, -inf, 0.0, 1e-12])
    assert not differs(before, before.clone(), 1e-9).any()
    after = torch.tensor([1.0 + 1e-6, 0.0, -inf, -inf, 1e-3, 0.0], dtype=torch.float64)
    assert differs(before.double(), after, 1e-9).tolist() == [True, True, True, False, True, False]
    assert differs(torch.tensor([1, 2]), torch.tensor([1, 3]), 1e-9).tolist() == [False, True]
    assert differs(torch.ones(2), torch.ones(3), 1e-9).tolist() == [True, True]
    assert not differs(torch.full((2,), nan), torch.full((2,), nan), 1e-9).any()
    assert differs(torch.zeros(2), torch.ones(2) * 1e-3, 1e-9).all()

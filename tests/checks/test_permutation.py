"""Orders of a batch: which results are another one in that order, and which elements two runs have in common."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from attnshape.checks.attention.permutation import (
    changed_elements,
    cycle,
    element_axes,
    is_reordered,
    reorder,
    reordered,
)
from tests.checks.subjects import normal, replayed

NUMBERS = {"B": 5, "H": 3}


@pytest.mark.parametrize("number", range(2, 12))
def test_no_element_keeps_its_place(number: int) -> None:
    order = cycle(number)
    assert sorted(order) == list(range(number))
    assert all(element != place for place, element in enumerate(order))


@pytest.mark.parametrize("number", range(4, 12))
def test_other_rules_of_exchange_are_told_apart(number: int) -> None:
    order = cycle(number)
    shifts = [[(element + shift) % number for element in range(number)] for shift in range(1, number)]
    constants = [[0] * number, [number - 1] * number]
    for rule in (*shifts, *constants, list(range(number))[::-1]):
        assert [order[element] for element in rule] != [rule[element] for element in order]


@pytest.mark.parametrize("inner", [1, 3])
def test_folded_axis_is_reordered_by_element(inner: int) -> None:
    value = normal(2, 15, 4)
    parts = value.unflatten(1, (5, 3) if inner == 3 else (3, 5))
    order = [4, 3, 2, 1, 0]
    expected = (parts[:, order] if inner == 3 else parts[:, :, order]).flatten(1, 2)
    assert torch.equal(reordered(value, 1, order, inner), expected)
    assert torch.equal(reorder(1, order, inner)(value), expected)


def test_elements_may_be_repeated() -> None:
    assert reordered(torch.arange(3) > 0, 0, [0, 0, 2]).tolist() == [False, False, True]


def test_axes_of_elements() -> None:
    assert list(element_axes((7, 5, 15), "B", NUMBERS)) == [(1, 1)]
    assert list(element_axes((7, 30), "B", NUMBERS)) == [(1, 1), (1, 2), (1, 3), (1, 6)]
    assert list(element_axes((7, 3), "B", NUMBERS)) == []


def test_reordered_results_are_recognised() -> None:
    value, order = normal(5, 4), cycle(5)
    folds = list(element_axes((5, 4), "B", NUMBERS))
    assert is_reordered(value, value[order] + 1e-13, order, folds, 1e-9)
    assert not is_reordered(value, value, order, folds, 1e-9)
    assert not is_reordered(value, value[order][:, :3], order, folds, 1e-9)


@pytest.mark.parametrize("function", [torch.exp, lambda x: x.repeat_interleave(3, dim=0), lambda x: x.repeat(3, 1)])
def test_changed_elements_of_two_runs(function: Callable[[Tensor], Tensor]) -> None:
    before = normal(5, 4)
    after = before.clone()
    after[2] += 1
    runs = [replayed(lambda x: function(x), x=value) for value in (before, after)]
    assert changed_elements(runs[0], runs[1], "B", NUMBERS, 1e-9) == {2}
    assert changed_elements(runs[0], runs[0], "B", NUMBERS, 1e-9) == set()


def test_results_without_an_axis_of_elements_do_not_count() -> None:
    runs = [replayed(lambda x: x.sum(), x=normal(5, 4, seed=seed)) for seed in (0, 1)]
    assert changed_elements(runs[0], runs[1], "B", NUMBERS, 1e-9) == set()

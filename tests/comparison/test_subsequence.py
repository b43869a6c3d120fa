"""The subsequence by which long traces are aligned: common, in order, long, and found in linear work."""

from __future__ import annotations

import itertools
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnshape.comparison import align as alignment
from attnshape.comparison import subsequence
from attnshape.comparison.outline import Outline
from attnshape.comparison.subsequence import common_subsequence
from attnshape.model.difference import OutlineStep, OutlineTensor
from attnshape.model.trace import Reference
from tests.work import calls_made_by

items = st.lists(st.integers(0, 4), max_size=20)


def length_of_the_longest(old: list[int], new: list[int]) -> int:
    @cache
    def longest(i: int, j: int) -> int:
        if i == len(old) or j == len(new):
            return 0
        return max(longest(i + 1, j), longest(i, j + 1), (old[i] == new[j]) + longest(i + 1, j + 1))

    return longest(0, 0)


@settings(max_examples=100, deadline=None)
@given(old=items, new=items)
def test_it_is_common_and_in_order(old, new):
    pairs = common_subsequence(old, new)
    assert all(old[i] == new[j] for i, j in pairs)
    assert all(i < later_i and j < later_j for (i, j), (later_i, later_j) in itertools.pairwise(pairs))


@settings(max_examples=100, deadline=None)
@given(old=items, new=items)
def test_it_is_the_longest_of_items_that_are_repeated(old, new):
    old, new = old * 2, new * 2
    assert len(common_subsequence(old, new)) == length_of_the_longest(old, new)


@settings(max_examples=100, deadline=None)
@given(old=items, new=items, edits=st.integers(1, 5))
def test_it_is_common_and_in_order_with_few_edits(old, new, edits):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subsequence, "_MOST_EDITS", edits)
        test_it_is_common_and_in_order.hypothesis.inner_test(old, new)


@pytest.mark.parametrize(
    "sides", [lambda n: ([0] * n, [0] * (n - 2)), lambda n: ([0] * n, [1] * n), lambda n: ([0, 1] * n, [1, 0, 0] * n)]
)
def test_the_work_is_linear(sides):
    def work(count: int) -> int:
        return calls_made_by(lambda: common_subsequence(*sides(count)))

    assert work(4000) < 6 * work(1000)


def outline_of(names: list[int], edited: frozenset[int]) -> Outline:
    steps = [
        OutlineStep(
            index=index,
            expression=f"f{name}(x, {name % 7})" if name in edited else f"x{name} * {name}",
            operation=("mul", "add", "softmax")[name % 3],
            uses=(Reference(step=index - 1),) if index > 1 else (Reference(input="x"),),
            outputs=(
                OutlineTensor(
                    name=f"y{name}",
                    dtype="float32",
                    signature="L D",
                    shape=(3, 4),
                    stride=(4, 1),
                    contiguous=True,
                    kind="new",
                    bytes=48,
                ),
            ),
        )
        for index, name in enumerate(names, 1)
    ]
    return Outline(target="f", sizes={"L": 3}, steps=tuple(steps))


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(4, 40),
    removed=st.frozensets(st.integers(0, 39), max_size=6),
    edited=st.frozensets(st.integers(0, 39), max_size=6),
)
def test_long_traces_are_aligned_as_if_every_pair_were_scored(count, removed, edited):
    old = outline_of(list(range(count)), frozenset())
    new = outline_of([name for name in range(count) if name not in removed], edited)
    full = alignment.align(old, new)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(alignment, "_MOST_PAIRS", 200)
        assert alignment.align(old, new) == full

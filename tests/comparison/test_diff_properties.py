"""Properties of comparisons."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from attnshape.comparison.compare import compare
from attnshape.comparison.outline import Outline
from attnshape.model.difference import Difference
from tests.comparison.strategies import anything, code, inserted

Matches = list[tuple[str, int, int]]


def matches(difference: Difference) -> Matches:
    """Return the numbers of the matched steps; 0 if one side has none."""
    return [
        ("same", change.old.index if change.old else 0, change.new.index if change.new else 0)
        for change in difference.steps
    ]


@settings(deadline=None, max_examples=40)
@given(st.one_of(code(), anything()))
def test_nothing_differs_from_itself(outline: Outline) -> None:
    difference = compare(outline, outline)
    assert (difference.kinds, difference.sizes, difference.renamed) == ((), (), ())
    assert not any(one.shown for one in (*difference.inputs, *difference.steps))
    assert [(change.old, change.new) for change in difference.steps] == [(change, change) for change in outline.steps]


@settings(deadline=None, max_examples=40)
@given(code(), code())
def test_swapped_sides_swap_added_and_removed_steps(old: Outline, new: Outline) -> None:
    forward, backward = compare(old, new), compare(new, old)
    swapped = sorted((new, old) for _, old, new in matches(forward))
    assert swapped == sorted((old, new) for _, old, new in matches(backward))
    assert forward.kinds == backward.kinds
    assert {(rename.old, rename.new) for rename in forward.renamed} == {
        (rename.new, rename.old) for rename in backward.renamed
    }


@settings(deadline=None, max_examples=40)
@given(code(), code())
def test_each_step_appears_once_and_in_order(old: Outline, new: Outline) -> None:
    difference = compare(old, new)
    assert sorted(one for _, one, _ in matches(difference) if one) == [step.index for step in old.steps]
    assert [one for _, _, one in matches(difference) if one] == [step.index for step in new.steps]
    assert compare(old, new) == difference


@settings(deadline=None, max_examples=100)
@given(code(), st.data())
def test_inserted_steps_are_only_additions(outline: Outline, data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(1, len(outline.steps) + 1), max_size=4))
    difference = compare(outline, inserted(outline, places))
    shown = [change for change in difference.steps if change.shown]
    assert len(shown) == len(places)
    assert all(
        change.old is None and change.new is not None and "inserted" in change.new.expression for change in shown
    )
    assert difference.kinds == (("steps",) if places else ())


@settings(deadline=None, max_examples=50)
@given(code(), st.integers(0, 11))
def test_removed_step_is_one_removal(outline: Outline, place: int) -> None:
    longer = inserted(outline, [place % (len(outline.steps) + 1) + 1])
    difference = compare(longer, outline)
    assert [change.new is None for change in difference.steps if change.shown] == [True]


@settings(deadline=None, max_examples=50)
@given(anything(), anything())
def test_any_two_outlines_can_be_compared_shown_and_saved(old: Outline, new: Outline) -> None:
    difference = compare(old, new)
    assert difference.to_json()
    assert str(difference)


@given(code())
def test_another_target_name_makes_no_difference(outline: Outline) -> None:
    assert not compare(outline, replace(outline, target="another"))

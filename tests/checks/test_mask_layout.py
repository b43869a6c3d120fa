"""Masks and biases of every layout are aligned with batch, heads, queries and keys, in right and wrong order."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnshape.checks.attention.mask_layouts import MaskLayout
from attnshape.options.claimed_axes import parse_claimed_axes
from tests.checks.subjects import normal

SIZES = {"b": 3, "h": 5, "q": 4, "k": 7, "bh": 15}
SQUARE = {**SIZES, "q": 7}
LAYOUTS = ["k", "q k", "b k", "h k", "b q", "b q k", "h q k", "bh q k", "b h q k", "b 1 1 k", "b 1 q k", "1 h q k"]
LAYOUTS += ["1 1 q k", "b 1 q 1", "b 1 1 1", "h 1 k", "bh 1 k", "1 h 1 1"]


def mask_layout_of(sizes):
    return MaskLayout(sizes["b"], sizes["h"], sizes["q"], sizes["k"])


def by_hand(value, roles, sizes):
    """Expand a tensor to (b, h, q, k), element by element."""
    expanded = torch.empty([sizes[role] for role in "bhqk"], dtype=value.dtype)
    for b, h, q, k in itertools.product(*(range(sizes[role]) for role in "bhqk")):
        index = {"b": b, "h": h, "q": q, "k": k, "bh": b * sizes["h"] + h, "1": 0}
        expanded[b, h, q, k] = value[tuple(index[role] for role in roles)]
    return expanded


OF_ONE_SEQUENCE = [layout for layout in LAYOUTS if "q" not in layout or "k" in layout]
"""Layouts without queries alone: if both lengths are equal, a single length is that of the keys."""


@pytest.mark.parametrize(
    ("layout", "sizes"), [(layout, SIZES) for layout in LAYOUTS] + [(o, SQUARE) for o in OF_ONE_SEQUENCE]
)
def test_layout_is_inferred_from_sizes(layout, sizes):
    roles = layout.split()
    value = normal(*(1 if role == "1" else sizes[role] for role in roles))
    mask_layout = mask_layout_of(sizes)
    found = mask_layout.roles(tuple(value.shape))
    assert found == ["" if role == "1" else role for role in roles]
    assert torch.equal(mask_layout.lay_out(value, found), by_hand(value, roles, sizes))


@pytest.mark.parametrize("shape", [(9, 7), (7, 7, 7), (3, 3, 7), (2,), (0, 7)])
def test_shape_that_fits_nothing_has_no_layout(shape):
    assert mask_layout_of(SIZES).roles(shape) is None
    assert mask_layout_of(SIZES).lay_out(torch.zeros(shape), None) is None


def test_batch_next_to_folded_batch_has_no_layout():
    assert mask_layout_of(SIZES).roles((3, 15, 4, 7)) is None


def test_another_length_does_not_fit():
    mask_layout = mask_layout_of(SIZES)
    assert mask_layout.lay_out(torch.zeros(3, 6), ["b", "k"]) is None
    assert mask_layout.lay_out(torch.zeros(7), ["q"]) is None
    assert mask_layout.lay_out(torch.zeros(3, 7), ["b", "q"]) is None


@given(st.permutations(["b", "h", "q", "k"]), st.integers(0, 4))
def test_axes_may_come_in_any_order(roles, count):
    kept = roles[:count]
    value = normal(*(SIZES[role] for role in kept))
    assert torch.equal(mask_layout_of(SIZES).lay_out(value, kept), by_hand(value, kept, SIZES))


def test_equal_lengths_are_queries_then_keys():
    mask_layout = mask_layout_of(SQUARE)
    assert mask_layout.roles((7, 7)) == ["q", "k"]
    assert mask_layout.roles((3, 1, 1, 7)) == ["b", "", "", "k"]
    assert mask_layout.roles((3, 7, 7)) == ["b", "q", "k"]


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 5), st.integers(2, 5))
def test_batch_repeated_in_the_wrong_order(batch, heads):
    mask_layout = MaskLayout(batch, heads, 2, 3)
    mask = normal(batch, 2, 3)
    laid_out = mask_layout.lay_out(mask, ["b", "q", "k"])
    outside = mask.repeat(heads, 1, 1).view(batch, heads, 2, 3)
    assert torch.equal(mask_layout.misordered(laid_out, True), outside)
    inside = mask.repeat_interleave(heads, 0).view(heads, batch, 2, 3).transpose(0, 1)
    assert torch.equal(mask_layout.misordered(laid_out, False), inside)


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 5), st.integers(2, 5))
def test_heads_repeated_in_the_wrong_order(batch, heads):
    mask_layout = MaskLayout(batch, heads, 2, 3)
    bias = normal(heads, 2, 3)
    laid_out = mask_layout.lay_out(bias, ["h", "q", "k"])
    outside = bias.repeat_interleave(batch, 0).view(batch, heads, 2, 3)
    assert torch.equal(mask_layout.misordered(laid_out, True, of_heads=True), outside)
    inside = bias.repeat(batch, 1, 1).view(heads, batch, 2, 3).transpose(0, 1)
    assert torch.equal(mask_layout.misordered(laid_out, False, of_heads=True), inside)


@pytest.mark.parametrize(
    ("axes", "sizes", "roles"),
    [
        ("B Lq", SQUARE, ["b", "k"]),
        ("B 1 1 Lq", SQUARE, ["b", "", "", "k"]),
        ("B Lq 1", SQUARE, ["b", "q", ""]),
        ("B Lq", SIZES, ["b", "q"]),
    ],
)
def test_claimed_axis_of_queries_holds_the_keys_where_both_are_the_same_tokens(axes, sizes, roles):
    claimed = parse_claimed_axes(axes)
    shape = tuple(sizes.get(axis.role, 1) for axis in claimed)
    assert mask_layout_of(sizes).roles(shape, claimed) == roles

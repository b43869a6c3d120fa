"""Masks and head widths."""

import pytest
import torch

from attnshape.errors import AttnshapeError
from attnshape.targets.builtin.cases import attention_mask, causal_mask, head_width, padding_mask
from attnshape.targets.builtin.registry import load


def test_causal_mask():
    assert causal_mask(3, 3).int().tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]


def test_causal_mask_is_aligned_at_the_last_key():
    assert causal_mask(2, 4).int().tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]


def test_causal_mask_with_more_queries_than_keys():
    with pytest.raises(AttnshapeError) as caught:
        causal_mask(5, 3)
    assert caught.value.message == "a causal mask leaves the first 2 of 5 queries no key: Lk - Lq = 3 - 5 = -2"
    assert caught.value.hint == "choose at most 3 queries or at least 5 keys, or leave out the causal mask"


def test_padding_leaves_at_least_one_key():
    assert padding_mask(4, 3).int().tolist() == [[1, 1, 0], [1, 0, 0], [1, 1, 1], [1, 1, 0]]
    assert padding_mask(2, 1).int().tolist() == [[1], [1]]


@pytest.mark.parametrize(
    ("causal", "padding", "heads", "shape"),
    [
        (True, False, False, (4, 5)),
        (True, False, True, (4, 5)),
        (False, True, False, (3, 1, 5)),
        (False, True, True, (3, 1, 1, 5)),
        (True, True, False, (3, 4, 5)),
        (True, True, True, (3, 1, 4, 5)),
    ],
)
def test_attention_mask_shape(causal, padding, heads, shape):
    mask = attention_mask(3, 4, 5, causal=causal, padding=padding, heads=heads)
    assert mask.dtype == torch.bool
    assert mask.shape == shape
    assert mask.any(dim=-1).all()
    expected = torch.ones(shape, dtype=torch.bool)
    if causal:
        expected = expected & causal_mask(4, 5)
    if padding:
        rows = padding_mask(3, 5)
        expected = expected & (rows[:, None, None] if heads else rows[:, None])
    assert torch.equal(mask, expected)


def test_no_mask():
    assert attention_mask(3, 4, 5, causal=False, padding=False) is None


def test_head_width():
    assert head_width(512, 8) == 64


@pytest.mark.parametrize("mechanism", ["multi-head", "multi-head-concat"])
def test_heads_must_divide_the_width(mechanism):
    with pytest.raises(AttnshapeError) as caught:
        load(mechanism)["self_attention"](128, 7, 32, 200)
    assert caught.value.message == "7 heads don't divide the width: D/H = 200/7 leaves 4"
    assert caught.value.hint == "choose heads among 1, 2, 4, 5, 8, 10, …, or a width that is a multiple of 7"


@pytest.mark.parametrize(
    ("D", "H", "choices"),
    [(6, 4, "1, 2, 3, 6"), (13, 2, "1, 13"), (3, 8, "1, 3"), (1_000_003, 2, "1, …")],
)
def test_suggested_head_counts(D, H, choices):
    with pytest.raises(AttnshapeError) as caught:
        head_width(D, H)
    assert caught.value.hint == f"choose heads among {choices}, or a width that is a multiple of {H}"

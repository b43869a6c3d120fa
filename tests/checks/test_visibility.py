"""The keys that are visible to each query, for every way of masking and layout of scores, and their explanation."""

import pytest
import torch
import torch.nn.functional as F

from attnshape.checks.attention.visibility import Hypothesis, explain_visibility
from tests.checks.subjects import subject_of

HEADS = {"q": "B H L Dk", "k": "B H L Dk", "v": "B H L Dv"}
SIZES = {"B": 3, "H": 5, "L": 7, "Dk": 2, "Dv": 4}
PADDING = {"mask": "bool B L"}


def spread_by(mask):
    return mask[:, None, None, :]


def filled(s, keep):
    return s.masked_fill(~keep, -torch.inf)


def added(s, keep):
    return s + torch.zeros(keep.shape, dtype=s.dtype).masked_fill(~keep, -1e9)


def chosen(s, keep):
    return torch.where(keep, s, torch.finfo(s.dtype).min)


def in_place(s, keep):
    s = s.clone()
    s[~keep.expand_as(s)] = -1e5
    return s


def attention(masked):
    def function(q, k, v, mask):
        return masked(q @ k.mT / 2, spread_by(mask)).softmax(-1) @ v

    return function


def weights_dropped(q, k, v, mask):
    weights = (q @ k.mT).softmax(-1).masked_fill(~spread_by(mask), 0.0)
    return weights @ v


def batch_outside(q, k, v, mask):
    q, k, v = (t.flatten(0, 1) for t in (q, k, v))
    keep = mask.repeat_interleave(5, 0)[:, None]
    return filled(q @ k.mT, keep).softmax(-1) @ v


def heads_outside(q, k, v, mask):
    q, k, v = (t.transpose(0, 1).flatten(0, 1) for t in (q, k, v))
    keep = mask.repeat(5, 1)[:, None]
    return filled(q @ k.mT, keep).softmax(-1) @ v


def keys_first(q, k, v, mask):
    weights = filled(k @ q.mT, mask[:, None, :, None]).softmax(-2)
    return torch.einsum("bhji,bhjd->bhid", weights, v)


def heads_last(q, k, v, mask):
    scores = torch.einsum("bhid,bhjd->bijh", q, k)
    return torch.einsum("bijh,bhjd->bihd", filled(scores, mask[:, None, :, None]).softmax(2), v)


def fused(q, k, v, mask):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=spread_by(mask))


def masked_after_exp(q, k, v, mask):
    scores = q @ k.mT
    powers = (scores - scores.amax(-1, keepdim=True)).exp() * spread_by(mask)
    return powers / powers.sum(-1, keepdim=True) @ v


RIGHT = [attention(masked) for masked in (filled, added, chosen, in_place)]
RIGHT += [batch_outside, heads_outside, keys_first, heads_last, fused, weights_dropped]


def visibility_of(function, inputs, *claims, **sizes):
    explained, unmeasured = explain_visibility(subject_of(function, {**HEADS, **inputs}, claims, **{**SIZES, **sizes}))
    assert unmeasured == []
    (found,) = explained
    return found


@pytest.mark.parametrize("function", RIGHT, ids=lambda one: one.__qualname__)
def test_padding_is_hidden_in_every_layout(function):
    found = visibility_of(function, PADDING, "mask=keep")
    assert found.hypothesis == Hypothesis((("mask", None),))
    assert found.visible.keys.shape == (3, 5, 7, 7)
    assert torch.equal(found.visible.keys, found.wanted)
    assert not found.visible.is_weak


@pytest.mark.parametrize("function", RIGHT, ids=lambda one: one.__qualname__)
def test_inverted_mask_is_found_in_every_layout(function):
    assert visibility_of(function, PADDING, "mask=drop").hypothesis == Hypothesis((("mask", "inverted"),))


def test_mask_repeated_in_the_wrong_order():
    def inside(q, k, v, mask):
        q, k, v = (t.flatten(0, 1) for t in (q, k, v))
        return filled(q @ k.mT, mask.repeat(5, 1)[:, None]).softmax(-1) @ v

    def outside(q, k, v, mask):
        q, k, v = (t.transpose(0, 1).flatten(0, 1) for t in (q, k, v))
        return filled(q @ k.mT, mask.repeat_interleave(5, 0)[:, None]).softmax(-1) @ v

    assert visibility_of(inside, PADDING, "mask=keep").hypothesis.masks == (("mask", "batch order"),)
    assert visibility_of(outside, PADDING, "mask=keep").hypothesis.masks == (("mask", "batch order, heads outside"),)


def test_masks_on_queries_and_transposed_masks():
    def on_queries(q, k, v, mask):
        return filled(q @ k.mT, mask[:, None, :, None]).softmax(-1).nan_to_num() @ v

    def transposed(q, k, v, mask):
        return filled(q @ k.mT, mask.mT[:, None]).softmax(-1).nan_to_num() @ v

    assert visibility_of(on_queries, PADDING, "mask=keep").hypothesis.masks == (("mask", "on queries"),)
    found = visibility_of(transposed, {"mask": "bool B L L"}, "mask=keep")
    assert found.hypothesis.masks == (("mask", "transposed"),)


def test_unused_mask():
    found = visibility_of(lambda q, k, v, mask: (q @ k.mT).softmax(-1) @ v, PADDING, "mask=keep")
    assert found.hypothesis.masks == (("mask", "ignored"),)


@pytest.mark.parametrize("offset", [-1, 0, 1, 2])
def test_offset_of_a_causal_mask(offset):
    def causal(q, k, v):
        keep = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril(offset)
        return filled(q @ k.mT, keep).softmax(-1).nan_to_num() @ v

    assert visibility_of(causal, {}, "causal").hypothesis == Hypothesis(offset=offset)


def test_is_causal_is_aligned_at_the_first_key():
    def cached(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    found = visibility_of(cached, {"q": "B H Lq Dk", "k": "B H Lk Dk", "v": "B H Lk Dv"}, "causal", Lq=4, Lk=7)
    assert found.right.offset == 3
    assert found.hypothesis.offset == 0


def test_small_fill_value_is_weak():
    found = visibility_of(attention(lambda s, keep: s.masked_fill(~keep, -5.0)), PADDING, "mask=keep")
    assert found.visible.is_weak
    assert torch.equal(found.visible.weak, ~found.wanted)
    assert found.visible.added[found.visible.weak].eq(-5).all()


def test_mask_after_the_exponential():
    explained, unmeasured = explain_visibility(
        subject_of(masked_after_exp, {**HEADS, **PADDING}, ("mask=keep",), **SIZES)
    )
    assert unmeasured or explained[0].hypothesis == Hypothesis((("mask", None),))


def test_every_attention_in_a_stack_is_explained():
    def stacked(q, k, v, mask):
        first = filled(q @ k.mT, spread_by(mask)).softmax(-1) @ k
        second = F.scaled_dot_product_attention(first, k, k)
        return (second @ k.mT).softmax(-1) @ v

    explained, unmeasured = explain_visibility(subject_of(stacked, {**HEADS, **PADDING}, ("mask=keep",), **SIZES))
    assert unmeasured == []
    slips = sorted(str(visibility.hypothesis.masks[0][1]) for visibility in explained)
    assert slips == ["None", "ignored", "ignored"]


def test_mask_of_a_sequence_whose_length_has_another_name():
    def joined(at_end):
        def function(q, k, v, text, meaning, mask):
            k, v = torch.cat([text, k], 2), torch.cat([meaning, v], 2)
            ones = mask.new_ones(k.shape[0], q.shape[2])
            keep = torch.cat([ones, mask] if at_end else [mask, ones], 1)
            return filled(q @ k.mT, keep[:, None, None]).softmax(-1) @ v

        return function

    inputs = {"text": "B H T Dk", "meaning": "B H T Dv", "mask": "bool B T"}
    right = visibility_of(joined(at_end=False), inputs, "mask=keep", T=11)
    assert right.hypothesis == Hypothesis((("mask", None),))
    assert right.by_tokens == {"mask"}
    wrong = visibility_of(joined(at_end=True), inputs, "mask=keep", T=11)
    assert wrong.hypothesis is None
    leaks = wrong.leaks("mask")
    assert leaks.any()
    assert not leaks[..., 11:].any()


def test_mask_of_one_of_two_joined_sequences_of_the_same_length():
    def joined(q, k, v, text, meaning, mask):
        k, v = torch.cat([text, k], 2), torch.cat([meaning, v], 2)
        keep = torch.cat([mask, torch.ones_like(mask)], 1)
        return filled(q @ k.mT, keep[:, None, None]).softmax(-1) @ v

    found = visibility_of(joined, {"text": "B H L Dk", "meaning": "B H L Dv", **PADDING}, "mask=keep")
    assert found.wanted is None
    assert found.leaks("mask") is None


def rows_of_a_map(read):
    def function(x, mask):
        return filled(x @ x.mT, read(mask)).softmax(-1) @ x

    return function


@pytest.mark.parametrize("read", [lambda mask: mask[:, :, None], lambda mask: mask[:, None]], ids=["tokens", "pairs"])
def test_square_mask_of_a_map_is_read_by_tokens_only_if_it_hides_those(read):
    subject = subject_of(rows_of_a_map(read), {"x": "B L L Dk", "mask": "bool B L L"}, ("mask=keep",), **SIZES)
    (found,) = explain_visibility(subject)[0]
    by_tokens = read(torch.ones(2, 3, 4)).shape == (2, 3, 1, 4)
    assert (found.hypothesis == Hypothesis((("mask", None),))) == by_tokens
    assert (found.wanted is not None) == by_tokens


def test_mask_of_a_map_with_inverted_meaning():
    inputs = {"x": "B L T Dk", "mask": "bool B L T"}
    subject = subject_of(rows_of_a_map(lambda mask: ~mask[:, :, None]), inputs, ("mask=keep",), **SIZES, T=11)
    (found,) = explain_visibility(subject)[0]
    assert found.hypothesis == Hypothesis((("mask", "inverted"),))

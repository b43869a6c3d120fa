"""Visible keys are explained by the claimed masks, causality and window, or by a known mistake."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from attnshape.checks.attention.token_positions import PairPositions
from attnshape.checks.attention.visibility import Hypothesis, VisibilityExplainer, VisibleKeys
from attnshape.dims.expressions import PairCondition
from attnshape.options.claims import parse_claims
from tests.checks.subjects import normal

B, H, L = 3, 5, 7
SHAPES = {
    "B L": ((B, L), (B, 1, 1, L)),
    "B 1 1 L": ((B, 1, 1, L), (B, 1, 1, L)),
    "L": ((L,), (1, 1, 1, L)),
    "L L": ((L, L), (1, 1, L, L)),
    "B L L": ((B, L, L), (B, 1, L, L)),
    "B*H L L": ((B * H, L, L), (B, H, L, L)),
    "H L L": ((H, L, L), (1, H, L, L)),
    "B H L L": ((B, H, L, L), (B, H, L, L)),
    "B 1 L L": ((B, 1, L, L), (B, 1, L, L)),
}
PADDING = [layout for layout in SHAPES if "L L" not in layout]


def explainer(keys, claims=(), is_read=True, positions=None, **masks):
    """Return an explainer of the visible keys, (B, H, queries, keys), for code that reads the masks or doesn't."""
    added = torch.zeros(keys.shape, dtype=torch.float64).masked_fill(~keys, -torch.inf)
    nothing = torch.zeros_like(keys)
    context = normal(*keys.shape[:-1], 2)
    base = SimpleNamespace(inputs=masks, value=lambda address: context)
    numbers = {"B": keys.shape[0], "H": keys.shape[1], "W": 3}
    graph = SimpleNamespace(consumers={name: [None] for name in masks} if is_read else {})
    claimed = parse_claims(claims)
    subject = SimpleNamespace(
        claims=claimed, base=base, numbers=numbers, graph=graph, lengths=(), past_size=0, cache={}
    )
    visible = VisibleKeys(SimpleNamespace(context=None), added, nothing, nothing)
    return VisibilityExplainer(subject, visible, positions=positions)


def explained(keys, claims=(), **masks):
    return explainer(keys, claims, **masks).explain().hypothesis


def drawn(layout, seed=0):
    """Return a random mask, in which each row keeps one key and drops another, and the keys that it keeps."""
    shape, spread = SHAPES[layout]
    mask = normal(*shape, seed=seed) > 0
    mask[..., 0], mask[..., -1] = True, False
    return mask, mask.reshape(spread).expand(B, H, L, L).clone()


def triangle(queries, keys, offset):
    return torch.arange(keys) <= torch.arange(queries)[:, None] + offset


def spread(pattern, batch=B, heads=H):
    return pattern.expand(batch, heads, *pattern.shape[-2:]).clone()


@pytest.mark.parametrize("layout", SHAPES)
@pytest.mark.parametrize("meaning", ["keep", "drop", "add"])
def test_applied_mask_is_right(layout, meaning):
    mask, keys = drawn(layout)
    given_as = {"keep": mask, "drop": ~mask, "add": torch.zeros(mask.shape).masked_fill(~mask, -1e9)}[meaning]
    found = explainer(keys, (f"mask={meaning}",), mask=given_as).explain()
    assert found.hypothesis == found.right == Hypothesis((("mask", None),))
    assert torch.equal(found.wanted, keys)
    assert found.context.shape == (B, H, L, 2)


@pytest.mark.parametrize("layout", SHAPES)
def test_numeric_masks_are_recognized(layout):
    mask, keys = drawn(layout)
    for kind in (torch.long, torch.float32):
        assert explained(keys, ("mask=keep",), mask=mask.to(kind)) == Hypothesis((("mask", None),))


def with_mistake(layout, mistake, seed=0):
    mask, keys = drawn(layout, seed)
    match mistake:
        case "inverted":
            return mask, ~keys
        case "ignored":
            return mask, torch.ones_like(keys)
        case "on queries" | "transposed":
            return mask, keys.mT
        case "batch order":
            return mask, keys[:, 0].repeat(H, 1, 1).view(B, H, L, L)
        case "batch order, heads outside":
            return mask, keys[:, 0].repeat_interleave(H, 0).view(H, B, L, L).transpose(0, 1)
    raise AssertionError(mistake)


SLIPS = [(layout, mistake) for layout in SHAPES for mistake in ("inverted", "ignored")]
SLIPS += [(layout, "on queries") for layout in PADDING]
SLIPS += [(layout, "transposed") for layout in SHAPES if layout not in PADDING]
ORDERS = ("batch order", "batch order, heads outside")
SLIPS += [(layout, mistake) for layout in SHAPES if "B" in layout and "H" not in layout for mistake in ORDERS]


@pytest.mark.parametrize(("layout", "mistake"), SLIPS)
def test_each_mistake_is_explained(layout, mistake):
    mask, keys = with_mistake(layout, mistake)
    found = explained(keys, ("mask=keep",), mask=mask)
    assert found == Hypothesis((("mask", mistake),))


@pytest.mark.parametrize(("layout", "mistake"), [case for case in SLIPS if case[1] != "on queries"])
def test_mistake_is_explained_next_to_a_causal_mask(layout, mistake):
    mask, keys = with_mistake(layout, mistake, seed=5)
    causal = triangle(L, L, 0)
    found = explainer(keys & causal, ("mask=keep", "causal"), mask=mask)
    hypothesis = found.explain().hypothesis
    assert hypothesis is not None
    assert hypothesis.offset == 0
    assert hypothesis.masks == (("mask", mistake),)


def test_wrong_one_of_two_masks_is_named():
    one, first = drawn("B L", 1)
    other, second = drawn("L L", 2)
    masks = {"one": one, "other": other}
    claims = ("one=keep", "other=keep")
    assert explained(first & second, claims, **masks).masks == (("one", None), ("other", None))
    assert explained(first, claims, **masks).masks == (("one", None), ("other", "ignored"))
    assert explained(second, claims, **masks).masks == (("one", "ignored"), ("other", None))


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 7), st.integers(2, 7), st.integers(-7, 7))
def test_causal_offset_is_recovered(queries, keys, offset):
    pattern = triangle(queries, keys, offset)
    assume(float(pattern.any(-1).float().mean()) >= 0.1 and not pattern.all())
    found = explained(spread(pattern), ("causal",))
    assert found == Hypothesis(offset=offset)
    assert explained(spread(pattern)) == Hypothesis(offset=offset)


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 7), st.integers(2, 7), st.integers(-5, 5))
def test_backwards_causal_mask_is_recovered(queries, keys, offset):
    pattern = triangle(queries, keys, offset - 1).logical_not()
    assume(float(pattern.any(-1).float().mean()) >= 0.1 and not pattern.all())
    case = explainer(spread(pattern), ("causal",))
    found = case.explain().hypothesis
    assert found is not None
    rows = pattern.any(-1)
    assert torch.equal(case.expected(found)[0, 0][rows], pattern[rows])
    if found.offset is not None and queries > 2 and pattern.sum(-1).unique().numel() > 2:
        assert found == Hypothesis(offset=offset, backwards=True)


@settings(max_examples=40, deadline=None)
@given(st.integers(3, 7), st.integers(0, 3), st.integers(1, 6), st.booleans())
def test_window_is_recovered(queries, past, window, causal):
    keys = queries + past
    distance = torch.arange(queries)[:, None] + past - torch.arange(keys)
    inside = distance < window if causal else distance.abs() < window
    pattern = inside & triangle(queries, keys, past) if causal else inside
    assume(not torch.equal(pattern, triangle(queries, keys, past)) and not pattern.all())
    claims = ("causal", "window=W") if causal else ("window=W",)
    found = explained(spread(pattern), claims)
    assert found == Hypothesis(offset=past if causal else None, window=window)
    case = explainer(spread(pattern))
    assert torch.equal(case.expected(case.explain().hypothesis), spread(pattern))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([(), ("causal",), ("mask=keep",), ("mask=keep", "causal", "window=W")]))
def test_random_visibility_is_unexplained(seed, claims):
    keys = normal(B, H, L, L, seed=seed) > 0
    assert explained(keys, claims, mask=drawn("B L", seed)[0]) is None
    one_pattern = spread(normal(L, L, seed=seed) > 0)
    one_pattern[..., -1, 1] = True
    assert explained(one_pattern, claims, mask=drawn("B L L", seed + 1)[0]) is None


def test_last_query_with_one_key_is_not_causal():
    pattern = normal(L, L) > 0
    pattern[-1] = torch.arange(L) == 0
    assert explained(spread(pattern)) is None


def test_one_extra_key_is_not_explained():
    keys = spread(triangle(L, L, 0))
    assert explained(keys, ("causal",)) == Hypothesis(offset=0)
    keys[1, 2, 3, 5] = True
    assert explained(keys, ("causal",)) is None


def test_full_visibility_is_right_without_claims():
    keys = torch.ones(B, H, 4, 6, dtype=torch.bool)
    assert explained(keys) == Hypothesis()
    assert explained(keys, ("causal",)) == Hypothesis(offset=None)
    assert explained(keys, ("causal", "window=W")).offset is None


def test_padded_queries_and_empty_rows_are_ignored():
    mask, keys = drawn("B L")
    keys[~mask[:, None].expand(B, H, L)] = normal(int((~mask).sum()) * H, L) > 0
    assert explained(keys, ("mask=keep",), mask=mask) == Hypothesis((("mask", None),))
    empty = mask.clone()
    empty[1] = False
    wanted = empty[:, None, None].expand(B, H, L, L).clone()
    wanted[1] = False
    assert explained(wanted, ("mask=keep",), mask=empty) == Hypothesis((("mask", None),))


def test_mask_of_unknown_layout_is_not_expected():
    for is_read in (True, False):
        keys, mask = torch.ones(B, H, L, L, dtype=torch.bool), torch.ones(9, 9) > 0
        found = explainer(keys, ("mask=keep",), is_read, mask=mask).explain()
        assert found.wanted is None
        assert (found.hypothesis is None) == is_read
        assert is_read or found.hypothesis.masks == (("mask", "ignored"),)


def test_cached_keys_shift_the_causal_mask():
    pattern = triangle(3, 8, 5)
    assert explained(spread(pattern), ("causal",)) == explainer(spread(pattern), ("causal",)).right
    wrong = explained(spread(triangle(3, 8, 0)), ("causal",))
    assert wrong == Hypothesis(offset=0)


def test_claim_about_pairs_is_evaluated_once_for_each(monkeypatch):
    queries, keys = (one.expand(B, H, L, L) for one in (torch.arange(L)[:, None], torch.arange(L)))
    positions = PairPositions(queries, keys, (L, L), queries == keys)
    unexplained = explainer(normal(B, H, L, L, seed=3) > 0, ("visible=k <= q",), positions=positions)
    evaluated = []
    holds = PairCondition.holds
    monkeypatch.setattr(
        PairCondition, "holds", lambda self, sizes, q, k: evaluated.append((q, k)) or holds(self, sizes, q, k)
    )
    assert unexplained.explain().hypothesis is None
    assert sorted(evaluated) == [(q, k) for q in range(L) for k in range(L)]

"""The oracle agrees with torch's own attention, and reports a single changed number."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from attnshape.checks.attention.cores import fused_cores
from attnshape.checks.rules.reference import OracleMismatch, compare_fused_with_oracle, compare_with_oracle
from tests.checks.subjects import flow_of, normal, subject_of

HEADS = {"q": "B H Lq Dk", "k": "B H Lk Dk", "v": "B H Lk Dv"}
SIZES = {"B": 2, "H": 3, "Lq": 4, "Lk": 5, "Dk": 2, "Dv": 3}
small = st.integers(1, 5)


@st.composite
def calls(draw):
    """Draw the tensors and the options of a fused attention."""
    batch, shared, group, queries, keys, width, values = (draw(small) for _ in range(7))
    kind = draw(st.sampled_from(("none", "causal", "keep", "add", "by head")))
    heads = shared * group
    shape = (batch, heads, queries, keys) if kind == "by head" else (queries, keys)
    mask = normal(*shape, seed=draw(st.integers(0, 99)))
    if kind != "add":
        mask = mask > 0
        mask[..., 0] |= draw(st.booleans())
    options = {"is_causal": True} if kind == "causal" else {} if kind == "none" else {"attn_mask": mask}
    if group > 1:
        options["enable_gqa"] = True
    if draw(st.booleans()):
        options["scale"] = draw(st.sampled_from((0.1, 1.0, 3.0)))
    tensors = {"q": normal(batch, heads, queries, width), "k": normal(batch, shared, keys, width, seed=1)}
    return {**tensors, "v": normal(batch, shared, keys, values, seed=2)}, options


def fused(tensors, options):
    (core,) = fused_cores(flow_of(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **options), **tensors))
    return core


@settings(max_examples=100, deadline=None)
@given(calls())
def test_fused_attention_matches_the_oracle(call):
    assert compare_fused_with_oracle(fused(*call), 1e-9) is None


@settings(max_examples=40, deadline=None)
@given(calls(), st.data())
def test_changed_number_of_fused_attention_is_reported(call, data):
    core = fused(*call)
    context = core.event.values[0]
    context[tuple(data.draw(st.integers(0, size - 1)) for size in context.shape)] += 1e-3
    found = compare_fused_with_oracle(core, 1e-9)
    assert found is not None
    assert found.result == "context"
    assert found.difference == pytest.approx(1e-3, rel=1e-3)


def heads_first(q, k, v):
    return (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v


def causal(q, k, v):
    scores = torch.einsum("bhid,bhjd->bhij", q, k) * 0.5
    hidden = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).triu(1)
    return torch.einsum("bhij,bhjd->bihd", scores.masked_fill(hidden, -torch.inf).softmax(-1), v)


def keys_first(q, k, v):
    return (k @ q.mT + 0.25).softmax(-2).mT @ v


def spelled(q, k, v):
    scores = q @ k.mT
    powers = (scores - scores.amax(-1, keepdim=True)).exp()
    return powers / powers.sum(-1, keepdim=True) @ v


def powers_of_two(q, k, v):
    powers = torch.exp2(q @ k.mT)
    return powers / powers.sum(-1, keepdim=True) @ v


def added_within(q, k, v):
    q, k, v = (t.flatten(0, 1) for t in (q, k, v))
    return torch.baddbmm(normal(6, 4, 5), q, k.mT, alpha=0.5).softmax(-1).bmm(v)


def dropped(q, k, v):
    weights = (q @ k.mT).softmax(-1)
    return F.dropout(weights, 0.0).masked_fill(normal(4, 5) > 1, 0.0) @ v


SUPPORTED = [heads_first, causal, keys_first, spelled, powers_of_two, added_within, dropped]


def measured_of(function):
    (found,) = subject_of(function, HEADS, **SIZES).measured
    return found


@pytest.mark.parametrize("function", SUPPORTED, ids=lambda one: one.__name__)
def test_every_layout_matches_the_oracle(function):
    assert compare_with_oracle(measured_of(function), 1e-9) is None


@pytest.mark.parametrize("function", SUPPORTED, ids=lambda one: one.__name__)
@pytest.mark.parametrize("what", ["scores", "weights", "context"])
def test_changed_number_is_located(function, what):
    measured = measured_of(function)
    core = measured.core
    event = {"scores": core.scores.last, "weights": core.softmax.event, "context": core.value.last}[what]
    event.values[0][(0,) * event.values[0].ndim] += 1e-3
    found = compare_with_oracle(measured, 1e-9)
    assert isinstance(found, OracleMismatch)
    assert found.result == what
    if function is not added_within:
        assert found.difference == pytest.approx(1e-3, rel=0.01)


def test_deviation_of_baddbmm_scores():
    measured = measured_of(added_within)
    measured.core.scores.last.values[0][0, 0, 0] += 1e-3
    assert compare_with_oracle(measured, 1e-9).difference == pytest.approx(1e-3, rel=0.01)


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.integers(2, 5), min_size=5, max_size=5), st.integers(0, 99), st.sampled_from(("none", "keep", "add"))
)
def test_explicit_attention_matches_torch_and_the_oracle(sizes, seed, kind):
    batch, heads, queries, keys, width = sizes
    mask = normal(queries, keys, seed=seed)
    if kind != "add":
        hidden = (mask > 0) & (kind == "keep")
        hidden[:, 0] = False
        mask = torch.zeros_like(mask).masked_fill(hidden, -torch.inf)

    def explicit(q, k, v):
        return (q @ k.mT / math.sqrt(width) + mask).softmax(-1) @ v

    numbers = {"B": batch, "H": heads, "Lq": queries, "Lk": keys, "Dk": width, "Dv": 3}
    subject = subject_of(explicit, HEADS, **numbers)
    own = F.scaled_dot_product_attention(*subject.base.inputs.values(), attn_mask=mask)
    assert torch.allclose(subject.base.returned[0][1], own)
    (measured,) = subject.measured
    assert compare_with_oracle(measured, 1e-9) is None


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda q, k, v: torch.tanh(q @ k.mT).softmax(-1) @ v, "by more than a factor and a sum"),
        (lambda q, k, v: (p := (q @ k.mT).exp()) @ v / p.sum(-1, keepdim=True), "isn't one call over one axis"),
        (lambda q, k, v: ((q @ k.mT).softmax(-1) ** 2) @ v, "by more than a factor and a sum"),
    ],
)
def test_unsupported_attention_has_a_reason(function, why):
    found = compare_with_oracle(measured_of(function), 1e-9)
    assert isinstance(found, str)
    assert why in found

"""Queries, keys and values are found in every layout, and additional score products are distinguished."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attnshape.checks.attention.cores import cores, fused_cores
from attnshape.checks.attention.operands import by_attention, projection, projections, query_and_key
from tests.checks.subjects import flow_of, normal, subject_of

SCALE = 3**-0.5
HEADS = {"q": "B H Lq Dk", "k": "B H Lk Dk", "v": "B H Lk Dv"}
LAST = {"q": "B Lq H Dk", "k": "B Lk H Dk", "v": "B Lk H Dv"}
GROUPED = {"q": "B Hkv G Lq Dk", "k": "B Hkv Lk Dk", "v": "B Hkv Lk Dv"}


def heads_first(q, k, v):
    return (q @ k.mT * SCALE).softmax(-1) @ v


def keys_first(q, k, v):
    weights = (k @ q.mT * SCALE).softmax(-2)
    return weights.mT @ v


def values_first(q, k, v):
    weights = (k @ q.mT * SCALE).softmax(-2)
    return v.mT @ weights


def heads_last(q, k, v):
    scores = torch.einsum("bihd,bjhd->bijh", q, k) * SCALE
    return torch.einsum("bijh,bjhd->bihd", scores.softmax(2), v)


def folded(q, k, v):
    q, k, v = (t.flatten(0, 1) for t in (q, k, v))
    weights = torch.bmm(q, k.transpose(1, 2)).mul(SCALE).softmax(-1)
    return torch.bmm(weights, v)


def added_within(q, k, v):
    q, k, v = (t.flatten(0, 1) for t in (q, k, v))
    bias = torch.zeros(q.shape[0], q.shape[1], k.shape[1], dtype=q.dtype)
    return torch.baddbmm(bias, q, k.mT, alpha=SCALE).softmax(-1) @ v


def swapped(q, k, v):
    scores = torch.einsum("bhjd,bhid->bhij", k, q) * SCALE
    return torch.einsum("bhjd,bhij->bhid", v, scores.softmax(-1))


def grouped(q, k, v):
    scores = torch.einsum("bngid,bnjd->bngij", q, k) * SCALE
    return torch.einsum("bngij,bnjd->bngid", scores.softmax(-1), v)


def summed(q, k, v):
    scores = (q[..., :, None, :] * k[..., None, :, :]).sum(-1) * SCALE
    return (scores.softmax(-1)[..., None] * v[..., None, :, :]).sum(-2)


def spelled(q, k, v):
    scores = q @ k.mT * SCALE
    powers = (scores - scores.amax(-1, keepdim=True)).exp()
    return powers / powers.sum(-1, keepdim=True) @ v


def late(q, k, v):
    powers = (q @ k.mT * SCALE).exp()
    return powers @ v / powers.sum(-1, keepdim=True)


def fused(q, k, v):
    return F.scaled_dot_product_attention(q, k, v)


LAYOUTS = [(attention, HEADS) for attention in (heads_first, keys_first, values_first, folded, added_within, swapped)]
LAYOUTS += [(attention, HEADS) for attention in (summed, spelled, late, fused)]
LAYOUTS += [(heads_last, LAST), (grouped, GROUPED)]


@pytest.mark.parametrize(("function", "inputs"), LAYOUTS, ids=lambda one: getattr(one, "__name__", ""))
def test_queries_keys_and_values_are_identified(function, inputs):
    subject = subject_of(function, inputs)
    ((query, key, value),) = by_attention(subject)
    assert [attention.role for attention in (query, key, value)] == ["query", "key", "value"]
    for one, name in zip((query, key, value), "qkv", strict=True):
        assert subject.graph.origins(one.sources) == {name}
        assert one.value.numel() == subject.base.inputs[name].numel()
        assert torch.equal(one.of(subject.base), one.value)


@pytest.mark.parametrize(("function", "inputs"), LAYOUTS, ids=lambda one: getattr(one, "__name__", ""))
def test_axes_of_queries_and_keys(function, inputs):
    subject = subject_of(function, inputs)
    for measured in subject.measured:
        core, numbers = measured.core, subject.numbers
        query, key = query_and_key(measured)
        (keys,) = core.key_axes
        assert core.weights.shape[keys] == numbers["Lk"]
        assert core.scores.result.shape[measured.axis_of_scores(keys)] == numbers["Lk"]
        (width,) = core.scores.contracted(query)
        assert core.scores.operand(query).shape[width] == numbers["Dk"]
        assert {core.scores.result.shape[axis] for axis in core.scores.free(key)} == {numbers["Lk"]}
        assert numbers["Lq"] in {core.scores.result.shape[axis] for axis in core.scores.free(query)}


def test_grouped_heads_are_free_axes_of_the_queries():
    (measured,) = subject_of(grouped, GROUPED, G=3).measured
    scores = measured.core.scores
    query, key = query_and_key(measured)
    assert scores.shared == {0, 1}
    assert scores.free(query) == {2, 3}
    assert scores.free(key) == {4}


def test_fused_core_has_the_arguments_of_its_call():
    def function(q, k, v, mask):
        return F.scaled_dot_product_attention(q, k, value=v, attn_mask=mask, scale=0.25)

    (core,) = subject_of(function, {**HEADS, "mask": "bool Lq Lk"}, ("mask=keep",)).fused
    assert core.scale == 0.25
    assert core.sources("value") == ("v",)
    assert core.sources("attn_mask") == ("mask",)
    mask = core.tensor("attn_mask")
    assert torch.equal(core.added == 0, mask.expand_as(core.added))
    assert torch.isinf(core.added[~mask.expand_as(core.added)]).all()


def test_fused_core_has_the_default_scale_and_causal_mask():
    (core,) = subject_of(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), HEADS).fused
    assert core.scale == pytest.approx(1 / math.sqrt(3))
    queries, keys = core.added.shape[-2:]
    assert torch.equal(core.added[0, 0] == 0, torch.ones(queries, keys).tril().bool())


def test_talking_heads_are_mixed_on_the_path():
    def talking(q, k, v, before, after):
        scores = torch.einsum("bhij,hg->bgij", q @ k.mT, before)
        weights = torch.einsum("bhij,hg->bgij", scores.softmax(-1), after)
        return weights @ v

    q, k, v = normal(2, 3, 4, 5), normal(2, 3, 6, 5, seed=1), normal(2, 3, 6, 7, seed=2)
    mixes = {"before": normal(3, 3, seed=3), "after": normal(3, 3, seed=4)}
    flow = flow_of(talking, "before", "after", q=q, k=k, v=v, **mixes)
    (core,) = cores(flow)
    assert torch.equal(core.scores.operand(core.scores.left), q)
    assert torch.equal(core.value.operand(core.values_place), v)
    assert [product.first.name for product in core.positional] == ["einsum"]
    assert core.more_scores == ()
    assert core.key_axes == (3,)


def test_positional_scores_are_a_separate_product():
    def relative(q, k, v, positions, u):
        content = torch.einsum("bhid,bhjd->bhij", q + u, k)
        position = torch.einsum("bhid,hjd->bhij", q, positions)
        return ((content + position) * SCALE).softmax(-1) @ v

    q, k, v = normal(2, 3, 4, 5), normal(2, 3, 6, 5, seed=1), normal(2, 3, 6, 7, seed=2)
    others = {"positions": normal(3, 6, 5, seed=3), "u": normal(3, 1, 5, seed=4)}
    (core,) = cores(flow_of(relative, "positions", "u", q=q, k=k, v=v, **others))
    assert torch.equal(core.scores.operand(core.scores.right), k)
    assert len(core.positional) == 1
    assert torch.equal(core.positional[0].operand(1), others["positions"])
    assert core.more_scores == ()


def test_positions_that_take_the_dtype_of_queries_are_positional():
    def relative(q, k, v, positions):
        return (q @ positions.to(q).mT + q @ k.mT).softmax(-1) @ v

    q, k, v = normal(2, 4, 5), normal(2, 6, 5, seed=1), normal(2, 6, 7, seed=2)
    flow = flow_of(relative, "positions", q=q, k=k, v=v, positions=normal(6, 5, seed=3).float())
    (core,) = cores(flow)
    assert torch.equal(core.scores.operand(core.scores.right), k.mT)
    assert [flow.origins(product.sources(product.right)) for product in core.positional] == [{"positions"}]


def test_two_products_of_inputs_are_both_scores():
    def twice(q, k, v, p):
        return (q @ k.mT + p @ k.mT).softmax(-1) @ v

    q, k, v = normal(2, 4, 5), normal(2, 6, 5, seed=1), normal(2, 6, 7, seed=2)
    (core,) = cores(flow_of(twice, q=q, k=k, v=v, p=normal(2, 4, 5, seed=3)))
    assert torch.equal(core.scores.operand(0), q)
    assert [product.operand(0).equal(normal(2, 4, 5, seed=3)) for product in core.more_scores] == [True]


@pytest.mark.parametrize("projected", [True, False])
def test_scores_of_learned_queries_are_not_those_of_the_attention_before(projected):
    def pooled(q, k, v, weight, learned):
        tokens = F.dropout((q @ k.mT).softmax(-1) @ v)
        keys = tokens @ weight if projected else tokens
        return (learned @ keys.mT).softmax(-1) @ tokens

    tensors = {"q": normal(2, 4, 5), "k": normal(2, 6, 5, seed=1), "v": normal(2, 6, 5, seed=2)}
    learned = normal(3, 5, seed=4)
    _, last = cores(flow_of(pooled, "weight", "learned", **tensors, weight=normal(5, 5, seed=3), learned=learned))
    assert torch.equal(last.scores.operand(last.scores.left), learned)
    assert last.more_scores == last.positional == ()


def test_scores_with_positions_are_not_joined_with_those_of_the_attention_before():
    def relative(x, positions):
        for _ in range(2):
            x = (x @ positions + x @ x.mT).softmax(-1) @ x
        return x

    for core in cores(flow_of(relative, "positions", x=normal(2, 4, 5), positions=normal(5, 4, seed=1))):
        assert torch.equal(core.scores.operand(0), core.scores.operand(1).mT)
        assert (len(core.more_scores), len(core.positional)) == (0, 1)


def test_softmax_without_values_is_not_attention():
    assert cores(flow_of(lambda q, k: (q @ k.mT).softmax(-1), q=normal(3, 4), k=normal(5, 4))) == []
    assert cores(flow_of(lambda x, v: x.softmax(-1) * v, x=normal(3, 4), v=normal(3, 4))) == []


def test_classifier_softmax_after_attention_is_not_attention():
    def function(q, k, v, head):
        context = (q @ k.mT).softmax(-1) @ v
        return F.linear(context, head).softmax(-1)

    tensors = {"q": normal(2, 4, 5), "k": normal(2, 6, 5), "v": normal(2, 6, 7), "head": normal(9, 7)}
    assert len(cores(flow_of(function, "head", **tensors))) == 1


def test_every_attention_in_a_stack_is_found():
    def stacked(x):
        for _ in range(3):
            x = (x @ x.mT).softmax(-1) @ x
            x = F.scaled_dot_product_attention(x, x, x)
        return x

    flow = flow_of(stacked, x=normal(2, 4, 5))
    found, last = cores(flow), fused_cores(flow)
    assert len(found) == len(last) == 3
    orders = [core.context.order for pair in zip(found, last, strict=True) for core in pair]
    assert orders == sorted(orders)


class Projected(nn.Module):
    def __init__(self, D, H):
        super().__init__()
        self.H = H
        self.qk, self.v, self.out = nn.Linear(D, 2 * D), nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.H, -1)).transpose(1, 2) for t in (*self.qk(x).chunk(2, -1), self.v(x)))
        v = torch.cat([v, torch.zeros_like(v)], -1)
        return self.out((q @ k.mT).softmax(-1).matmul(v).chunk(2, -1)[0].transpose(1, 2).flatten(2))


def test_operands_are_traced_to_their_projections():
    subject = subject_of(Projected, {"x": "B L D"}, init="D, H")
    both, value, _ = [event.refs[0] for event in subject.base.events if event.name == "linear"]
    ((query, key, values),) = by_attention(subject)
    assert projection(subject, query.sources) == projection(subject, key.sources) == both
    assert projection(subject, values.sources) == value
    assert projections(subject, values.sources) == {value}

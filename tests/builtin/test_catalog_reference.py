"""Each case of each mechanism in float64, compared with an independent implementation or plain loops."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from attnshape.targets.builtin.registry import load
from tests.builtin.references import assert_equal, by_loops, dot, in_float64

B, H, L, Lq, Lk, D, Dk, Dv = 3, 4, 6, 5, 7, 8, 2, 3
BOTH_MASKS = [{}, {"causal": True}, {"padding": True}, {"causal": True, "padding": True}]
CAUSAL = [{}, {"causal": True}]
MULTI_HEAD = [
    ("self_attention", (B, H, L, D)),
    ("cross_attention", (B, H, Lq, Lk, D)),
    ("cross_attention", (B, H, L, L, D)),
]
VALUES = [{"mask_value": -math.inf}, {"mask_value": -1e9}, {"mask_value": -1.5}]


def options(*alternatives):
    """Return every combination with one option of each alternative."""
    combined = [{}]
    for alternative in alternatives:
        combined = [first | second for first in combined for second in alternative]
    return combined


def heads_by_loops(attention, input, memory, project, **masking):
    """Multi-head attention by loops over heads; `project` gives q, k, v of B × L × D."""
    query, key, value = project(attention, input, memory)
    width = query.shape[-1] // H
    contexts = [
        by_loops(lambda q, k: dot(q, k) / math.sqrt(width), q.tolist(), k.tolist(), v.tolist(), **masking)
        for q, k, v in zip(*(t.split(width, dim=-1) for t in (query, key, value)), strict=True)
    ]
    return attention.Wo(torch.cat(contexts, dim=-1))


def project_at_once(attention, input, memory):
    return attention.Wq(input), attention.Wk(memory), attention.Wv(memory)


def project_by_head(attention, input, memory):
    q, k, v = zip(*((h.Wq(input), h.Wk(memory), h.Wv(memory)) for h in attention.heads), strict=True)
    return torch.cat(q, dim=-1), torch.cat(k, dim=-1), torch.cat(v, dim=-1)


@pytest.mark.parametrize("chosen", options(BOTH_MASKS, VALUES, [{"bias": True}, {"bias": False}]), ids=str)
@pytest.mark.parametrize(("case", "sizes"), MULTI_HEAD)
@pytest.mark.parametrize(("name", "project"), [("multi-head", project_at_once), ("multi-head-concat", project_by_head)])
def test_multi_head_by_loops(name, project, case, sizes, chosen):
    attention, (input, memory, mask), _ = in_float64(name, case, *sizes, **chosen)
    assert (input is memory) == (case == "self_attention")
    masking = {key: value for key, value in chosen.items() if key != "bias"}
    assert (attention.Wo.bias is not None) == chosen["bias"]
    assert_equal(attention(input, memory, mask), heads_by_loops(attention, input, memory, project, **masking))


def reference_multi_head(attention, bias):
    """Return nn.MultiheadAttention with a MultiHead's weights."""
    reference = nn.MultiheadAttention(D, H, bias=bias, batch_first=True).double().eval()
    projections = (attention.Wq, attention.Wk, attention.Wv)
    with torch.no_grad():
        reference.in_proj_weight.copy_(torch.cat([p.weight for p in projections]))
        reference.out_proj.weight.copy_(attention.Wo.weight)
        if bias:
            reference.in_proj_bias.copy_(torch.cat([p.bias for p in projections]))
            reference.out_proj.bias.copy_(attention.Wo.bias)
    return reference


@pytest.mark.parametrize("chosen", options(BOTH_MASKS, [{"bias": True}, {"bias": False}]), ids=str)
@pytest.mark.parametrize(("case", "sizes"), MULTI_HEAD)
def test_multi_head_against_torch(case, sizes, chosen):
    attention, (input, memory, mask), _ = in_float64("multi-head", case, *sizes, **chosen)
    reference = reference_multi_head(attention, chosen["bias"])
    hidden = None
    if mask is not None:
        hidden = ~mask.expand(B, H, input.shape[1], memory.shape[1]).reshape(B * H, input.shape[1], memory.shape[1])
    expected, _ = reference(input, memory, memory, attn_mask=hidden)
    assert_equal(attention(input, memory, mask), expected)


@pytest.mark.parametrize("chosen", options(BOTH_MASKS, VALUES, [{"bias": True}, {"bias": False}]), ids=str)
@pytest.mark.parametrize(("case", "sizes"), MULTI_HEAD)
def test_multi_head_equals_concatenated_single_heads(case, sizes, chosen):
    whole, (input, memory, mask), _ = in_float64("multi-head", case, *sizes, **chosen)
    listed, (_, _, its_mask), _ = in_float64("multi-head-concat", case, *sizes, **chosen)
    with torch.no_grad():
        for h, head in enumerate(listed.heads):
            rows = slice(h * Dk, (h + 1) * Dk)
            for name in ("Wq", "Wk", "Wv"):
                getattr(head, name).weight.copy_(getattr(whole, name).weight[rows])
                if chosen["bias"]:
                    getattr(head, name).bias.copy_(getattr(whole, name).bias[rows])
        listed.Wo.load_state_dict(whole.Wo.state_dict())
    assert_equal(listed(input, memory, its_mask), whole(input, memory, mask))


SCALED = [
    ("batched", (B, Lq, Lk, Dk, Dv), BOTH_MASKS),
    ("with_heads", (B, H, Lq, Lk, Dk, Dv), BOTH_MASKS),
    ("unbatched", (Lq, Lk, Dk, Dv), CAUSAL),
]


@pytest.mark.parametrize(
    ("case", "sizes", "chosen"), [(case, sizes, option) for case, sizes, many in SCALED for option in many], ids=str
)
def test_scaled_dot_product_against_torch(case, sizes, chosen):
    target, args, kwargs = in_float64("scaled-dot-product", case, *sizes, **chosen)
    context, weights = target(*args, **kwargs)
    query, key, value, mask, _ = args
    assert_equal(context, functional.scaled_dot_product_attention(query, key, value, attn_mask=mask))
    assert_equal(weights @ value, context)
    assert_equal(weights.sum(-1), torch.ones(weights.shape[:-1], dtype=torch.float64))


@pytest.mark.parametrize(
    ("case", "sizes", "chosen"), [(c, s, option) for c, s, many in SCALED for option in options(many, VALUES)], ids=str
)
def test_scaled_dot_product_by_loops(case, sizes, chosen):
    target, args, kwargs = in_float64("scaled-dot-product", case, *sizes, **chosen)
    context, _ = target(*args, **kwargs)
    query, key, value = args[:3]

    def attend(*parts):
        rows = [part.tolist() for part in parts]
        return by_loops(lambda q, k: dot(q, k) / math.sqrt(Dk), *rows, **chosen)

    if case == "with_heads":
        expected = torch.stack([attend(query[:, h], key[:, h], value[:, h]) for h in range(H)], dim=1)
    elif case == "unbatched":
        expected = attend(query[None], key[None], value[None])[0]
    else:
        expected = attend(query, key, value)
    assert_equal(context, expected)


@pytest.mark.parametrize("chosen", options(CAUSAL, [{"bias": True}, {"bias": False}]), ids=str)
@pytest.mark.parametrize(("case", "sizes"), [("batched", (B, L, D, Dk)), ("unbatched", (L, D, Dk))])
def test_single_head_against_torch(case, sizes, chosen):
    head, (input,), _ = in_float64("single-head", case, *sizes, **chosen)
    assert [name for name, _ in head.named_buffers()] == (["mask"] if chosen.get("causal") else [])
    assert (head.W_Q.bias is not None) == chosen["bias"]
    query, key, value = head.W_Q(input), head.W_K(input), head.W_V(input)
    expected = functional.scaled_dot_product_attention(query, key, value, is_causal=chosen.get("causal", False))
    assert_equal(head(input), expected)


def test_single_head_mask_value():
    head, (input,), _ = in_float64("single-head", "batched", B, L, D, Dk, causal=True, mask_value=-1.5)
    rows = [projection(input).tolist() for projection in (head.W_Q, head.W_K, head.W_V)]
    expected = by_loops(lambda q, k: dot(q, k) / math.sqrt(Dk), *rows, causal=True, mask_value=-1.5)
    assert_equal(head(input), expected)


@pytest.mark.parametrize("chosen", options(BOTH_MASKS, VALUES), ids=str)
@pytest.mark.parametrize(("name", "score"), [("average", lambda q, k: 0.0), ("dot-product", dot)])
def test_parameter_free_by_loops(name, score, chosen):
    target, args, kwargs = in_float64(name, "batched", B, L, D, **chosen)
    rows = args[0].tolist()
    assert_equal(target(*args, **kwargs), by_loops(score, rows, rows, rows, **chosen))


@pytest.mark.parametrize("chosen", options(CAUSAL, VALUES), ids=str)
@pytest.mark.parametrize(("name", "score"), [("average", lambda q, k: 0.0), ("dot-product", dot)])
def test_parameter_free_unbatched(name, score, chosen):
    target, args, kwargs = in_float64(name, "unbatched", L, D, **chosen)
    rows = [args[0].tolist()]
    assert_equal(target(*args, **kwargs), by_loops(score, rows, rows, rows, **chosen)[0])


def test_causal_average_is_a_running_mean():
    target, args, kwargs = in_float64("average", "batched", B, L, D, causal=True)
    assert_equal(target(*args, **kwargs), args[0].cumsum(1) / torch.arange(1, L + 1).unsqueeze(-1))


@pytest.mark.parametrize("chosen", CAUSAL, ids=str)
def test_dot_product_against_torch(chosen):
    target, args, kwargs = in_float64("dot-product", "batched", B, L, D, **chosen)
    x = args[0]
    expected = functional.scaled_dot_product_attention(x, x, x, is_causal=chosen.get("causal", False), scale=1.0)
    assert_equal(target(*args, **kwargs), expected)


@pytest.mark.parametrize("chosen", options(BOTH_MASKS, VALUES), ids=str)
def test_additive_by_loops(chosen):
    attention, (input, memory, mask), _ = in_float64("additive", "cross_attention", B, Lq, Lk, D, Dk, **chosen)
    W, U, v = (p.weight.tolist() for p in (attention.W_a, attention.U_a, attention.v_a))

    def score(q, k):
        return sum(v[0][e] * math.tanh(dot(W[e], q) + dot(U[e], k)) for e in range(Dk))

    rows = memory.tolist()
    assert_equal(attention(input, memory, mask), by_loops(score, input.tolist(), rows, rows, **chosen))


@pytest.mark.parametrize("chosen", options(BOTH_MASKS, VALUES), ids=str)
def test_multiplicative_dot_by_loops(chosen):
    target, args, kwargs = in_float64("multiplicative", "dot", B, Lq, Lk, D, **chosen)
    rows = args[1].tolist()
    assert_equal(target(*args, **kwargs), by_loops(dot, args[0].tolist(), rows, rows, **chosen))


@pytest.mark.parametrize("chosen", options(BOTH_MASKS, VALUES), ids=str)
def test_multiplicative_general_by_loops(chosen):
    attention, (input, memory, mask), _ = in_float64("multiplicative", "general", B, Lq, Lk, D, Dv, **chosen)
    W = attention.W_a.weight.tolist()

    def score(q, k):
        return sum(q[d] * dot(W[d], k) for d in range(D))

    rows = memory.tolist()
    assert_equal(attention(input, memory, mask), by_loops(score, input.tolist(), rows, rows, **chosen))


@pytest.mark.parametrize("chosen", BOTH_MASKS, ids=str)
def test_multiplicative_dot_against_torch(chosen):
    target, (input, memory, mask), kwargs = in_float64("multiplicative", "dot", B, Lq, Lk, D, **chosen)
    expected = functional.scaled_dot_product_attention(input, memory, memory, attn_mask=mask, scale=1.0)
    assert_equal(target(input, memory, mask, **kwargs), expected)


@pytest.mark.parametrize("name", ["multi-head", "multi-head-concat"])
def test_dropout_of_a_module_is_active_in_training_only(name):
    attention, args, _ = in_float64(name, "self_attention", B, H, L, D, dropout=1.0)
    attention.eval()
    assert not torch.equal(attention(*args), attention.Wo.bias.expand(B, L, D))
    attention.train()
    assert torch.equal(attention(*args), attention.Wo.bias.expand(B, L, D))


def test_dropout_of_a_single_head_is_active_in_training_only():
    head, args, _ = in_float64("single-head", "batched", B, L, D, Dk, dropout=1.0)
    assert head.eval()(*args).any()
    assert not head.train()(*args).any()


@pytest.mark.parametrize(("case", "sizes"), [(case, sizes) for case, sizes, _ in SCALED])
def test_dropout_of_the_function_is_active_in_training_only(case, sizes):
    for train in (False, True):
        target, args, kwargs = in_float64("scaled-dot-product", case, *sizes, dropout=1.0, train=train)
        context, weights = target(*args, **kwargs)
        assert bool(context.any()) != train
        assert weights.any()


def test_scaled_dot_product_shapes():
    target, args, kwargs = load("scaled-dot-product")["batched"](3, 30, 50, 128, 256)
    assert [tuple(a.shape) for a in args[:3]] == [(3, 30, 128), (3, 50, 128), (3, 50, 256)]
    context, weights = target(*args, **kwargs)
    assert context.shape == (3, 30, 256)
    assert weights.shape == (3, 30, 50)


def test_multi_head_shapes_of_width_200_with_5_heads():
    attention, args = load("multi-head")["self_attention"](128, 5, 32, 200)
    assert attention.Dk == 40
    assert attention(*args).shape == (128, 32, 200)

"""Each mechanism of today's models in float64, compared with torch's own attention or plain loops."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.builtin.references import assert_equal, by_loops, dot, in_float64, weighted_mean

B, H, Hkv, L, Lq, Lk, Lp, D, Dk, Dv = 3, 4, 2, 6, 5, 7, 3, 24, 6, 5
Dr, Dc, Dcq, Din, Dout, W = 4, 7, 9, 11, 13, 3


def projected(projection, x, heads):
    """Return a projection of (…, L, Din) by head, (…, heads, L, width)."""
    return functional.linear(x, projection.weight, projection.bias).unflatten(-1, (heads, -1)).transpose(-3, -2)


def merged(attention, context):
    """Return the output of a module for the contexts of its heads, (…, H, L, Dk)."""
    return functional.linear(context.transpose(-3, -2).flatten(-2), attention.Wo.weight, attention.Wo.bias)


def by_torch(attention, query, key, value, bias=None, **chosen):
    """Return the output for heads that torch's own attention computes; causal unless there is a bias."""
    context = functional.scaled_dot_product_attention(
        query, key, value, attn_mask=bias, is_causal=bias is None, **chosen
    )
    return merged(attention, context)


def projections(attention, x, key_heads=H):
    return tuple(
        projected(one, x, heads)
        for one, heads in ((attention.Wq, H), (attention.Wk, key_heads), (attention.Wv, key_heads))
    )


def causal_bias(length):
    return torch.full((length, length), -math.inf, dtype=torch.float64).triu(1)


def test_grouped_query_against_torch():
    attention, args, _ = in_float64("grouped-query", "self_attention", B, H, Hkv, L, D)
    expected = by_torch(attention, *projections(attention, args[0], Hkv), enable_gqa=True)
    assert_equal(attention(*args), expected)


def test_multi_query_is_multi_head_with_equal_key_heads():
    attention, (x, mask), _ = in_float64("multi-query", "self_attention", B, H, L, D)
    reference = nn.MultiheadAttention(D, H, bias=False, batch_first=True).double()
    repeated = [weight.repeat(H, 1) for weight in (attention.Wk.weight, attention.Wv.weight)]
    with torch.no_grad():
        reference.in_proj_weight.copy_(torch.cat([attention.Wq.weight, *repeated]))
        reference.out_proj.weight.copy_(attention.Wo.weight)
    assert_equal(attention(x, mask), reference(x, x, x, attn_mask=~mask)[0])


def turns(width):
    """Return the complex number by which each pair of features of each position is multiplied, (L, width/2)."""
    angles = [[m * 10_000.0 ** (-2 * i / width) for i in range(width // 2)] for m in range(L)]
    return torch.polar(torch.ones(L, width // 2, dtype=torch.float64), torch.tensor(angles, dtype=torch.float64))


def turned_pairs(x):
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * turns(x.shape[-1])).flatten(-2)


def turned_halves(x):
    pairs = torch.complex(*x.chunk(2, dim=-1)) * turns(x.shape[-1])
    return torch.cat((pairs.real, pairs.imag), dim=-1)


@pytest.mark.parametrize(("name", "turned"), [("rotary-interleaved", turned_pairs), ("rotary-halves", turned_halves)])
def test_rotary_is_a_product_of_complex_numbers(name, turned):
    attention, args, _ = in_float64(name, "self_attention", B, H, L, D)
    query, key, value = projections(attention, args[0])
    assert_equal(attention(*args), by_torch(attention, turned(query), turned(key), value))


def relative_scores(query, key):
    """Return the products of rotated queries and keys, from their distances: Re Σ q conj(k) exp(i (m - n) θ)."""
    query, key = (torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) for x in (query, key))
    turn = turns(2 * query.shape[-1])
    return torch.einsum("bhmi,bhni,mi,ni->bhmn", query, key.conj(), turn, turn.conj()).real


def test_partial_rotary_adds_relative_scores():
    attention, args, _ = in_float64("partial-rotary", "self_attention", B, H, L, D, Dr)
    rotated = relative_scores(projected(attention.Wqr, args[0], H), projected(attention.Wkr, args[0], H))
    scale = 1 / math.sqrt(Dk + Dr)
    expected = by_torch(attention, *projections(attention, args[0]), scale * rotated + causal_bias(L), scale=scale)
    assert_equal(attention(*args), expected)


def test_latent_attends_to_what_it_caches():
    attention, args, _ = in_float64("latent", "self_attention", B, H, L, D, Dr, Dc, Dcq)
    output, latent, turned_key = attention(*args)
    compressed = args[0] @ attention.W_DQ.weight.T
    rotated = relative_scores(projected(attention.W_QR, compressed, H), projected(attention.W_KR, args[0], 1))
    scale = 1 / math.sqrt(Dk + Dr)
    query, key = projected(attention.W_UQ, compressed, H), projected(attention.W_UK, latent, H)
    value = projected(attention.W_UV, latent, H)
    assert_equal(latent, args[0] @ attention.W_DKV.weight.T)
    assert_equal(turned_key, turned_pairs(args[0] @ attention.W_KR.weight.T))
    assert_equal(output, by_torch(attention, query, key, value, scale * rotated + causal_bias(L), scale=scale))


def test_prefill_against_torch():
    attention, args, _ = in_float64("kv-cache", "prefill", B, H, L, D)
    output, key, value = attention(*args)
    expected = projections(attention, args[0])
    assert_equal(output, by_torch(attention, *expected))
    assert_equal(key, expected[1])
    assert_equal(value, expected[2])


def test_decoding_continues_the_sequence():
    attention, (x, mask, *_), _ = in_float64("kv-cache", "decode", B, H, Lp, Lq, D)
    earlier = torch.randn(B, Lp, D, dtype=torch.float64)
    whole = torch.cat((earlier, x), dim=1)
    query, key, value = projections(attention, whole)
    output, all_keys, all_values = attention(x, mask, key[:, :, :Lp], value[:, :, :Lp])
    assert_equal(output, by_torch(attention, query, key, value)[:, Lp:])
    assert_equal(all_keys, key)
    assert_equal(all_values, value)


def by_head(attention, x, attend):
    """Return the output for contexts that `attend` computes from one head's query, key, value and number."""
    query, key, value = projections(attention, x)
    contexts = [
        [attend(*(part[b, h].tolist() for part in (query, key, value)), h) for h in range(H)] for b in range(len(x))
    ]
    return merged(attention, torch.tensor(contexts, dtype=torch.float64))


@pytest.mark.parametrize("width", [1, W, L + 2])
def test_sliding_window_by_loops(width):
    attention, args, _ = in_float64("sliding-window", "self_attention", B, H, L, D, width)

    def attend(queries, keys, values, _):
        return [
            weighted_mean([dot(q, k) / math.sqrt(Dk) for k in keys[max(0, i - width + 1) : i + 1]],
                          values[max(0, i - width + 1) : i + 1])
            for i, q in enumerate(queries)
        ]  # fmt: skip

    assert_equal(attention(*args), by_head(attention, args[0], attend))


def test_alibi_by_loops():
    attention, args, _ = in_float64("alibi", "self_attention", B, H, L, D)

    def attend(queries, keys, values, h):
        slope = 2 ** (-8 * (h + 1) / H)
        return [
            weighted_mean([dot(q, keys[j]) / math.sqrt(Dk) - slope * (i - j) for j in range(i + 1)], values[: i + 1])
            for i, q in enumerate(queries)
        ]

    assert_equal(attention(*args), by_head(attention, args[0], attend))


def bucket(distance, number):
    """Return T5's bucket of a distance, by counting the borders that it has passed."""
    half = number // 2
    near = half // 2
    borders = [*range(1, near + 1)]
    borders += [near * (128 / near) ** (step / (half - near)) for step in range(1, half - near)]
    return (half if distance > 0 else 0) + sum(abs(distance) >= border for border in borders)


def test_relative_bias_by_loops():
    length, number = 30, 16
    attention, (x,), _ = in_float64("relative-bias", "self_attention", 2, H, length, D, number)
    used = {bucket(j - i, number) for i in range(length) for j in range(length)}
    assert used == set(range(number)) - {7, 8, 15}  # the farthest ones, and 0 of later keys
    bias = [
        [[attention.table.weight[bucket(j - i, number), h].item() for j in range(length)] for i in range(length)]
        for h in range(H)
    ]
    expected = by_torch(attention, *projections(attention, x), torch.tensor(bias, dtype=torch.float64), scale=1.0)
    assert_equal(attention(x), expected)


@pytest.mark.parametrize(("case", "shift"), [("shifted", 1), ("regular", 0)])
def test_windows_by_loops_over_pairs_of_tokens(case, shift):
    rows, columns = 2 * W, 3 * W
    attention, args, _ = in_float64("shifted-window", case, B, H, D, W, 2, 3)
    places = [(row, column) for row in range(rows) for column in range(columns)]

    def window(row, column):
        # a window that the shift cuts at the map's edge is smaller, and none goes on at the other edge
        return (row - shift) // W, (column - shift) // W

    bias = torch.full((H, len(places), len(places)), -math.inf, dtype=torch.float64)
    for i, query in enumerate(places):
        for j, key in enumerate(places):
            if window(*query) == window(*key):
                bias[:, i, j] = attention.table[:, query[0] - key[0] + W - 1, query[1] - key[1] + W - 1]
    x = args[0].flatten(1, 2)
    expected = by_torch(attention, *projections(attention, x), bias)
    assert_equal(attention(*args), expected.unflatten(1, (rows, columns)))


def test_packed_sequences_attend_one_by_one():
    attention, (x, ends), _ = in_float64("packed", "self_attention", H, 13, D, 3)
    assert ends.tolist() == [7, 10, 13]
    parts = [by_torch(attention, *projections(attention, part)) for part in x.tensor_split(ends[:-1])]
    assert_equal(attention(x, ends), torch.cat(parts))


@pytest.mark.parametrize("selected", [1, 3, L])
def test_sparse_by_loops(selected):
    heads, width = 16, 2  # so many that no two scores are equal, as they are where all are negative
    attention, args, _ = in_float64("sparse", "self_attention", B, H, L, D, selected, heads, width)
    index_query = projected(attention.index_query, args[0], heads)
    index_key, gate = attention.index_key(args[0]), attention.index_weight(args[0])
    outputs = []
    for b in range(B):
        chosen = []
        for t in range(L):
            index = [
                sum(gate[b, t, j] * max(0.0, dot(index_query[b, j, t], index_key[b, s])) for j in range(heads))
                for s in range(t + 1)
            ]
            chosen.append(sorted(range(t + 1), key=lambda s: -index[s])[:selected])

        def attend(queries, keys, values, _, chosen=chosen):
            return [
                weighted_mean([dot(q, keys[s]) / math.sqrt(Dk) for s in chosen[t]], [values[s] for s in chosen[t]])
                for t, q in enumerate(queries)
            ]

        outputs.append(by_head(attention, args[0][b : b + 1], attend))
    assert_equal(attention(*args), torch.cat(outputs))


def test_latent_queries_against_torch():
    latents = 5
    attention, (memory, mask), _ = in_float64("latent-queries", "cross_attention", B, H, latents, Lk, D, Din)
    reference = nn.MultiheadAttention(D, H, kdim=Din, vdim=Din, batch_first=True).double()
    with torch.no_grad():
        for name in "qkv":
            getattr(reference, f"{name}_proj_weight").copy_(getattr(attention, f"W{name}").weight)
        reference.in_proj_bias.copy_(torch.cat([attention.Wq.bias, attention.Wk.bias, attention.Wv.bias]))
        reference.out_proj.load_state_dict(attention.Wo.state_dict())
    query = attention.latents.expand(B, latents, D)
    expected, _ = reference(query, memory, memory, key_padding_mask=~mask)
    assert_equal(attention(memory, mask), expected)


def feature(x):
    return [y + 1 if y > 0 else math.exp(y) for y in x]


@pytest.mark.parametrize(("case", "sizes"), [("causal", (L, Dk, Dv)), ("bidirectional", (Lq, Lk, Dk, Dv))])
def test_linear_by_loops_over_pairs(case, sizes):
    target, args, _ = in_float64("linear", case, B, H, *sizes)
    query, key, value = (part.flatten(0, 1).tolist() for part in args)
    # the softmax of its logarithm divides a positive score by the sum of all
    expected = by_loops(lambda q, k: math.log(dot(feature(q), feature(k))), query, key, value, causal=case == "causal")
    assert_equal(target(*args), expected.unflatten(0, (B, H)))


def test_gated_delta_by_matrices():
    target, (query, key, value, decay, rate), _ = in_float64("gated-delta", "recurrent", B, H, L, Dk, Dv)
    expected = torch.empty(B, H, L, Dv, dtype=torch.float64)
    for b in range(B):
        for h in range(H):
            state = torch.zeros(Dv, Dk, dtype=torch.float64)
            for t in range(L):
                k = key[b, h, t] / math.sqrt(sum(x * x for x in key[b, h, t].tolist()))
                erased = torch.eye(Dk) - rate[b, h, t] * torch.outer(k, k)
                state = state @ (decay[b, h, t] * erased) + rate[b, h, t] * torch.outer(value[b, h, t], k)
                expected[b, h, t] = state @ query[b, h, t]
    assert_equal(target(query, key, value, decay, rate), expected)


def test_differential_is_a_difference_of_two_attentions():
    attention, args, _ = in_float64("differential", "self_attention", B, H, L, D)
    with torch.no_grad():
        attention.norm.weight.normal_()
    query, key, value = projections(attention, args[0])
    first, second = (
        functional.scaled_dot_product_attention(q, k, value, is_causal=True)
        for q, k in zip(query.chunk(2, dim=-1), key.chunk(2, dim=-1), strict=True)
    )
    one, other = (dot(q, k) for q, k in zip(attention.lambda_query, attention.lambda_key, strict=True))
    difference = first - (math.exp(one) - math.exp(other) + 0.8) * second
    normed = difference / (difference.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * attention.norm.weight
    assert_equal(attention(*args), merged(attention, 0.2 * normed))


def test_sink_is_one_more_key_without_value():
    attention, args, _ = in_float64("sinks", "self_attention", B, H, L, D)
    query, key, value = (functional.pad(part, (0, 0, 0, 1)) for part in projections(attention, args[0]))
    sinks = attention.sinks.view(H, 1, 1).expand(H, L, 1)
    bias = torch.cat((causal_bias(L).expand(H, L, L), sinks), dim=-1)
    assert_equal(attention(*args), by_torch(attention, query[:, :, :L], key, value, bias))


def test_gated_output_by_torch():
    attention, args, _ = in_float64("gated-output", "self_attention", B, H, L, D)
    context = functional.scaled_dot_product_attention(*projections(attention, args[0]), is_causal=True)
    gate = 1 / (1 + (-projected(attention.Wg, args[0], H)).exp())
    assert_equal(attention(*args), merged(attention, gate * context))


def test_qk_norm_by_torch():
    attention, args, _ = in_float64("qk-norm", "self_attention", B, H, L, D)
    with torch.no_grad():
        attention.query_norm.weight.normal_()
        attention.key_norm.weight.normal_()
    query, key, value = projections(attention, args[0])
    normed = [
        gain.weight * part / (part.pow(2).sum(-1, keepdim=True) / Dk + 1e-6).sqrt()
        for gain, part in ((attention.query_norm, query), (attention.key_norm, key))
    ]
    assert_equal(attention(*args), by_torch(attention, *normed, value))


def test_softcap_by_loops():
    attention, args, _ = in_float64("softcap", "self_attention", B, H, L, D)
    with torch.no_grad():
        attention.Wq.weight.mul_(500)  # scores that the cap changes

    def attend(queries, keys, values, _):
        return [
            weighted_mean([50 * math.tanh(dot(q, k) / math.sqrt(Dk) / 50) for k in keys[: i + 1]], values[: i + 1])
            for i, q in enumerate(queries)
        ]

    assert_equal(attention(*args), by_head(attention, args[0], attend))


def test_multi_head_list_against_torch():
    attention, args, _ = in_float64("multi-head-list", "self_attention", B, H, L, Dk, Dv, Din, Dout)
    parts = [
        torch.stack([args[0] @ getattr(head, name).weight.T for head in attention.heads], dim=1)
        for name in ("Wq", "Wk", "Wv")
    ]
    assert_equal(attention(*args), by_torch(attention, *parts))

"""Unusual orders of axes, and torch's own modules."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.plain import attention, causal, join, multihead, split

SIZES = ({"B": 2, "H": 4, "L": 6, "Dk": 5}, {"B": 5, "H": 2, "L": 9, "Dk": 7})
CROSS = ({"B": 2, "H": 4, "Lq": 5, "Lk": 7, "Dk": 3}, {"B": 3, "H": 2, "Lq": 8, "Lk": 4, "Dk": 6})
VALUES = ({"B": 2, "H": 4, "Lq": 5, "Lk": 7, "Dk": 3, "Dv": 6}, {"B": 3, "H": 2, "Lq": 8, "Lk": 4, "Dk": 6, "Dv": 5})
MAPS = (
    {"B": 3, "rows": 4, "columns": 6, "n_head": 2, "Dk": 5},
    {"B": 2, "rows": 7, "columns": 5, "n_head": 4, "Dk": 3},
)
GROUPS = ({"B": 4, "Hkv": 2, "G": 3, "L": 7, "Dk": 5}, {"B": 2, "Hkv": 5, "G": 4, "L": 9, "Dk": 3})
UNUSUAL = [
    ("keys_first", *VALUES),
    ("scores_heads_last", *CROSS),
    ("folded_heads", *CROSS),
    ("heads_outermost", *SIZES),
    ("interleaved_fused", *SIZES),
    ("channels_first", *SIZES),
    ("torch_sequence_first", *CROSS),
    ("torch_encoder_layer", *SIZES),
    ("weights_returned", *CROSS),
    ("list_of_heads", *SIZES),
    ("swapped_product", *CROSS),
    ("filled_in_parts", *CROSS),
    ("columns_with_heads_of_an_own_name", *MAPS),
    ("queries_of_a_group_in_one_axis", *GROUPS),
]


def keys_first(q, k, v):
    """The scores are (B, H, Lk, Lq); query, key and value (B, H, L, width)."""
    energy = k @ q.transpose(-1, -2) / math.sqrt(q.shape[-1])
    return (v.transpose(-1, -2) @ energy.softmax(dim=-2)).transpose(-1, -2)


def case_keys_first(B, H, Lq, Lk, Dk, Dv):
    return keys_first, (torch.randn(B, H, Lq, Dk), torch.randn(B, H, Lk, Dk), torch.randn(B, H, Lk, Dv)), {}


def reference_keys_first(function, q, k, v):
    return attention(q, k, v)


def scores_heads_last(q, k, v):
    """The scores are (B, Lq, Lk, H); query, key and value (B, L, H, Dk)."""
    logits = torch.einsum("bqhd,bkhd->bqkh", q, k) * q.shape[-1] ** -0.5
    return torch.einsum("bqkh,bkhd->bqhd", logits.softmax(dim=2), v)


def case_scores_heads_last(B, H, Lq, Lk, Dk):
    return scores_heads_last, (torch.randn(B, Lq, H, Dk), torch.randn(B, Lk, H, Dk), torch.randn(B, Lk, H, Dk)), {}


def reference_scores_heads_last(function, q, k, v):
    return attention(*(t.transpose(1, 2) for t in (q, k, v))).transpose(1, 2)


class FoldedHeads(nn.Module):
    """Heads are split off the width and folded into the batch, as (H B), and unfolded the same way."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x, memory):
        q, k, v = (torch.cat(t.chunk(self.heads, dim=2), dim=0) for t in (self.q(x), self.k(memory), self.v(memory)))
        weights = torch.bmm(q, k.transpose(1, 2)).div(math.sqrt(q.shape[2])).softmax(dim=2)
        return self.o(torch.cat(torch.bmm(weights, v).chunk(self.heads, dim=0), dim=2))


def case_folded_heads(B, H, Lq, Lk, Dk):
    return FoldedHeads(H * Dk, H), (torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk)), {}


def reference_folded_heads(module, x, memory):
    return module.o(multihead(module.q(x), module.k(memory), module.v(memory), module.heads))


class HeadsOutermost(nn.Module):
    """(H, B, L, Dk), from weights of (H, D, Dk)."""

    def __init__(self, heads, depth):
        super().__init__()
        self.w = nn.Parameter(torch.randn(3, heads, heads * depth, depth) / math.sqrt(heads * depth))
        self.out = nn.Parameter(torch.randn(heads, depth, heads * depth))

    def forward(self, x):
        q, k, v = torch.einsum("bld,shdk->shblk", x, self.w)
        weights = torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), dim=-1)
        return torch.einsum("hbld,hde->ble", weights @ v, self.out)


def case_heads_outermost(B, H, L, Dk):
    return HeadsOutermost(H, Dk), (torch.randn(B, L, H * Dk),), {}


def reference_heads_outermost(module, x):
    heads = zip(*module.w, module.out, strict=True)
    return sum(attention(x @ wq, x @ wk, x @ wv) @ wo for wq, wk, wv, wo in heads)


class InterleavedFused(nn.Module):
    """Each head's query, key and value lie side by side in the fused projection."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.query_key_value, self.dense = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        qkv = self.query_key_value(x).view(*x.shape[:2], self.heads, -1)
        q, k, v = (t.transpose(1, 2) for t in qkv.chunk(3, dim=-1))
        out = F.scaled_dot_product_attention(q, k, v)
        return self.dense(out.transpose(1, 2).reshape(x.shape))


def case_interleaved_fused(B, H, L, Dk):
    return InterleavedFused(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def reference_interleaved_fused(module, x):
    depth = x.shape[-1] // module.heads
    parts = module.query_key_value(x).split(depth, dim=-1)
    heads = [attention(*parts[3 * h : 3 * h + 3]) for h in range(module.heads)]
    return module.dense(torch.cat(heads, dim=-1))


class ChannelsFirst(nn.Module):
    """Inputs and outputs are (B, D, L), as in image models."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Conv1d(width, 3 * width, 1), nn.Conv1d(width, width, 1)

    def forward(self, x):
        b, c, n = x.shape
        q, k, v = self.qkv(x).view(b, 3, self.heads, c // self.heads, n).unbind(1)
        weights = torch.einsum("bhdi,bhdj->bhij", q, k).div((c // self.heads) ** 0.5).softmax(dim=-1)
        out = torch.einsum("bhij,bhdj->bhdi", weights, v).reshape(b, c, n)
        return x + self.proj(out)


def case_channels_first(B, H, L, Dk):
    return ChannelsFirst(H * Dk, H), (torch.randn(B, H * Dk, L),), {}


def reference_channels_first(module, x):
    q, k, v = F.linear(x.mT, module.qkv.weight[:, :, 0], module.qkv.bias).chunk(3, dim=-1)
    out = multihead(q, k, v, module.heads)
    return x + F.linear(out, module.proj.weight[:, :, 0], module.proj.bias).mT


def case_torch_sequence_first(B, H, Lq, Lk, Dk):
    memory = torch.randn(Lk, B, H * Dk)
    return nn.MultiheadAttention(H * Dk, H), (torch.randn(Lq, B, H * Dk), memory, memory), {}, ["seq-first"]


def _torch_multihead(module, query, memory):
    wq, wk, wv = module.in_proj_weight.chunk(3)
    bq, bk, bv = module.in_proj_bias.chunk(3)
    joined = multihead(query @ wq.T + bq, memory @ wk.T + bk, memory @ wv.T + bv, module.num_heads)
    return module.out_proj(joined)


def reference_torch_sequence_first(module, query, key, value):
    return _torch_multihead(module, query.transpose(0, 1), key.transpose(0, 1)).transpose(0, 1)


def case_torch_encoder_layer(B, H, L, Dk):
    layer = nn.TransformerEncoderLayer(H * Dk, H, 3 * H * Dk, batch_first=True, norm_first=True, activation="gelu")
    return layer, (torch.randn(B, L, H * Dk),), {}


def reference_torch_encoder_layer(module, x):
    h = module.norm1(x)
    x = x + _torch_multihead(module.self_attn, h, h)
    return x + module.linear2(F.gelu(module.linear1(module.norm2(x))))


class WeightsReturned(nn.Module):
    """Returns the output, the weights and the mean of the weights over the heads."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q, self.kv = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.attn_drop, self.proj_drop = nn.Dropout(0.3), nn.Dropout(0.2)

    def forward(self, x, memory):
        q, k, v = (
            t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (self.q(x), *self.kv(memory).chunk(2, -1))
        )
        weights = torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), dim=-1)
        out = self.proj_drop((self.attn_drop(weights) @ v).transpose(1, 2).flatten(2))
        return out, weights, weights.mean(dim=1)


def case_weights_returned(B, H, Lq, Lk, Dk):
    return WeightsReturned(H * Dk, H), (torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk)), {}


def reference_weights_returned(module, x, memory):
    k, v = module.kv(memory).chunk(2, dim=-1)
    return multihead(module.q(x), k, v, module.heads)


class ListOfHeads(nn.Module):
    """One small module for each head; outputs are projected separately and summed, never concatenated."""

    def __init__(self, heads, depth):
        super().__init__()
        self.ins = nn.ModuleList(nn.Linear(heads * depth, 3 * depth) for _ in range(heads))
        self.outs = nn.ModuleList(nn.Linear(depth, heads * depth, bias=False) for _ in range(heads))

    def forward(self, x):
        total = torch.zeros_like(x)
        for enter, leave in zip(self.ins, self.outs, strict=True):
            q, k, v = enter(x).chunk(3, dim=-1)
            total = total + leave(F.scaled_dot_product_attention(q, k, v))
        return total


def case_list_of_heads(B, H, L, Dk):
    return ListOfHeads(H, Dk), (torch.randn(B, L, H * Dk),), {}


def reference_list_of_heads(module, x):
    parts = [enter(x).chunk(3, dim=-1) for enter in module.ins]
    q, k, v = (torch.cat([part[i] for part in parts], dim=-1) for i in range(3))
    return multihead(q, k, v, len(parts)) @ torch.cat([leave.weight for leave in module.outs], dim=1).T


def swapped_product(q, k, v, wo):
    """Everything is transposed: widths come before tokens, (B, H, Dk, L)."""
    alpha = torch.softmax(k.transpose(2, 3) @ (q / q.shape[2] ** 0.5), dim=2)
    return torch.einsum("bhdq,hde->bqe", v @ alpha, wo)


def case_swapped_product(B, H, Lq, Lk, Dk):
    q, k, v = torch.randn(B, H, Dk, Lq), torch.randn(B, H, Dk, Lk), torch.randn(B, H, Dk, Lk)
    return swapped_product, (q, k, v, torch.randn(H, Dk, H * Dk)), {}


def reference_swapped_product(function, q, k, v, wo):
    out = join(attention(q.mT, k.mT, v.mT))
    return sum(part @ w for part, w in zip(split(out, len(wo)).unbind(1), wo, strict=True))


def filled_in_parts(q, k, v):
    """Queries and keys are allocated first, and filled in two parts; query, key and value (B, H, L, Dk) each."""
    part = q.shape[-1] // 2
    queries, keys = q.new_empty(q.shape), k.new_empty(k.shape)
    for tensor, filled in ((q, queries), (k, keys)):
        filled[..., :part].copy_(tensor[..., :part])
        filled[..., part:].copy_(tensor[..., part:])
    return (queries @ keys.mT * q.shape[-1] ** -0.5).softmax(-1) @ v


def case_filled_in_parts(B, H, Lq, Lk, Dk):
    return filled_in_parts, (torch.randn(B, H, Lq, Dk), torch.randn(B, H, Lk, Dk), torch.randn(B, H, Lk, Dk)), {}


def reference_filled_in_parts(function, q, k, v):
    return attention(q, k, v)


class Columns(nn.Module):
    """The pixels of a column attend to each other; batch, columns and heads are one axis."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.to_q, self.to_kv = nn.Linear(width, width, bias=False), nn.Linear(width, 2 * width, bias=False)

    def forward(self, x):
        B, C, height, width = x.shape
        x = x.permute(0, 3, 2, 1).reshape(B * width, height, C)
        projected = (self.to_q(x), *self.to_kv(x).chunk(2, dim=-1))
        q, k, v = (t.reshape(-1, height, self.heads, C // self.heads).transpose(1, 2).flatten(0, 1) for t in projected)
        context = torch.bmm(torch.bmm(q, k.mT * q.shape[-1] ** -0.5).softmax(dim=-1), v)
        context = context.unflatten(0, (-1, self.heads)).transpose(1, 2).flatten(2)
        return context.unflatten(0, (B, width)).permute(0, 3, 2, 1)


def case_columns_with_heads_of_an_own_name(B, rows, columns, n_head, Dk):
    return Columns(n_head * Dk, n_head), (torch.randn(B, n_head * Dk, rows, columns),), {}


def reference_columns_with_heads_of_an_own_name(module, x):
    pixels = x.permute(0, 3, 2, 1)
    key, value = (pixels @ weight.T for weight in module.to_kv.weight.chunk(2))
    q, k, v = (split(t, module.heads) for t in (pixels @ module.to_q.weight.T, key, value))
    return join(attention(q, k, v)).permute(0, 3, 2, 1)


class GroupsInOneAxis(nn.Module):
    """The query heads of a group share keys, and lie one after another along the axis of the queries."""

    def __init__(self, width, kv_heads, group):
        super().__init__()
        self.kv_heads, self.group = kv_heads, group
        self.q, self.kv = nn.Linear(width, width), nn.Linear(width, 2 * width // group)

    def forward(self, x):
        q = self.q(x).unflatten(-1, (self.kv_heads, self.group, -1)).permute(0, 2, 3, 1, 4)
        k, v = self.kv(x).unflatten(-1, (2, self.kv_heads, -1)).permute(2, 0, 3, 1, 4)
        keep = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril().repeat(self.group, 1)
        context = F.scaled_dot_product_attention(q.flatten(2, 3), k, v, attn_mask=keep)
        return context.unflatten(2, (self.group, -1)).permute(0, 3, 1, 2, 4).flatten(2)


def case_queries_of_a_group_in_one_axis(B, Hkv, G, L, Dk):
    return GroupsInOneAxis(Hkv * G * Dk, Hkv, G), (torch.randn(B, L, Hkv * G * Dk),), {}, ["causal"]


def reference_queries_of_a_group_in_one_axis(module, x):
    k, v = (split(part, module.kv_heads).repeat_interleave(module.group, 1) for part in module.kv(x).chunk(2, -1))
    return join(attention(split(module.q(x), module.kv_heads * module.group), k, v, keep=causal(*[x.shape[1]] * 2)))

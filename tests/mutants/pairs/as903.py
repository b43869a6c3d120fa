"""AS903: an argument is changed in place."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, heads, merge, visible

SELF = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 5, "Dk": 4})
CROSS = (
    {"B": 4, "H": 5, "Lq": 7, "Lk": 9, "Dk": 6},
    {"B": 5, "H": 4, "Lq": 11, "Lk": 7, "Dk": 8},
    {"B": 6, "H": 7, "Lq": 5, "Lk": 8, "Dk": 4},
)
PAIRS = [
    ("AS903", "residual_in_place", *SELF),
    ("AS903", "bias_filled", *SELF),
    ("AS903", "query_scaled", *CROSS),
    ("AS903", "mask_shifted", *CROSS),
]


class RightBlock(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def attention(self, h):
        B, N, C = h.shape
        q, k, v = self.qkv(h).view(B, N, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        attn = (q @ k.transpose(-2, -1) * (C // self.heads) ** -0.5).softmax(dim=-1)
        return self.proj((attn @ v).transpose(1, 2).reshape(B, N, C))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class WrongBlock(RightBlock):
    def forward(self, x):
        x += self.attention(self.norm1(x))  # wrong: AS903 residual_in_place
        return x + self.mlp(self.norm2(x))


def _residual_in_place(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def wrong_residual_in_place(B, H, L, Dk):
    return _residual_in_place(WrongBlock, B, H, L, Dk)


def right_residual_in_place(B, H, L, Dk):
    return _residual_in_place(RightBlock, B, H, L, Dk)


def reference_residual_in_place(module, x):
    x = x + merge(attend(*fused(module.norm1(x), module.qkv, module.heads)), module.proj)
    return x + module.mlp(module.norm2(x))


def with_causal_bias(q, k, v, bias):
    future = torch.ones(q.size(-2), k.size(-2), dtype=torch.bool, device=q.device).triu(1)
    bias = bias.masked_fill(future, -math.inf)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)


def with_causal_bias_filled(q, k, v, bias):
    future = torch.ones(q.size(-2), k.size(-2), dtype=torch.bool, device=q.device).triu(1)
    bias.masked_fill_(future, -math.inf)  # wrong: AS903 bias_filled
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)


def _bias_filled(function, B, H, L, Dk):
    return function, (*torch.randn(3, B, H, L, Dk), torch.randn(H, L, L)), {}, ["bias=bias", "causal"]


def wrong_bias_filled(B, H, L, Dk):
    return _bias_filled(with_causal_bias_filled, B, H, L, Dk)


def right_bias_filled(B, H, L, Dk):
    return _bias_filled(with_causal_bias, B, H, L, Dk)


def reference_bias_filled(function, q, k, v, bias):
    return attend(q, k, v, visible(q.shape[2], k.shape[2]), bias)


def scaled_copy(query, key, value):
    query = query * query.shape[-1] ** -0.5
    weights = torch.bmm(query, key.mT).softmax(dim=-1)
    return torch.bmm(weights, value)


def scaled_in_place(query, key, value):
    query.mul_(query.shape[-1] ** -0.5)  # wrong: AS903 query_scaled
    weights = torch.bmm(query, key.mT).softmax(dim=-1)
    return torch.bmm(weights, value)


def _query_scaled(function, B, H, Lq, Lk, Dk):
    return function, (torch.randn(B * H, Lq, Dk), *torch.randn(2, B * H, Lk, Dk)), {}


def wrong_query_scaled(B, H, Lq, Lk, Dk):
    return _query_scaled(scaled_in_place, B, H, Lq, Lk, Dk)


def right_query_scaled(B, H, Lq, Lk, Dk):
    return _query_scaled(scaled_copy, B, H, Lq, Lk, Dk)


def reference_query_scaled(function, query, key, value):
    return attend(query[:, None], key[:, None], value[:, None])[:, 0]


class RightCross(nn.Module):
    """Cross-attention over a padded memory; the mask has ones and zeros."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q_proj = nn.Linear(width, width)
        self.kv_proj = nn.Linear(width, 2 * width)
        self.out_proj = nn.Linear(width, width)

    def additive(self, mask):
        return (1.0 - mask) * -1e6

    def forward(self, x, memory, mask):
        q = self.q_proj(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
        k, v = self.kv_proj(memory).unflatten(-1, (2, self.n_heads, -1)).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)) + self.additive(mask)[:, None, None, :]
        return self.out_proj((F.softmax(scores, dim=-1) @ v).transpose(1, 2).flatten(2))


class WrongCross(RightCross):
    def additive(self, mask):
        return mask.sub_(1.0) * 1e6  # wrong: AS903 mask_shifted


def _mask_shifted(cls, B, H, Lq, Lk, Dk):
    mask = (torch.rand(B, Lk) < 0.6).float()
    mask[:, 0] = 1.0
    return cls(H * Dk, H), (torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk), mask), {}, ["mask=keep"]


def wrong_mask_shifted(B, H, Lq, Lk, Dk):
    return _mask_shifted(WrongCross, B, H, Lq, Lk, Dk)


def right_mask_shifted(B, H, Lq, Lk, Dk):
    return _mask_shifted(RightCross, B, H, Lq, Lk, Dk)


def reference_mask_shifted(module, x, memory, mask):
    both = torch.einsum("bli,oi->blo", memory, module.kv_proj.weight) + module.kv_proj.bias
    k, v = both.unflatten(-1, (2, module.n_heads, -1)).permute(2, 0, 3, 1, 4)
    return merge(attend(heads(x, module.q_proj, module.n_heads), k, v, mask[:, None, None] == 1), module.out_proj)

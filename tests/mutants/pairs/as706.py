"""AS706: a bias is transposed."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, heads, merge, visible

SELF = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 5, "Dk": 4})
PAIRS = [
    ("AS706", "transposed_pairs", *SELF),
    ("AS706", "folded_distances", *SELF),
    ("AS706", "alibi_sign", *SELF),
    ("AS706", "alibi_in_sdpa", *SELF),
]


class RightPairBias(nn.Module):
    """Gated self-attention with a bias for each pair of tokens."""

    def __init__(self, c, heads):
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(c, 3 * c, bias=False)
        self.gate = nn.Linear(c, c)
        self.out = nn.Linear(c, c)

    def biased(self, scores, bias):
        return scores + bias

    def forward(self, x, bias):
        q, k, v = (t.unflatten(-1, (self.heads, -1)) for t in self.to_qkv(x).chunk(3, dim=-1))
        scores = torch.einsum("bihd,bjhd->bhij", q, k) / math.sqrt(q.shape[-1])
        weights = self.biased(scores, bias).softmax(dim=-1)
        context = torch.einsum("bhij,bjhd->bihd", weights, v).flatten(2)
        return self.out(context * self.gate(x).sigmoid())


class WrongPairBias(RightPairBias):
    def biased(self, scores, bias):
        return scores + bias.transpose(-2, -1)  # wrong: AS706 transposed_pairs


def _transposed_pairs(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), torch.randn(B, H, L, L)), {}, ["bias=bias"]


def wrong_transposed_pairs(B, H, L, Dk):
    return _transposed_pairs(WrongPairBias, B, H, L, Dk)


def right_transposed_pairs(B, H, L, Dk):
    return _transposed_pairs(RightPairBias, B, H, L, Dk)


def reference_transposed_pairs(module, x, bias):
    context = merge(attend(*fused(x, module.to_qkv, module.heads), bias=bias))
    return module.out(context / (1 + torch.exp(-module.gate(x))))


def by_distance(values, L):
    """H 2L-1 -> H L L, the same number wherever i - j is the same."""
    i = torch.arange(L)
    return values[:, i[:, None] - i[None, :] + L - 1]


def folded(q, k, v, distance_bias):
    B = q.size(0) // distance_bias.size(0)
    scores = torch.baddbmm(distance_bias.repeat(B, 1, 1), q, k.transpose(1, 2), alpha=q.size(-1) ** -0.5)
    return torch.bmm(F.softmax(scores, dim=-1), v)


def folded_transposed(q, k, v, distance_bias):
    B = q.size(0) // distance_bias.size(0)
    tiled = distance_bias.repeat(B, 1, 1)
    scores = torch.baddbmm(tiled.mT, q, k.transpose(1, 2), alpha=q.size(-1) ** -0.5)  # wrong: AS706 folded_distances
    return torch.bmm(F.softmax(scores, dim=-1), v)


def _folded_distances(function, B, H, L, Dk):
    q, k, v = torch.randn(3, B * H, L, Dk)
    return function, (q, k, v, by_distance(torch.randn(H, 2 * L - 1), L)), {}, ["distance_bias=relative-bias"]


def wrong_folded_distances(B, H, L, Dk):
    return _folded_distances(folded_transposed, B, H, L, Dk)


def right_folded_distances(B, H, L, Dk):
    return _folded_distances(folded, B, H, L, Dk)


def reference_folded_distances(function, q, k, v, distance_bias):
    H = distance_bias.shape[0]
    q, k, v = (t.unflatten(0, (-1, H)) for t in (q, k, v))
    return attend(q, k, v, bias=distance_bias).flatten(0, 1)


class RightAlibi(nn.Module):
    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, width, bias=False)
        self.v = nn.Linear(width, width, bias=False)
        self.o = nn.Linear(width, width)
        self.register_buffer("slopes", 2.0 ** (-8.0 * torch.arange(1, n_heads + 1) / n_heads))

    def relative(self, position):
        return position[None, :] - position[:, None]

    def forward(self, x):
        B, L, D = x.shape
        q, k, v = (p(x).view(B, L, self.n_heads, -1).transpose(1, 2) for p in (self.q, self.k, self.v))
        distance = self.relative(torch.arange(L, device=x.device))
        scores = q @ k.transpose(-1, -2) / math.sqrt(D // self.n_heads) + self.slopes[:, None, None] * distance
        scores = scores.masked_fill(torch.ones(L, L, device=x.device).triu(1) == 1, -math.inf)
        return self.o((scores.softmax(-1) @ v).transpose(1, 2).reshape(B, L, D))


class WrongAlibi(RightAlibi):
    def relative(self, position):
        return position[:, None] - position[None, :]


def _alibi_sign(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["causal", "alibi"]


def wrong_alibi_sign(B, H, L, Dk):
    return _alibi_sign(WrongAlibi, B, H, L, Dk)


def right_alibi_sign(B, H, L, Dk):
    return _alibi_sign(RightAlibi, B, H, L, Dk)


def penalty(slopes, L):
    return torch.stack([torch.stack([-s * (i - torch.arange(L)) for i in range(L)]) for s in slopes.double()])


def reference_alibi_sign(module, x):
    L = x.shape[1]
    q, k, v = (heads(x, p, module.n_heads) for p in (module.q, module.k, module.v))
    return merge(attend(q, k, v, visible(L, L), penalty(module.slopes, L)), module.o)


def slopes_and_distance(q):
    H, L = q.shape[1], q.shape[2]
    slopes = torch.pow(2.0, -8.0 / H * torch.arange(1, H + 1, dtype=q.dtype, device=q.device)).view(H, 1, 1)
    return slopes, torch.arange(L, device=q.device).view(L, 1) - torch.arange(L, device=q.device)


def falling(q, k, v):
    slopes, back = slopes_and_distance(q)
    bias = -slopes * back
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias.masked_fill(back < 0, -math.inf))


def rising(q, k, v):
    slopes, back = slopes_and_distance(q)
    bias = slopes * back
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias.masked_fill(back < 0, -math.inf))


def _alibi_in_sdpa(function, B, H, L, Dk):
    return function, tuple(torch.randn(3, B, H, L, Dk)), {}, ["causal", "alibi"]


def wrong_alibi_in_sdpa(B, H, L, Dk):
    return _alibi_in_sdpa(rising, B, H, L, Dk)


def right_alibi_in_sdpa(B, H, L, Dk):
    return _alibi_in_sdpa(falling, B, H, L, Dk)


def reference_alibi_in_sdpa(function, q, k, v):
    H, L = q.shape[1], q.shape[2]
    slopes = torch.tensor([2.0 ** (-8 * (h + 1) / H) for h in range(H)], dtype=torch.float64)
    return attend(q, k, v, visible(L, L), penalty(slopes, L))

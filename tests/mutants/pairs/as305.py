"""AS305: dropout comes before the softmax."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.mutants.plain import join, softmax, split

SIZES = ({"B": 2, "H": 4, "L": 6, "Dk": 5}, {"B": 5, "H": 2, "L": 7, "Dk": 4}, {"B": 4, "H": 3, "L": 9, "Dk": 8})
CROSS = (
    {"B": 2, "H": 4, "Lq": 5, "Lk": 7, "Dk": 3},
    {"B": 3, "H": 2, "Lq": 8, "Lk": 4, "Dk": 6},
    {"B": 5, "H": 3, "Lq": 4, "Lk": 9, "Dk": 6},
)
PAIRS = [
    ("AS305", "dropped_scores", *SIZES),
    ("AS305", "folded_pattern", *CROSS),
    ("AS305", "einsum_pattern", *CROSS),
]


def pattern(*shape):
    """Return a dropout pattern: zeros, and the factor that compensates for them."""
    return torch.bernoulli(torch.full(shape, 0.75)) / 0.75


def dropped(q: Tensor, k: Tensor, v: Tensor, noise: Tensor) -> Tensor:
    """The context of each query: (B, H, Lq, Dv)."""
    weights = torch.einsum("...id,...jd->...ij", q, k).mul(q.shape[-1] ** -0.5)
    return softmax(weights) * noise @ v


class NoisyAttention(nn.Module):
    """The dropout's pattern (B, H, L, L) is drawn outside, so that a run can be repeated."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def weights(self, scores, noise):
        return scores.softmax(dim=-1) * noise

    def forward(self, x, noise):
        B, L, D = x.shape
        q, k, v = self.qkv(x).view(B, L, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4)
        weights = self.weights(q @ k.transpose(-2, -1) / math.sqrt(D // self.heads), noise)
        return self.out((weights @ v).transpose(1, 2).reshape(B, L, D))


class NoisyAttentionBefore(NoisyAttention):
    def weights(self, scores, noise):
        return (scores * noise).softmax(dim=-1)  # wrong: AS305 dropped_scores


def wrong_dropped_scores(B, H, L, Dk):
    return NoisyAttentionBefore(H * Dk, H), (torch.randn(B, L, H * Dk), pattern(B, H, L, L)), {}, ["noise=dropout"]


def right_dropped_scores(B, H, L, Dk):
    return NoisyAttention(H * Dk, H), (torch.randn(B, L, H * Dk), pattern(B, H, L, L)), {}, ["noise=dropout"]


def reference_dropped_scores(module, x, noise):
    q, k, v = (split(t, module.heads) for t in module.qkv(x).chunk(3, dim=-1))
    return module.out(join(dropped(q, k, v, noise)))


def folded(q: Tensor, k: Tensor, v: Tensor, noise: Tensor) -> Tensor:
    """Attend in (B*H, L, Dk); `noise` is the pattern of a dropout, (B*H, Lq, Lk)."""
    weights = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(q.size(-1))
    weights = F.softmax(weights, dim=-1)
    weights = weights * noise
    return torch.bmm(weights, v)


def folded_before(q: Tensor, k: Tensor, v: Tensor, noise: Tensor) -> Tensor:
    """Attend in (B*H, L, Dk); `noise` is the pattern of a dropout, (B*H, Lq, Lk)."""
    weights = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(q.size(-1))
    weights = weights * noise  # wrong: AS305 folded_pattern
    weights = F.softmax(weights, dim=-1)
    return torch.bmm(weights, v)


def _folded(B, H, Lq, Lk, Dk):
    q, k, v = torch.randn(B * H, Lq, Dk), torch.randn(B * H, Lk, Dk), torch.randn(B * H, Lk, Dk)
    return (q, k, v), {"noise": pattern(B * H, Lq, Lk)}, ["noise=dropout"]


def wrong_folded_pattern(B, H, Lq, Lk, Dk):
    return folded_before, *_folded(B, H, Lq, Lk, Dk)


def right_folded_pattern(B, H, Lq, Lk, Dk):
    return folded, *_folded(B, H, Lq, Lk, Dk)


def reference_folded_pattern(function, q, k, v, noise):
    return dropped(q, k, v, noise)


class EinsumAttention(nn.Module):
    """Weights as (width, H, Dk) parameters; drops whole keys for all queries, (B, H, 1, Lk)."""

    def __init__(self, heads, depth):
        super().__init__()
        self.wq, self.wk, self.wv = (
            nn.Parameter(torch.randn(heads * depth, heads, depth) / math.sqrt(heads * depth)) for _ in range(3)
        )

    def weights(self, logits, noise):
        return torch.softmax(logits, dim=-1) * noise

    def forward(self, x, memory, noise):
        q = torch.einsum("bqm,mhd->bhqd", x, self.wq) * self.wq.shape[-1] ** -0.5
        k, v = (torch.einsum("bkm,mhd->bhkd", memory, w) for w in (self.wk, self.wv))
        weights = self.weights(torch.einsum("bhqd,bhkd->bhqk", q, k), noise)
        return torch.einsum("bhqk,bhkd->bqhd", weights, v).flatten(2)


class EinsumAttentionBefore(EinsumAttention):
    def weights(self, logits, noise):
        return torch.softmax(torch.mul(logits, noise), dim=-1)  # wrong: AS305 einsum_pattern


def _noisy_cross(module, B, H, Lq, Lk, Dk):
    inputs = torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk), pattern(B, H, 1, Lk)
    return module(H, Dk), inputs, {}, ["noise=dropout"]


def wrong_einsum_pattern(B, H, Lq, Lk, Dk):
    return _noisy_cross(EinsumAttentionBefore, B, H, Lq, Lk, Dk)


def right_einsum_pattern(B, H, Lq, Lk, Dk):
    return _noisy_cross(EinsumAttention, B, H, Lq, Lk, Dk)


def reference_einsum_pattern(module, x, memory, noise):
    heads = module.wq.shape[1]
    q, k, v = (split(t @ w.flatten(1), heads) for t, w in ((x, module.wq), (memory, module.wk), (memory, module.wv)))
    return join(dropped(q, k, v, noise))

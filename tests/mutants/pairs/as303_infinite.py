"""AS303: minus infinity is written to weights, or added to them, after the softmax."""

import math

import torch
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, merge, visible

SELF = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 5, "Dk": 3})
PAIRS = [
    ("AS303", "infinity_filled", *SELF),
    ("AS303", "infinity_added", *SELF),
    ("AS303", "infinity_chosen", *SELF),
]


class Filled(nn.Module):
    """Causal attention."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.dropout = nn.Dropout(0.1)

    def weights(self, scores, later):
        return scores.masked_fill(later, -torch.inf).softmax(dim=-1)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        weights = self.weights(q @ k.mT / math.sqrt(q.shape[-1]), later)
        return self.out((self.dropout(weights) @ v).transpose(1, 2).flatten(2))


class WrongFilled(Filled):
    def weights(self, scores, later):
        return scores.softmax(dim=-1).masked_fill(later, -torch.inf)  # wrong: AS303 infinity_filled


def _filled(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["causal"]


def wrong_infinity_filled(B, H, L, Dk):
    return _filled(WrongFilled, B, H, L, Dk)


def right_infinity_filled(B, H, L, Dk):
    return _filled(Filled, B, H, L, Dk)


def reference_infinity_filled(module, x):
    q, k, v = fused(x, module.qkv, module.n_heads)
    return merge(attend(q, k, v, visible(x.shape[1], x.shape[1])), module.out)


def biased_before(q, k, v):
    hidden = torch.full((q.shape[2], k.shape[2]), -torch.inf, dtype=q.dtype).triu(1)
    scores = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5
    return torch.einsum("bhij,bhjd->bhid", torch.softmax(scores + hidden, -1), v)


def biased_after(q, k, v):
    hidden = torch.full((q.shape[2], k.shape[2]), -torch.inf, dtype=q.dtype).triu(1)
    scores = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5
    weights = torch.softmax(scores, -1) + hidden  # wrong: AS303 infinity_added
    return torch.einsum("bhij,bhjd->bhid", weights, v)


def wrong_infinity_added(B, H, L, Dk):
    return biased_after, tuple(torch.randn(3, B, H, L, Dk)), {}, ["causal"]


def right_infinity_added(B, H, L, Dk):
    return biased_before, tuple(torch.randn(3, B, H, L, Dk)), {}, ["causal"]


def reference_infinity_added(_, q, k, v):
    return attend(q, k, v, visible(q.shape[2], q.shape[2]))


def chosen_before(q, k, v, keep):
    scores = (q @ k.mT).div(q.shape[-1] ** 0.5)
    return torch.where(keep[:, None, None], scores, -torch.inf).softmax(-1) @ v


def chosen_after(q, k, v, keep):
    weights = (q @ k.mT).div(q.shape[-1] ** 0.5).softmax(-1)
    return torch.where(keep[:, None, None], weights, -torch.inf) @ v  # wrong: AS303 infinity_chosen


def _chosen(function, B, H, L, Dk):
    keep = torch.arange(L) < L - torch.arange(B)[:, None] % 3
    return function, (*torch.randn(3, B, H, L, Dk), keep), {}, ["keep=keep"]


def wrong_infinity_chosen(B, H, L, Dk):
    return _chosen(chosen_after, B, H, L, Dk)


def right_infinity_chosen(B, H, L, Dk):
    return _chosen(chosen_before, B, H, L, Dk)


def reference_infinity_chosen(_, q, k, v, keep):
    return attend(q, k, v, keep[:, None, None].expand(-1, 1, q.shape[2], -1))

"""AS712: the bias tells the keys on one side of the query apart, and not those on the other. It is a notice."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, merge

SELF = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 8, "Dk": 4})
PAIRS = [
    ("AS712", "causal_buckets", *SELF),
    ("AS712", "clamped_index", *SELF),
    ("AS712", "one_sided_penalty", *SELF),
]


def by_distance(table, length):
    """2L-1 H -> H L L, entry by entry: row j - i + L - 1."""
    rows = [torch.stack([table[j - i + length - 1] for j in range(length)]) for i in range(length)]
    return torch.stack([row.T for row in rows], dim=1)


class RightBuckets(nn.Module):
    """The buckets of an encoder: the second half is for later keys."""

    def __init__(self, width, n_heads, length):
        super().__init__()
        self.n_heads, self.length = n_heads, length
        self.relative = nn.Embedding(2 * length, n_heads)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)

    def bucket(self, relative):
        return (relative > 0).long() * self.length + relative.abs()

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)
        positions = torch.arange(x.size(1))
        bias = self.relative(self.bucket(positions[None, :] - positions[:, None])).permute(2, 0, 1)
        return self.out(((q @ k.mT + bias).softmax(dim=-1) @ v).transpose(1, 2).flatten(2))


class WrongBuckets(RightBuckets):
    def bucket(self, relative):
        return -torch.min(relative, torch.zeros_like(relative))  # wrong: AS712 causal_buckets


def wrong_causal_buckets(B, H, L, Dk):
    return WrongBuckets(H * Dk, H, L), (torch.randn(B, L, H * Dk),), {}, ["scale=1"]


def right_causal_buckets(B, H, L, Dk):
    return RightBuckets(H * Dk, H, L), (torch.randn(B, L, H * Dk),), {}, ["scale=1"]


def reference_causal_buckets(module, x):
    n = x.shape[1]
    rows = [n - 1 - i for i in range(n - 1)] + [0] + [module.length + i for i in range(1, n)]
    bias = by_distance(module.relative.weight[rows], n)
    return merge(attend(*fused(x, module.qkv, module.n_heads), bias=bias, scale=1.0), module.out)


class RightClamped(nn.Module):
    """A parameter with an entry for each distance, read by torch's fused attention."""

    def __init__(self, width, n_heads, length):
        super().__init__()
        self.n_heads, self.most = n_heads, length - 1
        self.table = nn.Parameter(torch.randn(n_heads, 2 * length - 1))
        self.to_q, self.to_k, self.to_v = (nn.Linear(width, width) for _ in range(3))

    def index(self, distance):
        return distance.clamp(-self.most, self.most) + self.most

    def forward(self, x):
        q, k, v = (w(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for w in (self.to_q, self.to_k, self.to_v))
        i = torch.arange(x.size(1))
        bias = self.table[:, self.index(i.view(1, -1) - i.view(-1, 1))]
        return F.scaled_dot_product_attention(q, k, v, bias).transpose(1, 2).flatten(2)


class WrongClamped(RightClamped):
    def index(self, distance):
        return distance.clamp(0, self.most) + self.most  # wrong: AS712 clamped_index


def wrong_clamped_index(B, H, L, Dk):
    return WrongClamped(H * Dk, H, L), (torch.randn(B, L, H * Dk),), {}


def right_clamped_index(B, H, L, Dk):
    return RightClamped(H * Dk, H, L), (torch.randn(B, L, H * Dk),), {}


def reference_clamped_index(module, x):
    weights = (module.to_q, module.to_k, module.to_v)
    q, k, v = (one(x).unflatten(-1, (module.n_heads, -1)).transpose(1, 2) for one in weights)
    return merge(attend(q, k, v, bias=by_distance(module.table.T, x.shape[1])))


def penalised(q, k, v):
    n = q.size(-2)
    behind = torch.arange(n)[:, None] - torch.arange(n)
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.size(-1))
    return torch.einsum("bhij,bhjd->bhid", torch.softmax(scores - 0.5 * behind.abs(), -1), v)


def penalised_before(q, k, v):
    n = q.size(-2)
    behind = (torch.arange(n)[:, None] - torch.arange(n)).relu()  # wrong: AS712 one_sided_penalty
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.size(-1))
    return torch.einsum("bhij,bhjd->bhid", torch.softmax(scores - 0.5 * behind.abs(), -1), v)


def wrong_one_sided_penalty(B, H, L, Dk):
    return penalised_before, tuple(torch.randn(3, B, H, L, Dk)), {}


def right_one_sided_penalty(B, H, L, Dk):
    return penalised, tuple(torch.randn(3, B, H, L, Dk)), {}


def reference_one_sided_penalty(called, q, k, v):
    n = q.shape[2]
    bias = torch.tensor([[-0.5 * abs(i - j) for j in range(n)] for i in range(n)], dtype=q.dtype)
    return attend(q, k, v, bias=bias)

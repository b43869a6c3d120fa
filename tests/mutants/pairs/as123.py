"""AS123: the last slice of a tensor is never written, since the number of slices is rounded down."""

import math

import torch
from torch import nn

from tests.mutants.plain import attention, multihead

QUERIES = (
    {"B": 3, "H": 2, "Lq": 11, "Lk": 7, "Dk": 4},
    {"B": 2, "H": 3, "Lq": 14, "Lk": 9, "Dk": 5},
    {"B": 4, "H": 5, "Lq": 7, "Lk": 6, "Dk": 3},
)
SELF = (
    {"B": 5, "H": 7, "L": 11, "Dk": 4},
    {"B": 2, "H": 5, "L": 9, "Dk": 6},
    {"B": 5, "H": 4, "L": 7, "Dk": 3},
)
PLAIN = (
    {"B": 7, "Lq": 5, "Lk": 9, "Dk": 4, "Dv": 6},
    {"B": 11, "Lq": 6, "Lk": 8, "Dk": 3, "Dv": 5},
    {"B": 13, "Lq": 7, "Lk": 10, "Dk": 5, "Dv": 4},
)
PAIRS = [
    ("AS123", "queries_in_whole_slices", *QUERIES),
    ("AS123", "heads_in_whole_slices", *SELF),
    ("AS123", "batch_in_whole_groups", *PLAIN),
]


class RightSliced(nn.Module):
    """Cross-attention, some queries at a time."""

    def __init__(self, width, heads, size=4):
        super().__init__()
        self.heads, self.size = heads, size
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(width, width, bias=False) for _ in range(4))

    def split(self, t):
        return t.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def slices(self, n):
        return math.ceil(n / self.size)

    def forward(self, x, memory):
        q, k, v = self.split(self.to_q(x)), self.split(self.to_k(memory)), self.split(self.to_v(memory))
        out = torch.zeros_like(q)
        for i in range(self.slices(q.shape[2])):
            part = slice(i * self.size, (i + 1) * self.size)
            weights = (q[:, :, part] @ k.mT / math.sqrt(q.shape[-1])).softmax(dim=-1)
            out[:, :, part] = weights @ v  # wrong: AS123 queries_in_whole_slices
        return self.to_out(out.transpose(1, 2).flatten(2))


class WholeSlices(RightSliced):
    def slices(self, n):
        return n // self.size


def _sliced(cls, B, H, Lq, Lk, Dk):
    return cls(H * Dk, H), (torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk)), {}


def wrong_queries_in_whole_slices(B, H, Lq, Lk, Dk):
    return _sliced(WholeSlices, B, H, Lq, Lk, Dk)


def right_queries_in_whole_slices(B, H, Lq, Lk, Dk):
    return _sliced(RightSliced, B, H, Lq, Lk, Dk)


def reference_queries_in_whole_slices(module, x, memory):
    return module.to_out(multihead(module.to_q(x), module.to_k(memory), module.to_v(memory), module.heads))


class RightFolded(nn.Module):
    """Heads are folded into the batch, and processed three at a time."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def starts(self, n):
        return range(0, n, 3)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (
            t.reshape(batch, length, self.heads, -1).transpose(1, 2).reshape(batch * self.heads, length, -1)
            for t in self.qkv(x).chunk(3, dim=-1)
        )
        context = torch.zeros((len(q), length, width // self.heads), dtype=x.dtype)
        for start in self.starts(len(q)):
            query, key, value = (t[start : start + 3] for t in (q, k, v))
            scores = torch.baddbmm(
                torch.zeros(len(query), length, length, dtype=x.dtype), query, key.mT, beta=0, alpha=q.shape[-1] ** -0.5
            )
            context[start : start + 3] = torch.bmm(scores.softmax(-1), value)  # wrong: AS123 heads_in_whole_slices
        context = context.reshape(batch, self.heads, length, -1).transpose(1, 2)
        return self.out(context.reshape(batch, length, width))


class WholeFolded(RightFolded):
    def starts(self, n):
        return range(0, n - n % 3, 3)


def wrong_heads_in_whole_slices(B, H, L, Dk):
    return WholeFolded(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def right_heads_in_whole_slices(B, H, L, Dk):
    return RightFolded(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def reference_heads_in_whole_slices(module, x):
    return module.out(multihead(*module.qkv(x).chunk(3, dim=-1), module.heads))


def in_groups(q, k, v, groups):
    """A few elements of the batch at a time."""
    out = q.new_empty(len(q), q.shape[1], v.shape[-1]).zero_()
    for i in range(groups(len(q))):
        rows = slice(2 * i, 2 * i + 2)
        weights = torch.einsum("bqd,bkd->bqk", q[rows], k[rows]).div(math.sqrt(q.shape[-1])).softmax(-1)
        out[rows] = torch.einsum("bqk,bkd->bqd", weights, v[rows])  # wrong: AS123 batch_in_whole_groups
    return out


def whole_groups(q, k, v):
    return in_groups(q, k, v, lambda n: n // 2)


def all_groups(q, k, v):
    return in_groups(q, k, v, lambda n: (n + 1) // 2)


def _plain(function, B, Lq, Lk, Dk, Dv):
    return function, (torch.randn(B, Lq, Dk), torch.randn(B, Lk, Dk), torch.randn(B, Lk, Dv)), {}


def wrong_batch_in_whole_groups(B, Lq, Lk, Dk, Dv):
    return _plain(whole_groups, B, Lq, Lk, Dk, Dv)


def right_batch_in_whole_groups(B, Lq, Lk, Dk, Dv):
    return _plain(all_groups, B, Lq, Lk, Dk, Dv)


def reference_batch_in_whole_groups(function, q, k, v):
    return attention(q, k, v)

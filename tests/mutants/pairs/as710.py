"""AS710: the heads of a bias table are mixed up."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, heads, merge

SELF = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 5, "Dk": 4})
PAIRS = [
    ("AS710", "viewed_table", *SELF),
    ("AS710", "reshaped_embedding", *SELF),
    ("AS710", "given_pairs", *SELF),
    ("AS710", "folded_batch", *SELF),
]


def distances(length):
    return torch.arange(length) - torch.arange(length)[:, None] + length - 1


def by_distance(table, length):
    """2L-1 H -> H L L, entry by entry."""
    rows = [torch.stack([table[j - i + length - 1] for j in range(length)]) for i in range(length)]
    return torch.stack([row.T for row in rows], dim=1)


class RightWindow(nn.Module):
    """The tokens of one window, with a table of their relative positions."""

    def __init__(self, dim, num_heads, length):
        super().__init__()
        self.num_heads, self.scale = num_heads, (dim // num_heads) ** -0.5
        self.table = nn.Parameter(torch.randn(2 * length - 1, num_heads))
        self.register_buffer("index", distances(length))
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def bias(self, length):
        chosen = self.table[self.index.view(-1)].view(length, length, -1)
        return chosen.permute(2, 0, 1).contiguous()

    def forward(self, x):
        B, L, D = x.shape
        q, k, v = self.qkv(x).reshape(B, L, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        scores = (q * self.scale) @ k.transpose(-2, -1) + self.bias(L).unsqueeze(0)
        return self.proj((scores.softmax(dim=-1) @ v).transpose(1, 2).reshape(B, L, D))


class WrongWindow(RightWindow):
    def bias(self, length):
        chosen = self.table[self.index.view(-1)]
        return chosen.view(-1, length, length)  # wrong: AS710 viewed_table


def wrong_viewed_table(B, H, L, Dk):
    return WrongWindow(H * Dk, H, L), (torch.randn(B, L, H * Dk),), {}


def right_viewed_table(B, H, L, Dk):
    return RightWindow(H * Dk, H, L), (torch.randn(B, L, H * Dk),), {}


def reference_viewed_table(module, x):
    bias = by_distance(module.table, x.shape[1])
    return merge(attend(*fused(x, module.qkv, module.num_heads), bias=bias), module.proj)


class RightBucketed(nn.Module):
    """An embedding of distances is given to torch's fused attention."""

    def __init__(self, width, n_heads, length):
        super().__init__()
        self.n_heads = n_heads
        self.relative = nn.Embedding(2 * length - 1, n_heads)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))

    def by_head(self, values):
        return values.movedim(-1, 0)[None]

    def forward(self, states):
        q, k, v = (w(states).unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for w in (self.q, self.k, self.v))
        bias = self.by_head(self.relative(distances(states.size(1))))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return self.o(out.transpose(1, 2).flatten(2))


class WrongBucketed(RightBucketed):
    def by_head(self, values):
        return values.reshape(1, self.n_heads, *values.shape[:2])  # wrong: AS710 reshaped_embedding


def wrong_reshaped_embedding(B, H, L, Dk):
    return WrongBucketed(H * Dk, H, L), (torch.randn(B, L, H * Dk),), {}


def right_reshaped_embedding(B, H, L, Dk):
    return RightBucketed(H * Dk, H, L), (torch.randn(B, L, H * Dk),), {}


def reference_reshaped_embedding(module, x):
    q, k, v = (heads(x, one, module.n_heads) for one in (module.q, module.k, module.v))
    return merge(attend(q, k, v, bias=by_distance(module.relative.weight, x.shape[1])), module.o)


def with_pairs(q, k, v, pairs):
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.shape[-1])
    return torch.softmax(scores + torch.einsum("ijh->hij", pairs), -1) @ v


def with_reshaped_pairs(q, k, v, pairs):
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.shape[-1])
    return torch.softmax(scores + pairs.reshape(q.shape[1], *pairs.shape[:2]), -1) @ v  # wrong: AS710 given_pairs


def _given_pairs(function, B, H, L, Dk):
    return function, (*torch.randn(3, B, H, L, Dk), torch.randn(L, L, H)), {}


def wrong_given_pairs(B, H, L, Dk):
    return _given_pairs(with_reshaped_pairs, B, H, L, Dk)


def right_given_pairs(B, H, L, Dk):
    return _given_pairs(with_pairs, B, H, L, Dk)


def reference_given_pairs(called, q, k, v, pairs):
    return attend(q, k, v, bias=pairs.permute(2, 0, 1))


class RightFolded(nn.Module):
    """Batch and heads share an axis, the heads inside."""

    def __init__(self, width, n_heads, length):
        super().__init__()
        self.n_heads = n_heads
        self.bias = nn.Parameter(torch.randn(n_heads, length, length))
        self.in_proj, self.out_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def for_batch(self, batch):
        return self.bias.repeat(batch, 1, 1)

    def forward(self, x):
        B, L, D = x.shape
        q, k, v = (t.view(B, L, self.n_heads, -1).transpose(1, 2).flatten(0, 1) for t in self.in_proj(x).chunk(3, -1))
        scores = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(D // self.n_heads) + self.for_batch(B)
        context = torch.bmm(scores.softmax(-1), v).view(B, self.n_heads, L, -1)
        return self.out_proj(context.transpose(1, 2).reshape(B, L, D))


class WrongFolded(RightFolded):
    def for_batch(self, batch):
        return self.bias.repeat_interleave(batch, dim=0)  # wrong: AS710 folded_batch


def wrong_folded_batch(B, H, L, Dk):
    return WrongFolded(H * Dk, H, L), (torch.randn(B, L, H * Dk),), {}


def right_folded_batch(B, H, L, Dk):
    return RightFolded(H * Dk, H, L), (torch.randn(B, L, H * Dk),), {}


def reference_folded_batch(module, x):
    return merge(attend(*fused(x, module.in_proj, module.n_heads), bias=module.bias), module.out_proj)

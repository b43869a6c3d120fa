"""AS711: a bias that falls with the distance is largest at another position than the query's own."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, merge, visible

SELF = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 5, "Dk": 4})
PAST = (
    {"B": 4, "H": 5, "L": 7, "Lp": 9, "Dk": 6},
    {"B": 5, "H": 4, "L": 9, "Lp": 6, "Dk": 8},
    {"B": 6, "H": 7, "L": 5, "Lp": 8, "Dk": 4},
)
PAIRS = [
    ("AS711", "queries_from_zero", *PAST),
    ("AS711", "off_by_one", *SELF),
    ("AS711", "memory_in_sdpa", *PAST),
]


def slopes(heads):
    return torch.tensor([2.0 ** (-8 * (head + 1) / heads) for head in range(heads)])


def falling(heads, queries, keys):
    """H Lq Lk, entry by entry: minus the slope for each token between the query and the key."""
    rows = [[-abs(i + keys - queries - j) for j in range(keys)] for i in range(queries)]
    return slopes(heads).double()[:, None, None] * torch.tensor(rows, dtype=torch.float64)


class RightDecoder(nn.Module):
    """Causal attention of new tokens over cached and new ones."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.register_buffer("slopes", slopes(heads).view(heads, 1, 1))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def distance(self, queries, keys):
        return torch.arange(keys)[None, :] - torch.arange(keys - queries, keys)[:, None]

    def forward(self, x, past_k, past_v):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        k, v = torch.cat((past_k, k), dim=2), torch.cat((past_v, v), dim=2)
        scores = q @ k.mT / math.sqrt(q.size(-1)) - self.slopes * self.distance(q.size(2), k.size(2)).abs()
        hidden = torch.ones(q.size(2), k.size(2), dtype=torch.bool).triu(k.size(2) - q.size(2) + 1)
        weights = scores.masked_fill(hidden, float("-inf")).softmax(dim=-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class WrongDecoder(RightDecoder):
    def distance(self, queries, keys):
        return torch.arange(keys)[None, :] - torch.arange(queries)[:, None]  # wrong: AS711 queries_from_zero


def _queries_from_zero(cls, B, H, L, Lp, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), *torch.randn(2, B, H, Lp, Dk)), {}


def wrong_queries_from_zero(B, H, L, Lp, Dk):
    return _queries_from_zero(WrongDecoder, B, H, L, Lp, Dk)


def right_queries_from_zero(B, H, L, Lp, Dk):
    return _queries_from_zero(RightDecoder, B, H, L, Lp, Dk)


def reference_queries_from_zero(module, x, past_k, past_v):
    q, k, v = fused(x, module.qkv, module.heads)
    k, v = torch.cat((past_k, k), dim=2), torch.cat((past_v, v), dim=2)
    n, m = q.shape[2], k.shape[2]
    bias = falling(module.heads, n, m) * (module.slopes / slopes(module.heads).view(-1, 1, 1))
    return merge(attend(q, k, v, keep=visible(n, m), bias=bias), module.out)


def encode(q, k, v):
    n = q.shape[2]
    distance = (torch.arange(n)[None, :] - torch.arange(n)[:, None]).abs()
    scores = q @ k.transpose(2, 3) * q.shape[3] ** -0.5 - slopes(q.shape[1])[:, None, None] * distance
    return torch.softmax(scores, dim=3) @ v


def encode_from_one(q, k, v):
    n = q.shape[2]
    distance = (torch.arange(n)[None, :] - torch.arange(1, n + 1)[:, None]).abs()  # wrong: AS711 off_by_one
    scores = q @ k.transpose(2, 3) * q.shape[3] ** -0.5 - slopes(q.shape[1])[:, None, None] * distance
    return torch.softmax(scores, dim=3) @ v


def wrong_off_by_one(B, H, L, Dk):
    return encode_from_one, tuple(torch.randn(3, B, H, L, Dk)), {}


def right_off_by_one(B, H, L, Dk):
    return encode, tuple(torch.randn(3, B, H, L, Dk)), {}


def reference_off_by_one(called, q, k, v):
    n = q.shape[2]
    return attend(q, k, v, bias=falling(q.shape[1], n, n).float().to(q))


def penalties(heads, offset, queries, keys):
    position = torch.arange(queries).add(offset).unsqueeze(1)
    return slopes(heads).neg().view(-1, 1, 1) * position.sub(torch.arange(keys)).abs()


class RightMemory(nn.Module):
    """Tokens see a memory and each other, without a causal mask."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)

    def bias(self, queries, keys):
        return penalties(self.heads, keys - queries, queries, keys)

    def forward(self, x, past_k, past_v):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        k, v = torch.cat([past_k, k], dim=2), torch.cat([past_v, v], dim=2)
        bias = self.bias(q.size(2), k.size(2)).to(q.dtype)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return self.out(out.transpose(1, 2).flatten(2))


class WrongMemory(RightMemory):
    def bias(self, queries, keys):
        rows = slopes(self.heads).neg().view(-1, 1, 1)
        return rows * torch.arange(queries).unsqueeze(1).sub(torch.arange(keys)).abs()  # wrong: AS711 memory_in_sdpa


def _memory_in_sdpa(cls, B, H, L, Lp, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), *torch.randn(2, B, H, Lp, Dk)), {}


def wrong_memory_in_sdpa(B, H, L, Lp, Dk):
    return _memory_in_sdpa(WrongMemory, B, H, L, Lp, Dk)


def right_memory_in_sdpa(B, H, L, Lp, Dk):
    return _memory_in_sdpa(RightMemory, B, H, L, Lp, Dk)


def reference_memory_in_sdpa(module, x, past_k, past_v):
    q, k, v = fused(x, module.qkv, module.heads)
    k, v = torch.cat((past_k, k), dim=2), torch.cat((past_v, v), dim=2)
    bias = falling(module.heads, q.shape[2], k.shape[2]).float().to(q)
    return merge(attend(q, k, v, bias=bias), module.out)

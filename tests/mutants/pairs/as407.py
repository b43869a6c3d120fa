"""AS407: a mask reaches the scores, and hides other keys than those that it should."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, heads, merge

SELF = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 5, "Dk": 4})
CROSS = (
    {"B": 4, "H": 5, "Lq": 7, "Lk": 9, "Dk": 6},
    {"B": 5, "H": 4, "Lq": 11, "Lk": 7, "Dk": 8},
    {"B": 6, "H": 7, "Lq": 5, "Lk": 8, "Dk": 4},
)
PAIRS = [
    ("AS407", "shifted_by_one", *SELF),
    ("AS407", "flipped_keys", *CROSS),
    ("AS407", "first_element_for_all", *SELF),
    ("AS407", "half_of_the_keys", *SELF),
]


def random_keep(*shape):
    keep = torch.rand(shape) < 0.6
    keep[..., 0] = True
    keep[..., -1] = False
    keep[0, ..., 1], keep[1, ..., 1] = True, False
    return keep


class Padded(nn.Module):
    """Attention with a mask of keys, which `of_scores` turns into one of the scores."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.h, self.d_k = n_heads, d_model // n_heads
        self.W_q = nn.Linear(d_model, d_model)
        self.W_k = nn.Linear(d_model, d_model)
        self.W_v = nn.Linear(d_model, d_model)
        self.W_o = nn.Linear(d_model, d_model)

    def of_scores(self, mask):
        return mask[:, None, None, :]

    def forward(self, x, mask):
        B, L, _ = x.shape
        Q = self.W_q(x).view(B, L, self.h, self.d_k).transpose(1, 2)
        K = self.W_k(x).view(B, L, self.h, self.d_k).transpose(1, 2)
        V = self.W_v(x).view(B, L, self.h, self.d_k).transpose(1, 2)
        scores = Q @ K.transpose(-2, -1) / math.sqrt(self.d_k)
        scores = scores.masked_fill(~self.of_scores(mask), -1e9)
        return self.W_o((F.softmax(scores, dim=-1) @ V).transpose(1, 2).reshape(B, L, -1))


class Shifted(Padded):
    def of_scores(self, mask):
        return torch.roll(mask, 1, dims=-1)[:, None, None, :]  # wrong: AS407 shifted_by_one


def _padded(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), random_keep(B, L)), {}, ["mask=keep"]


def wrong_shifted_by_one(B, H, L, Dk):
    return _padded(Shifted, B, H, L, Dk)


def right_shifted_by_one(B, H, L, Dk):
    return _padded(Padded, B, H, L, Dk)


def reference_shifted_by_one(module, x, mask):
    q, k, v = (heads(x, linear, module.h) for linear in (module.W_q, module.W_k, module.W_v))
    return merge(attend(q, k, v, mask[:, None, None]), module.W_o)


class FirstElement(Padded):
    def of_scores(self, mask):
        return mask[:1, None, None, :].expand(mask.shape[0], -1, -1, -1)  # wrong: AS407 first_element_for_all


def wrong_first_element_for_all(B, H, L, Dk):
    return _padded(FirstElement, B, H, L, Dk)


right_first_element_for_all = right_shifted_by_one
reference_first_element_for_all = reference_shifted_by_one


class RightMemory(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_kv = nn.Linear(dim, 2 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def addend(self, ignore):
        return torch.zeros(ignore.shape, dtype=self.to_q.weight.dtype).masked_fill(ignore, -torch.inf)

    def forward(self, x, memory, ignore):
        q = self.to_q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.to_kv(memory).chunk(2, -1))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=self.addend(ignore)[:, None, None])
        return self.to_out(out.transpose(1, 2).flatten(2))


class WrongMemory(RightMemory):
    def addend(self, ignore):
        return super().addend(ignore.flip(-1))  # wrong: AS407 flipped_keys


def _memory(cls, B, H, Lq, Lk, Dk):
    x, memory = torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk)
    return cls(H * Dk, H), (x, memory, ~random_keep(B, Lk)), {}, ["ignore=drop"]


def wrong_flipped_keys(B, H, Lq, Lk, Dk):
    return _memory(WrongMemory, B, H, Lq, Lk, Dk)


def right_flipped_keys(B, H, Lq, Lk, Dk):
    return _memory(RightMemory, B, H, Lq, Lk, Dk)


def reference_flipped_keys(module, x, memory, ignore):
    q = heads(x, module.to_q, module.heads)
    key, value = module.to_kv.weight.chunk(2)
    k, v = (torch.einsum("bli,hdi->bhld", memory, w.unflatten(0, (module.heads, -1))) for w in (key, value))
    return merge(attend(q, k, v, ~ignore[:, None, None]), module.to_out)


class Halves(nn.Module):
    """Scores of all heads at once, with a mask of each query's keys that is written in two halves."""

    def __init__(self, width, n):
        super().__init__()
        self.n = n
        self.qkv = nn.Linear(width, 3 * width)

    def first_half(self, keys):
        return 0, keys // 2

    def forward(self, x, allowed):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.n, C // self.n).permute(2, 0, 3, 1, 4)
        scores = torch.einsum("bhid,bhjd->bhij", q, k) * (C // self.n) ** -0.5
        for start, end in (self.first_half(T), (T // 2, T)):
            hidden = ~allowed[:, None, :, start:end]
            scores[..., start:end] = scores[..., start:end].masked_fill(hidden, -torch.inf)
        return torch.einsum("bhij,bhjd->bihd", scores.softmax(-1), v).reshape(B, T, C)


class WrongHalves(Halves):
    def first_half(self, keys):
        return 1, keys // 2


def _halves(cls, B, H, L, Dk):
    allowed = torch.rand(B, L, L) < 0.5
    allowed[:, :, -1], allowed[:, :, 0] = True, False
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), allowed), {}, ["allowed=keep"]


def wrong_half_of_the_keys(B, H, L, Dk):
    return _halves(WrongHalves, B, H, L, Dk)


def right_half_of_the_keys(B, H, L, Dk):
    return _halves(Halves, B, H, L, Dk)


def reference_half_of_the_keys(module, x, allowed):
    q, k, v = fused(x, module.qkv, module.n)
    return merge(attend(q, k, v, allowed[:, None]))

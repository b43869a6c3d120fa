"""AS708: positions are computed, and don't enter the scores as claimed."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, merge, turned, visible

SELF = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 5, "Dk": 4})
PAIRS = [
    ("AS708", "rotation_dropped", *SELF),
    ("AS708", "same_position_for_all", *SELF),
    ("AS708", "alternating_bias", *SELF),
]


def rotate_half(x):
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


class RightRoPE(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def positions(self, x):
        return torch.arange(x.shape[1], dtype=x.dtype)

    def turn(self, q, k, cos, sin):
        return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.to_qkv(x).chunk(3, dim=-1))
        width = q.shape[-1]
        angles = torch.outer(self.positions(x), 10000.0 ** -(torch.arange(0, width, 2, dtype=x.dtype) / width))
        angles = torch.cat((angles, angles), dim=-1)
        q, k = self.turn(q, k, angles.cos(), angles.sin())
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.to_out(out.transpose(1, 2).flatten(2))


class DroppedRoPE(RightRoPE):
    def turn(self, q, k, cos, sin):
        super().turn(q, k, cos, sin)
        return q, k


def _rope(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["causal", "rope=half"]


def wrong_rotation_dropped(B, H, L, Dk):
    return _rope(DroppedRoPE, B, H, L, Dk)


def right_rotation_dropped(B, H, L, Dk):
    return _rope(RightRoPE, B, H, L, Dk)


def reference_rotation_dropped(module, x):
    q, k, v = fused(x, module.to_qkv, module.heads)
    place = torch.arange(x.shape[1])
    return merge(attend(turned(q, place), turned(k, place), v, visible(len(place), len(place))), module.to_out)


class SamePosition(RightRoPE):
    def positions(self, x):
        return torch.full((x.shape[1],), x.shape[1] - 1, dtype=x.dtype)


def wrong_same_position_for_all(B, H, L, Dk):
    return _rope(SamePosition, B, H, L, Dk)


right_same_position_for_all = right_rotation_dropped
reference_same_position_for_all = reference_rotation_dropped


class RightSlopes(nn.Module):
    def __init__(self, width, n):
        super().__init__()
        self.n = n
        self.qkv = nn.Linear(width, 3 * width)

    def distances(self, T):
        return (torch.arange(T)[:, None] - torch.arange(T)[None, :]).abs()

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.n, C // self.n).permute(2, 0, 3, 1, 4)
        slopes = 2.0 ** (-8 / self.n * torch.arange(1, self.n + 1, dtype=x.dtype))
        scores = q @ k.mT / math.sqrt(C // self.n) - slopes[:, None, None] * self.distances(T)
        scores = scores.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), -torch.inf)
        return (scores.softmax(-1) @ v).transpose(1, 2).reshape(B, T, C)


class AlternatingSlopes(RightSlopes):
    def distances(self, T):
        return super().distances(T) % 2


def _slopes(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["causal", "alibi"]


def wrong_alternating_bias(B, H, L, Dk):
    return _slopes(AlternatingSlopes, B, H, L, Dk)


def right_alternating_bias(B, H, L, Dk):
    return _slopes(RightSlopes, B, H, L, Dk)


def reference_alternating_bias(module, x):
    q, k, v = fused(x, module.qkv, module.n)
    length = x.shape[1]
    back = torch.tensor([[abs(i - j) for j in range(length)] for i in range(length)])
    slopes = torch.tensor([2 ** (-8 * head / module.n) for head in range(1, module.n + 1)], dtype=torch.float64)
    return merge(attend(q, k, v, visible(length, length), bias=-slopes[:, None, None] * back))

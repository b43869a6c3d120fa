"""AS718: sines of both directions are computed from the absolute distance, so their vectors are the same."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, heads, merge
from tests.mutants.pairs.as714 import distances

SELF = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 3, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 5, "Dk": 4})
PAIRS = [
    ("AS718", "sides_written_in_turn", *SELF),
    ("AS718", "flipped_and_gathered", *SELF),
    ("AS718", "buffer_of_waves", *SELF),
]


def shift(x):
    b, h, n, m = x.shape
    return F.pad(x, (1, 0)).view(b, h, m + 1, n)[:, :, 1:].reshape(b, h, n, m)[..., :n]


def waves_of(positions, width, dtype):
    """Sines and cosines in turn, entry by entry."""
    rows = [[(math.sin, math.cos)[i % 2](p / 10000 ** (i // 2 * 2 / width)) for i in range(width)] for p in positions]
    return torch.tensor(rows, dtype=dtype)


class RightSides(nn.Module):
    """The encodings of past and future tokens are written into one tensor, then joined."""

    sign = -1.0

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads, self.depth = n_heads, width // n_heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.far = nn.Linear(width, width, bias=False)
        self.u, self.w = (nn.Parameter(torch.randn(n_heads, 1, self.depth)) for _ in range(2))

    def joined(self, past, future):
        return torch.cat([past.flip(0), future[1:]])

    def encoded(self, n, like):
        width = self.n_heads * self.depth
        angles = torch.arange(n).to(like)[:, None] * 10000.0 ** (-torch.arange(0, width, 2).to(like) / width)
        both = like.new_empty(2, n, width)
        past, future = both[0], both[1]
        past[:, 0::2], past[:, 1::2] = angles.sin(), angles.cos()
        future[:, 0::2], future[:, 1::2] = self.sign * angles.sin(), (-angles).cos()
        return self.joined(past, future)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2).chunk(3, dim=-1)
        far = self.far(self.encoded(x.shape[1], x)).unflatten(-1, (self.n_heads, -1)).transpose(0, 1)
        scores = ((q + self.u) @ k.mT + shift((q + self.w) @ far.mT)) / math.sqrt(self.depth)
        return self.out((scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2))


class WrongSides(RightSides):
    sign = 1.0

    def joined(self, past, future):
        return torch.cat([past.flip(0), future[1:]])  # wrong: AS718 sides_written_in_turn


def wrong_sides_written_in_turn(B, H, L, Dk):
    return WrongSides(H * Dk, H), (torch.randn(B, L, H * Dk),)


def right_sides_written_in_turn(B, H, L, Dk):
    return RightSides(H * Dk, H), (torch.randn(B, L, H * Dk),)


def reference_sides_written_in_turn(module, x):
    n, (batch, _, width) = x.shape[1], x.shape
    parts = module.qkv(x).view(batch, n, module.n_heads, 3 * module.depth).transpose(1, 2)
    q, k, v = parts.split(module.depth, dim=-1)
    far = heads(waves_of(range(n - 1, -n, -1), width, x.dtype)[None], module.far, module.n_heads)[0]
    scores = torch.einsum("bhid,bhjd->bhij", q + module.u, k) + distances(q + module.w, far)
    zero = torch.zeros_like(q)
    return merge(attend(zero, zero, v, bias=scores / math.sqrt(module.depth)), module.out)


def _gathered(table):
    """Return attention to which each pair's entry of a product with a table of vectors is added by gathering."""

    def attend_with(q, k, v):
        n, width = q.shape[-2:]
        frequencies = 1.0 / 10000 ** (torch.arange(0, width, 2, dtype=q.dtype) / width)
        by_vector = torch.einsum("bhid,rd->bhir", q, table(n, frequencies))
        index = torch.arange(n)[None, :] - torch.arange(n)[:, None] + n - 1
        bias = by_vector.gather(-1, index.expand(*q.shape[:2], n, n))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias * width**-0.5)

    return attend_with


def _of(steps, frequencies):
    angles = torch.outer(steps.to(frequencies), frequencies)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)


def wrong_flipped_and_gathered(B, H, L, Dk):
    def table(n, frequencies):
        half = _of(torch.arange(n), frequencies)
        return torch.cat([half[1:].flip(0), half], dim=0)  # wrong: AS718 flipped_and_gathered

    return _gathered(table), tuple(torch.randn(B, H, L, Dk) for _ in range(3))


def right_flipped_and_gathered(B, H, L, Dk):
    def table(n, frequencies):
        return torch.cat([_of(-torch.arange(1, n).flip(0), frequencies), _of(torch.arange(n), frequencies)], dim=0)

    return _gathered(table), tuple(torch.randn(B, H, L, Dk) for _ in range(3))


def reference_flipped_and_gathered(attend_with, q, k, v):
    n, width = q.shape[-2:]
    table = waves_of(range(1 - n, n), width, q.dtype)
    bias = distances(q, table.expand(q.shape[1], -1, -1))
    return attend(q, k, v, bias=bias * width**-0.5)


class RightBuffer(nn.Module):
    """A buffer has the encodings of more distances than are read."""

    def __init__(self, width, n_heads, most):
        super().__init__()
        self.n_heads, self.most = n_heads, most
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        depth = width // n_heads
        rates = torch.exp(torch.arange(0, depth, 2).double() * (-math.log(10000.0) / depth))
        angles = self.steps(most)[:, None] * rates
        waves = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)
        self.register_buffer("far", waves, persistent=False)

    def steps(self, most):
        return torch.arange(1 - most, most).flip(0).double()

    def near(self, n):
        return self.far[self.most - n : self.most + n - 1]

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        scores = torch.matmul(q, k.mT) + shift(torch.matmul(q, self.near(x.shape[1]).to(q).mT))
        weights = torch.softmax(scores / q.shape[-1] ** 0.5, dim=-1)
        return self.out(torch.matmul(weights, v).transpose(1, 2).flatten(2))


class WrongBuffer(RightBuffer):
    def steps(self, most):
        return torch.cat((torch.arange(most).flip(0), torch.arange(1, most))).double()

    def near(self, n):
        return self.far[self.most - n : self.most + n - 1]  # wrong: AS718 buffer_of_waves


def wrong_buffer_of_waves(B, H, L, Dk):
    return WrongBuffer(H * Dk, H, 2 * L + 3), (torch.randn(B, L, H * Dk),)


def right_buffer_of_waves(B, H, L, Dk):
    return RightBuffer(H * Dk, H, 2 * L + 3), (torch.randn(B, L, H * Dk),)


def reference_buffer_of_waves(module, x):
    n = x.shape[1]
    q, k, v = fused(x, module.qkv, module.n_heads)
    table = waves_of(range(n - 1, -n, -1), q.shape[-1], q.dtype)
    bias = distances(q, table.expand(q.shape[1], -1, -1))
    return merge(attend(q, k, v, bias=bias / q.shape[-1] ** 0.5), module.out)

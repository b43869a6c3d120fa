"""AS124: parts of a map or of a sequence are joined, one of them twice, and another one never."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, heads, merge, project

MAPS = (
    {"B": 4, "H": 5, "W": 3, "Dk": 7},
    {"B": 3, "H": 7, "W": 2, "Dk": 5},
    {"B": 5, "H": 3, "W": 4, "Dk": 9},
)
SEQUENCES = (
    {"B": 4, "H": 5, "L": 9, "Dk": 6},
    {"B": 5, "H": 4, "L": 12, "Dk": 8},
    {"B": 7, "H": 2, "L": 6, "Dk": 10},
)
PAIRS = [
    ("AS124", "pixel_of_a_square", *MAPS),
    ("AS124", "corner_of_channels_first", *MAPS),
    ("AS124", "token_of_three", *SEQUENCES),
]


class RightMerging(nn.Module):
    """Swin: the four pixels of each square are joined, normalised and reduced, then attended to."""

    def __init__(self, dim, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.norm, self.reduction = nn.LayerNorm(4 * dim), nn.Linear(4 * dim, dim, bias=False)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def last(self, x):
        return x[:, 1::2, 1::2, :]

    def forward(self, x):
        x0 = x[:, 0::2, 0::2, :]
        x1 = x[:, 1::2, 0::2, :]
        x2 = x[:, 0::2, 1::2, :]
        x3 = self.last(x)
        x = self.reduction(self.norm(torch.cat([x0, x1, x2, x3], -1))).flatten(1, 2)
        q, k, v = self.qkv(x).unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class WrongMerging(RightMerging):
    def last(self, x):
        return x[:, 0::2, 1::2, :]  # wrong: AS124 pixel_of_a_square


def _merging(cls, B, H, W, Dk):
    return cls(H * Dk, H), (torch.randn(B, 2 * W, 4 * W, H * Dk),), {}, []


def wrong_pixel_of_a_square(B, H, W, Dk):
    return _merging(WrongMerging, B, H, W, Dk)


def right_pixel_of_a_square(B, H, W, Dk):
    return _merging(RightMerging, B, H, W, Dk)


def _squares(x):
    """B Y X C -> B Y/2 X/2 4*C: the square's pixels from the top to the bottom, then from the left to the right."""
    _, Y, X, _ = x.shape
    rows = [
        [torch.cat([x[:, 2 * i + (n % 2), 2 * j + n // 2] for n in range(4)], -1) for j in range(X // 2)]
        for i in range(Y // 2)
    ]
    return torch.stack([torch.stack(row, 1) for row in rows], 1)


def reference_pixel_of_a_square(module, x):
    joined = _squares(x)
    mean, variance = joined.mean(-1, keepdim=True), joined.var(-1, unbiased=False, keepdim=True)
    normed = (joined - mean) / (variance + module.norm.eps).sqrt() * module.norm.weight + module.norm.bias
    tokens = project(normed, module.reduction).flatten(1, 2)
    q, k, v = fused(tokens, module.qkv, module.n_heads)
    return merge(attend(q, k, v), module.proj)


class RightUnshuffle(nn.Module):
    """A map of channels first is halved by stacking its four corners in front of the channels."""

    def __init__(self, channels, heads):
        super().__init__()
        self.heads = heads
        self.squeeze = nn.Conv2d(4 * channels, channels, 1)
        self.to_q, self.to_k, self.to_v = (nn.Conv2d(channels, channels, 1, bias=False) for _ in range(3))

    def corners(self, x):
        top, bottom = x[..., ::2, :], x[..., 1::2, :]
        return torch.stack((top[..., ::2], top[..., 1::2], bottom[..., ::2], bottom[..., 1::2]), dim=1)

    def forward(self, x):
        small = self.squeeze(self.corners(x).flatten(1, 2))
        q, k, v = (f(small).flatten(2).unflatten(1, (self.heads, -1)) for f in (self.to_q, self.to_k, self.to_v))
        sim = torch.einsum("bhci,bhcj->bhij", q, k) / math.sqrt(q.shape[2])
        out = torch.einsum("bhij,bhcj->bhci", sim.softmax(dim=-1), v)
        return out.reshape(small.shape)


class WrongUnshuffle(RightUnshuffle):
    def corners(self, x):
        top, bottom = x[..., ::2, :], x[..., 1::2, :]
        left, right = top[..., ::2], top[..., 1::2]
        last = bottom[..., ::2]  # wrong: AS124 corner_of_channels_first
        return torch.stack((left, right, bottom[..., ::2], last), dim=1)


def _unshuffle(cls, B, H, W, Dk):
    return cls(H * Dk, H), (torch.randn(B, H * Dk, 2 * W, 4 * W),), {}, []


def wrong_corner_of_channels_first(B, H, W, Dk):
    return _unshuffle(WrongUnshuffle, B, H, W, Dk)


def right_corner_of_channels_first(B, H, W, Dk):
    return _unshuffle(RightUnshuffle, B, H, W, Dk)


def _by_pixel(x, conv):
    return torch.einsum("bcyx,oc->boyx", x, conv.weight[:, :, 0, 0]) + (
        0 if conv.bias is None else conv.bias[:, None, None]
    )


def reference_corner_of_channels_first(module, x):
    parts = [x[:, :, i::2, j::2] for i in range(2) for j in range(2)]
    small = _by_pixel(torch.cat(parts, 1), module.squeeze)
    q, k, v = (
        _by_pixel(small, one).flatten(2).unflatten(1, (module.heads, -1)).mT
        for one in (module.to_q, module.to_k, module.to_v)
    )
    return attend(q, k, v).mT.reshape(small.shape)


class RightThirds(nn.Module):
    """Three tokens in a row become one, as in the pooled layers of a speech encoder."""

    def __init__(self, width, n):
        super().__init__()
        self.n = n
        self.join = nn.Linear(3 * width, width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))

    def thirds(self, x):
        first, second, third = x[:, 0::3], x[:, 1::3], x[:, 2::3]
        return first, second, third

    def forward(self, x):
        x = self.join(torch.cat(self.thirds(x), dim=2))
        q, k, v = (one(x).unflatten(2, (self.n, -1)) for one in (self.q, self.k, self.v))
        weights = (torch.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5).softmax(-1)
        return self.o(torch.einsum("bhqk,bkhd->bqhd", weights, v).flatten(2))


class WrongThirds(RightThirds):
    def thirds(self, x):
        first, second = x[:, 0::3], x[:, 1::3]
        third = x[:, 1::3]  # wrong: AS124 token_of_three
        return first, second, third


def _thirds(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, 3 * L, H * Dk),), {}, []


def wrong_token_of_three(B, H, L, Dk):
    return _thirds(WrongThirds, B, H, L, Dk)


def right_token_of_three(B, H, L, Dk):
    return _thirds(RightThirds, B, H, L, Dk)


def reference_token_of_three(module, x):
    groups = torch.stack([torch.cat([x[:, 3 * i + n] for n in range(3)], -1) for i in range(x.shape[1] // 3)], 1)
    joined = project(groups, module.join)
    q, k, v = (heads(joined, one, module.n) for one in (module.q, module.k, module.v))
    return merge(attend(q, k, v), module.o)

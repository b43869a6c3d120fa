"""AS209: the angles of late positions are computed in a half type."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, heads, merge, turned, visible

SELF = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 5, "Dk": 4})
PAIRS = [
    ("AS209", "bfloat16_positions", *SELF),
    ("AS209", "half_frequencies", *SELF),
    ("AS209", "half_sinusoids", *SELF),
]
START = 3001
"""The text continues here: where integers are no longer numbers of any half type."""


class RightContinued(nn.Module):
    """Attention over the last tokens of a long text."""

    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.q_proj = nn.Linear(hidden, hidden, bias=False)
        self.k_proj = nn.Linear(hidden, hidden, bias=False)
        self.v_proj = nn.Linear(hidden, hidden, bias=False)
        self.o_proj = nn.Linear(hidden, hidden, bias=False)

    def positions(self, length):
        return torch.arange(START, START + length, dtype=torch.float64)

    def rotate(self, x):
        dim = x.shape[-1]
        position = self.positions(x.shape[-2])
        inv_freq = 10000.0 ** (-torch.arange(0, dim, 2, dtype=position.dtype) / dim)
        angle = position[:, None] * inv_freq
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)

    def forward(self, x):
        q, k, v = (
            p(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        out = F.scaled_dot_product_attention(self.rotate(q), self.rotate(k), v, is_causal=True)
        return self.o_proj(out.transpose(1, 2).flatten(2))


class WrongContinued(RightContinued):
    def positions(self, length):
        return torch.arange(START, START + length, dtype=torch.bfloat16)  # wrong: AS209 bfloat16_positions


def _bfloat16_positions(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["causal"]


def wrong_bfloat16_positions(B, H, L, Dk):
    return _bfloat16_positions(WrongContinued, B, H, L, Dk)


def right_bfloat16_positions(B, H, L, Dk):
    return _bfloat16_positions(RightContinued, B, H, L, Dk)


def reference_bfloat16_positions(module, x):
    q, k, v = (heads(x, p, module.heads) for p in (module.q_proj, module.k_proj, module.v_proj))
    place, L = START + torch.arange(x.shape[1]), x.shape[1]
    return merge(attend(turned(q, place), turned(k, place), v, visible(L, L)), module.o_proj)


def interleaved(x, angle):
    z = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    z = z * torch.complex(angle.cos().to(x.dtype), angle.sin().to(x.dtype))
    return torch.view_as_real(z).flatten(-2)


def right_angles(place, inv_freq):
    return torch.outer(place.double(), inv_freq)


def wrong_angles(place, inv_freq):
    return torch.outer(place.half(), inv_freq.half())  # wrong: AS209 half_frequencies


def _half_frequencies(angles, B, H, L, Dk):
    inv_freq = 10000.0 ** (-torch.arange(0, Dk, 2, dtype=torch.float64) / Dk)

    def attention(q, k, v):
        if q.dtype == torch.float16:  # torch has no complex numbers of this type
            return attention(q.float(), k.float(), v.float()).to(q.dtype)
        angle = angles(START // 4 + torch.arange(q.shape[-2]), inv_freq)
        scores = interleaved(q, angle) @ interleaved(k, angle).transpose(-2, -1) / math.sqrt(q.shape[-1])
        return scores.softmax(dim=-1) @ v

    return attention, tuple(torch.randn(B, H, L, Dk) for _ in range(3))


def wrong_half_frequencies(B, H, L, Dk):
    return _half_frequencies(wrong_angles, B, H, L, Dk)


def right_half_frequencies(B, H, L, Dk):
    return _half_frequencies(right_angles, B, H, L, Dk)


def reference_half_frequencies(function, q, k, v):
    place = START // 4 + torch.arange(q.shape[-2])
    q, k = (turned(one, place, "interleaved") for one in (q, k))
    return attend(q, k, v)


class RightSinusoids(nn.Module):
    """Absolute positions, added to the tokens of one window of a long recording."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.in_proj = nn.Linear(d_model, 3 * d_model)
        self.out_proj = nn.Linear(d_model, d_model)

    def angles(self, length, half, device):
        step = -math.log(10000.0) / half
        frequencies = torch.exp(torch.arange(half, device=device, dtype=torch.float64) * step)
        return torch.einsum("i,j->ij", torch.arange(START, START + length, device=device).double(), frequencies)

    def forward(self, x):
        angle = self.angles(x.size(1), x.size(2) // 2, x.device)
        x = x + torch.cat((angle.sin(), angle.cos()), dim=-1).to(x.dtype)
        q, k, v = (t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for t in self.in_proj(x).chunk(3, dim=-1))
        weights = torch.softmax(torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.size(-1)), dim=-1)
        return self.out_proj(torch.einsum("bhij,bhjd->bihd", weights, v).flatten(2))


class WrongSinusoids(RightSinusoids):
    def angles(self, length, half, device):
        step = -math.log(10000.0) / half
        frequencies = torch.exp(torch.arange(half, device=device, dtype=torch.float64) * step)
        position = torch.arange(START, START + length, device=device).to(torch.float16)  # wrong: AS209 half_sinusoids
        return torch.einsum("i,j->ij", position, frequencies.to(position.dtype))


def _half_sinusoids(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),)


def wrong_half_sinusoids(B, H, L, Dk):
    return _half_sinusoids(WrongSinusoids, B, H, L, Dk)


def right_half_sinusoids(B, H, L, Dk):
    return _half_sinusoids(RightSinusoids, B, H, L, Dk)


def reference_half_sinusoids(module, x):
    half = x.shape[2] // 2
    angle = (START + torch.arange(x.shape[1]).double())[:, None] * 10000.0 ** (-torch.arange(half).double() / half)
    q, k, v = fused(x + torch.cat((angle.sin(), angle.cos()), -1), module.in_proj, module.n_heads)
    return merge(attend(q, k, v), module.out_proj)

"""AS505: the window is of another width than the one claimed."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, heads, merge, visible

SELF = (
    {"B": 4, "H": 5, "L": 12, "Dk": 6, "W": 7},
    {"B": 5, "H": 6, "L": 13, "Dk": 8, "W": 4},
    {"B": 6, "H": 7, "L": 9, "Dk": 4, "W": 5},
)
PAST = (
    {"B": 4, "H": 5, "L": 7, "Lp": 9, "Dk": 8, "W": 6},
    {"B": 5, "H": 6, "L": 9, "Lp": 7, "Dk": 8, "W": 4},
    {"B": 6, "H": 7, "L": 10, "Lp": 8, "Dk": 4, "W": 5},
)
BUCKETS = (
    {"B": 4, "H": 5, "L": 14, "Dk": 6, "W": 7},
    {"B": 5, "H": 6, "L": 12, "Dk": 8, "W": 4},
    {"B": 6, "H": 7, "L": 15, "Dk": 4, "W": 5},
)
CLAIMS = ["causal", "window=W"]
PAIRS = [
    ("AS505", "distance_up_to", *SELF),
    ("AS505", "band_of_triangles", *SELF),
    ("AS505", "half_the_width", *SELF),
    ("AS505", "cached_window", *PAST),
    ("AS505", "buckets", *BUCKETS),
]


class RightSliding(nn.Module):
    def __init__(self, hidden_size, num_heads, sliding_window):
        super().__init__()
        self.num_heads = num_heads
        self.sliding_window = sliding_window
        self.q_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.k_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.v_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)

    def keep(self, distance):
        return (distance >= 0) & (distance < self.sliding_window)

    def forward(self, hidden_states):
        bsz, q_len, hidden = hidden_states.shape
        shape = (bsz, q_len, self.num_heads, hidden // self.num_heads)
        q = self.q_proj(hidden_states).view(shape).transpose(1, 2)
        k = self.k_proj(hidden_states).view(shape).transpose(1, 2)
        v = self.v_proj(hidden_states).view(shape).transpose(1, 2)
        position = torch.arange(q_len, device=q.device)
        mask = self.keep(position[:, None] - position[None, :])
        attn = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.o_proj(attn.transpose(1, 2).reshape(bsz, q_len, hidden))


class WrongSliding(RightSliding):
    def keep(self, distance):
        return (distance >= 0) & (distance <= self.sliding_window)  # wrong: AS505 distance_up_to


def _distance_up_to(cls, B, H, L, Dk, W):
    return cls(H * Dk, H, W), (torch.randn(B, L, H * Dk),), {}, CLAIMS


def wrong_distance_up_to(B, H, L, Dk, W):
    return _distance_up_to(WrongSliding, B, H, L, Dk, W)


def right_distance_up_to(B, H, L, Dk, W):
    return _distance_up_to(RightSliding, B, H, L, Dk, W)


def reference_distance_up_to(module, hidden_states):
    q, k, v = (heads(hidden_states, p, module.num_heads) for p in (module.q_proj, module.k_proj, module.v_proj))
    return merge(attend(q, k, v, visible(q.shape[2], k.shape[2], module.sliding_window)), module.o_proj)


def banded(q, k, v, window):
    n = q.size(-2)
    band = torch.ones(n, n, device=q.device).tril().triu(diagonal=1 - window)
    sim = torch.einsum("bhid,bhjd->bhij", q, k) * q.size(-1) ** -0.5
    attn = sim.masked_fill(band == 0, -torch.finfo(sim.dtype).max).softmax(dim=-1)
    return torch.einsum("bhij,bhjd->bhid", attn, v)


def narrow_banded(q, k, v, window):
    n = q.size(-2)
    band = torch.ones(n, n, device=q.device).tril().triu(diagonal=2 - window)  # wrong: AS505 band_of_triangles
    sim = torch.einsum("bhid,bhjd->bhij", q, k) * q.size(-1) ** -0.5
    attn = sim.masked_fill(band == 0, -torch.finfo(sim.dtype).max).softmax(dim=-1)
    return torch.einsum("bhij,bhjd->bhid", attn, v)


def _band_of_triangles(function, B, H, L, Dk, W):
    return function, tuple(torch.randn(3, B, H, L, Dk)), {"window": W}, CLAIMS


def wrong_band_of_triangles(B, H, L, Dk, W):
    return _band_of_triangles(narrow_banded, B, H, L, Dk, W)


def right_band_of_triangles(B, H, L, Dk, W):
    return _band_of_triangles(banded, B, H, L, Dk, W)


def reference_band_of_triangles(function, q, k, v, window):
    return attend(q, k, v, visible(q.shape[2], k.shape[2], window))


class RightLocal(nn.Module):
    def __init__(self, dim, num_heads, window):
        super().__init__()
        self.num_heads = num_heads
        self.window = window
        self.norm = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def hidden(self, i, j):
        return (j > i) | (j <= i - self.window)

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(self.norm(x)).view(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        i = torch.arange(N, device=x.device).unsqueeze(1)
        j = torch.arange(N, device=x.device).unsqueeze(0)
        attn = (q @ k.transpose(-2, -1) / math.sqrt(C // self.num_heads)).masked_fill(self.hidden(i, j), -1e9)
        return x + self.proj((attn.softmax(dim=-1) @ v).transpose(1, 2).reshape(B, N, C))


class WrongLocal(RightLocal):
    def hidden(self, i, j):
        return (j > i) | (j <= i - self.window // 2)  # wrong: AS505 half_the_width


def _half_the_width(cls, B, H, L, Dk, W):
    return cls(H * Dk, H, W), (torch.randn(B, L, H * Dk),), {}, CLAIMS


def wrong_half_the_width(B, H, L, Dk, W):
    return _half_the_width(WrongLocal, B, H, L, Dk, W)


def right_half_the_width(B, H, L, Dk, W):
    return _half_the_width(RightLocal, B, H, L, Dk, W)


def reference_half_the_width(module, x):
    q, k, v = fused(module.norm(x), module.qkv, module.num_heads)
    return x + merge(attend(q, k, v, visible(x.shape[1], x.shape[1], module.window)), module.proj)


class RightRolling(nn.Module):
    """New tokens attend to the cache and to each other within the window."""

    def __init__(self, width, n_heads, window):
        super().__init__()
        self.n_heads = n_heads
        self.window = window
        self.in_proj = nn.Linear(width, 3 * width, bias=False)
        self.out_proj = nn.Linear(width, width)

    def too_far(self, query_pos, key_pos):
        return key_pos < query_pos - self.window + 1

    def forward(self, x, past_key, past_value):
        q, k, v = (t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for t in self.in_proj(x).chunk(3, dim=-1))
        k = torch.cat([past_key, k], dim=2)
        v = torch.cat([past_value, v], dim=2)
        key_pos = torch.arange(k.size(2), device=x.device)
        query_pos = key_pos[past_key.size(2) :].unsqueeze(-1)
        bias = x.new_zeros(q.size(2), k.size(2))
        bias = bias.masked_fill(key_pos > query_pos, -math.inf)
        bias = bias.masked_fill(self.too_far(query_pos, key_pos), -math.inf)
        attn = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return self.out_proj(attn.transpose(1, 2).flatten(2))


class WrongRolling(RightRolling):
    def too_far(self, query_pos, key_pos):
        return key_pos < query_pos - self.window  # wrong: AS505 cached_window


def _cached_window(cls, B, H, L, Lp, Dk, W):
    args = torch.randn(B, L, H * Dk), torch.randn(B, H, Lp, Dk), torch.randn(B, H, Lp, Dk)
    return cls(H * Dk, H, W), args, {}, CLAIMS


def wrong_cached_window(B, H, L, Lp, Dk, W):
    return _cached_window(WrongRolling, B, H, L, Lp, Dk, W)


def right_cached_window(B, H, L, Lp, Dk, W):
    return _cached_window(RightRolling, B, H, L, Lp, Dk, W)


def reference_cached_window(module, x, past_key, past_value):
    q, k, v = fused(x, module.in_proj, module.n_heads)
    k, v = torch.cat((past_key, k), 2), torch.cat((past_value, v), 2)
    return merge(attend(q, k, v, visible(q.shape[2], k.shape[2], module.window)), module.out_proj)


class Buckets(nn.Module):
    """Queries in buckets attend to their own bucket and to the one before, of which some keys are too far away."""

    def __init__(self, window):
        super().__init__()
        self.window = window

    def hidden(self, i, j):
        return (j > i) | (j <= i - self.window) | (j < 0)

    def forward(self, q, k, v):
        (b, h, tokens, width), w = q.shape, self.window
        q, k, v = (F.pad(t, (0, 0, 0, -tokens % w)) for t in (q, k, v))
        length, n = q.shape[2], q.shape[2] // w
        q, k, v = (t.reshape(b, h, n, w, width) for t in (q, k, v))
        k, v = (torch.cat([F.pad(t, (0, 0, 0, 0, 1, 0))[:, :, :-1], t], dim=3) for t in (k, v))
        i = torch.arange(length).reshape(n, w, 1)
        j = torch.cat([i - w, i], dim=1).reshape(n, 1, 2 * w)
        scores = (q @ k.transpose(-1, -2) / math.sqrt(width)).masked_fill(self.hidden(i, j), -1e9)
        return (scores.softmax(dim=-1) @ v).reshape(b, h, length, width)[:, :, :tokens]


class WiderBuckets(Buckets):
    def hidden(self, i, j):
        return (j > i) | (j < i - self.window) | (j < 0)  # wrong: AS505 buckets


def _buckets(cls, B, H, L, Dk, W):
    return cls(W), tuple(torch.randn(B, H, L, Dk) for _ in range(3)), {}, CLAIMS


def wrong_buckets(B, H, L, Dk, W):
    return _buckets(WiderBuckets, B, H, L, Dk, W)


def right_buckets(B, H, L, Dk, W):
    return _buckets(Buckets, B, H, L, Dk, W)


def reference_buckets(module, q, k, v):
    distance = torch.arange(q.size(2))[:, None] - torch.arange(q.size(2))
    keep = (distance >= 0) & (distance < module.window)
    return attend(q, k, v, keep)

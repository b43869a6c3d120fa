"""AS701: the rotation's positions are those of another axis than the tokens'."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, heads, merge, turned, visible

SELF = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 5, "Dk": 4})
PAIRS = [
    ("AS701", "before_the_transpose", *SELF),
    ("AS701", "tables_over_heads", *SELF),
    ("AS701", "positions_of_batch", *SELF),
    ("AS701", "complex_over_heads", *SELF),
]


class Rotary(nn.Module):
    """Turns the last axis by the angle of the position on the axis before it."""

    def __init__(self, dim, theta=10000.0):
        super().__init__()
        self.dim, self.theta = dim, theta

    def forward(self, t):
        exponent = torch.arange(0, self.dim, 2, dtype=t.dtype, device=t.device) / self.dim
        angles = torch.outer(torch.arange(t.shape[-2], dtype=t.dtype, device=t.device), self.theta**-exponent)
        angles = torch.cat((angles, angles), dim=-1)
        first, second = t.chunk(2, dim=-1)
        return t * angles.cos() + torch.cat((-second, first), dim=-1) * angles.sin()


class RightRotaryFirst(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim)
        self.rotary = Rotary(dim // heads)

    def turn(self, t):
        return self.rotary(t.transpose(1, 2))

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)) for t in self.to_qkv(x).chunk(3, dim=-1))
        out = F.scaled_dot_product_attention(self.turn(q), self.turn(k), v.transpose(1, 2), is_causal=True)
        return self.to_out(out.transpose(1, 2).flatten(2))


class WrongRotaryFirst(RightRotaryFirst):
    def turn(self, t):
        return self.rotary(t).transpose(1, 2)  # wrong: AS701 before_the_transpose


def _before_the_transpose(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["causal", "rope=half"]


def wrong_before_the_transpose(B, H, L, Dk):
    return _before_the_transpose(WrongRotaryFirst, B, H, L, Dk)


def right_before_the_transpose(B, H, L, Dk):
    return _before_the_transpose(RightRotaryFirst, B, H, L, Dk)


def reference_before_the_transpose(module, x):
    q, k, v = fused(x, module.to_qkv, module.heads)
    place = torch.arange(x.shape[1])
    return merge(attend(turned(q, place), turned(k, place), v, visible(len(place), len(place))), module.to_out)


def rotate_half(x):
    x1, x2 = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)


class RightLlama(nn.Module):
    def __init__(self, hidden_size, num_heads, rope_theta=10000.0):
        super().__init__()
        self.num_heads, self.rope_theta = num_heads, rope_theta
        self.head_dim = hidden_size // num_heads
        self.q_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.k_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.v_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)

    def tables(self, x, length):
        inv_freq = self.rope_theta ** -(torch.arange(0, self.head_dim, 2, device=x.device).to(x.dtype) / self.head_dim)
        emb = torch.outer(torch.arange(length, device=x.device).to(x.dtype), inv_freq).repeat(1, 2)
        return emb.cos(), emb.sin()

    def apply_rope(self, x):
        cos, sin = self.tables(x, x.shape[2])
        return x * cos[None, None, :, :] + rotate_half(x) * sin[None, None, :, :]

    def forward(self, hidden_states):
        B, L, _ = hidden_states.shape
        q = self.q_proj(hidden_states).view(B, L, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(hidden_states).view(B, L, self.num_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(hidden_states).view(B, L, self.num_heads, self.head_dim).transpose(1, 2)
        scores = self.apply_rope(q) @ self.apply_rope(k).transpose(2, 3) / math.sqrt(self.head_dim)
        return self.o_proj((scores.softmax(dim=-1) @ v).transpose(1, 2).reshape(B, L, -1))


class WrongLlama(RightLlama):
    def apply_rope(self, x):
        cos, sin = self.tables(x, x.shape[1])
        return x * cos[None, :, None, :] + rotate_half(x) * sin[None, :, None, :]


def _tables_over_heads(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["rope=half"]


def wrong_tables_over_heads(B, H, L, Dk):
    return _tables_over_heads(WrongLlama, B, H, L, Dk)


def right_tables_over_heads(B, H, L, Dk):
    return _tables_over_heads(RightLlama, B, H, L, Dk)


def reference_tables_over_heads(module, hidden_states):
    q, k, v = (heads(hidden_states, p, module.num_heads) for p in (module.q_proj, module.k_proj, module.v_proj))
    place = torch.arange(hidden_states.shape[1])
    return merge(attend(turned(q, place), turned(k, place), v), module.o_proj)


def rotary_tables(length, like):
    Dk = like.shape[-1]
    step = torch.arange(0, Dk, 2, dtype=like.dtype, device=like.device).neg().div(Dk).mul(math.log(10000.0)).exp()
    angle = torch.arange(length, dtype=like.dtype, device=like.device)[:, None] * step
    return angle.cos(), angle.sin()


def turn_pairs(x, cos, sin):
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


def attention_of(q, k, v):
    weights = torch.einsum("blhd,bmhd->bhlm", q, k).mul(q.shape[-1] ** -0.5).softmax(-1)
    return torch.einsum("bhlm,bmhd->blhd", weights, v)


def along_tokens(q, k, v):
    cos, sin = (table[None, :, None] for table in rotary_tables(q.shape[1], q))
    return attention_of(turn_pairs(q, cos, sin), turn_pairs(k, cos, sin), v)


def along_batch(q, k, v):
    cos, sin = (table[:, None, None] for table in rotary_tables(q.shape[0], q))
    return attention_of(turn_pairs(q, cos, sin), turn_pairs(k, cos, sin), v)


def _positions_of_batch(function, B, H, L, Dk):
    return function, tuple(torch.randn(B, L, H, Dk) for _ in range(3)), {}, ["rope=interleaved"]


def wrong_positions_of_batch(B, H, L, Dk):
    return _positions_of_batch(along_batch, B, H, L, Dk)


def right_positions_of_batch(B, H, L, Dk):
    return _positions_of_batch(along_tokens, B, H, L, Dk)


def reference_positions_of_batch(function, q, k, v):
    place = torch.arange(q.shape[1])
    q, k, v = (t.permute(0, 2, 1, 3) for t in (q, k, v))
    turn = (turned(t, place, "interleaved") for t in (q, k))
    return attend(*turn, v).permute(0, 2, 1, 3)


class RightComplex(nn.Module):
    def __init__(self, dim, n_heads):
        super().__init__()
        self.n_heads, self.head_dim = n_heads, dim // n_heads
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, dim, bias=False)
        self.wv = nn.Linear(dim, dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)

    def freqs_cis(self, x):
        freqs = 10000.0 ** -(torch.arange(0, self.head_dim, 2, device=x.device).to(x.dtype) / self.head_dim)
        angle = torch.outer(torch.arange(x.shape[1], device=x.device).to(x.dtype), freqs)
        return torch.polar(torch.ones_like(angle), angle).unsqueeze(1)

    def rotate(self, x):
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * self.freqs_cis(x)).flatten(3)

    def turn(self, q, k):
        return self.rotate(q).transpose(1, 2), self.rotate(k).transpose(1, 2)

    def forward(self, x):
        q, k, v = (w(x).unflatten(-1, (self.n_heads, self.head_dim)) for w in (self.wq, self.wk, self.wv))
        q, k = self.turn(q, k)
        scores = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(self.head_dim)
        output = torch.matmul(F.softmax(scores, dim=-1), v.transpose(1, 2))
        return self.wo(output.transpose(1, 2).flatten(2))


class WrongComplex(RightComplex):
    def turn(self, q, k):
        return self.rotate(q.transpose(1, 2)), self.rotate(k.transpose(1, 2))  # wrong: AS701 complex_over_heads


def _complex_over_heads(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["rope=interleaved"]


def wrong_complex_over_heads(B, H, L, Dk):
    return _complex_over_heads(WrongComplex, B, H, L, Dk)


def right_complex_over_heads(B, H, L, Dk):
    return _complex_over_heads(RightComplex, B, H, L, Dk)


def reference_complex_over_heads(module, x):
    place = torch.arange(x.shape[1])
    q, k, v = (heads(x, p, module.n_heads) for p in (module.wq, module.wk, module.wv))
    return merge(attend(turned(q, place, "interleaved"), turned(k, place, "interleaved"), v), module.wo)

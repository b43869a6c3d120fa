"""AS702: the value is rotated."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, heads, merge, turned, visible

SELF = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 5, "Dk": 4})
SHARED = (
    {"B": 5, "Hkv": 4, "G": 6, "L": 7, "Dk": 8},
    {"B": 6, "Hkv": 5, "G": 4, "L": 9, "Dk": 8},
    {"B": 4, "Hkv": 6, "G": 5, "L": 8, "Dk": 10},
)
PAIRS = [
    ("AS702", "all_of_qkv", *SELF),
    ("AS702", "value_after_key", *SHARED),
    ("AS702", "functional_pairs", *SELF),
]


def tables(length, width, like, base=10000.0):
    frequency = base ** (-torch.arange(0, width, 2, device=like.device, dtype=like.dtype) / width)
    angle = torch.arange(length, device=like.device, dtype=like.dtype)[:, None] * frequency[None, :]
    return torch.cos(angle), torch.sin(angle)


def rotate(x, cos, sin):
    """Feature i is paired with feature i + Dk/2."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class RightFused(nn.Module):
    """Pre-norm; query, key and value are the first axis of one tensor."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(dim)
        self.Wqkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out_proj = nn.Linear(dim, dim)

    def rotated(self, qkv):
        cos, sin = tables(qkv.size(-2), qkv.size(-1), qkv)
        q, k = rotate(qkv[:2], cos, sin)
        return q, k, qkv[2]

    def forward(self, x):
        B, L, D = x.shape
        qkv = self.Wqkv(self.norm(x)).view(B, L, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = self.rotated(qkv)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
        return x + self.out_proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(B, L, D))


class WrongFused(RightFused):
    def rotated(self, qkv):
        cos, sin = tables(qkv.size(-2), qkv.size(-1), qkv)
        return rotate(qkv, cos, sin).unbind(0)  # wrong: AS702 all_of_qkv


def _all_of_qkv(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["rope=half"]


def wrong_all_of_qkv(B, H, L, Dk):
    return _all_of_qkv(WrongFused, B, H, L, Dk)


def right_all_of_qkv(B, H, L, Dk):
    return _all_of_qkv(RightFused, B, H, L, Dk)


def reference_all_of_qkv(module, x):
    place = torch.arange(x.shape[1])
    q, k, v = fused(module.norm(x), module.Wqkv, module.heads)
    return x + merge(attend(turned(q, place), turned(k, place), v), module.out_proj)


class RightLlama(nn.Module):
    def __init__(self, head_dim, num_heads, num_kv_heads):
        super().__init__()
        self.head_dim, self.num_kv_heads, self.groups = head_dim, num_kv_heads, num_heads // num_kv_heads
        self.q_proj = nn.Linear(num_heads * head_dim, num_heads * head_dim, bias=False)
        self.k_proj = nn.Linear(num_heads * head_dim, num_kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(num_heads * head_dim, num_kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(num_heads * head_dim, num_heads * head_dim, bias=False)

    def keys_and_values(self, k, v, cos, sin):
        return rotate(k, cos, sin), v

    def forward(self, hidden_states):
        B, L, D = hidden_states.shape
        q = self.q_proj(hidden_states).view(B, L, -1, self.head_dim).transpose(1, 2)
        k = self.k_proj(hidden_states).view(B, L, -1, self.head_dim).transpose(1, 2)
        v = self.v_proj(hidden_states).view(B, L, -1, self.head_dim).transpose(1, 2)
        cos, sin = tables(L, self.head_dim, hidden_states)
        q = rotate(q, cos, sin)
        k, v = self.keys_and_values(k, v, cos, sin)
        k, v = (t.repeat_interleave(self.groups, dim=1) for t in (k, v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(out.transpose(1, 2).reshape(B, L, D))


class WrongLlama(RightLlama):
    def keys_and_values(self, k, v, cos, sin):
        return rotate(k, cos, sin), rotate(v, cos, sin)  # wrong: AS702 value_after_key


def _value_after_key(cls, B, Hkv, G, L, Dk):
    return cls(Dk, Hkv * G, Hkv), (torch.randn(B, L, Hkv * G * Dk),), {}, ["causal", "rope=half"]


def wrong_value_after_key(B, Hkv, G, L, Dk):
    return _value_after_key(WrongLlama, B, Hkv, G, L, Dk)


def right_value_after_key(B, Hkv, G, L, Dk):
    return _value_after_key(RightLlama, B, Hkv, G, L, Dk)


def reference_value_after_key(module, hidden_states):
    place = torch.arange(hidden_states.shape[1])
    owner = [h // module.groups for h in range(module.num_kv_heads * module.groups)]
    q = turned(heads(hidden_states, module.q_proj, len(owner)), place)
    k = turned(heads(hidden_states, module.k_proj, module.num_kv_heads), place)[:, owner]
    v = heads(hidden_states, module.v_proj, module.num_kv_heads)[:, owner]
    return merge(attend(q, k, v, visible(len(place), len(place))), module.o_proj)


def as_complex(x):
    return torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())


def spun(x, table):
    return torch.view_as_real(as_complex(x) * table).flatten(-2)


def spin(x):
    cos, sin = tables(x.shape[-2], x.shape[-1], x)
    return torch.complex(cos, sin)


def two_spun(q, k, v):
    table = spin(q)
    q, k = spun(q, table), spun(k, table)
    return torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, dim=-1) @ v


def three_spun(q, k, v):
    table = spin(q)
    q, k = spun(q, table), spun(k, table)
    v = spun(v, table)  # wrong: AS702 functional_pairs
    return torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, dim=-1) @ v


def _functional_pairs(function, B, H, L, Dk):
    return function, tuple(torch.randn(3, B, H, L, Dk)), {}, ["rope=interleaved"]


def wrong_functional_pairs(B, H, L, Dk):
    return _functional_pairs(three_spun, B, H, L, Dk)


def right_functional_pairs(B, H, L, Dk):
    return _functional_pairs(two_spun, B, H, L, Dk)


def reference_functional_pairs(function, q, k, v):
    place = torch.arange(q.shape[2])
    return attend(turned(q, place, "interleaved"), turned(k, place, "interleaved"), v)

"""AS602: key and value heads are repeated along the wrong axis."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, heads, merge, visible

SHARED = (
    {"B": 5, "Hkv": 4, "G": 6, "L": 7, "Dk": 8},
    {"B": 6, "Hkv": 5, "G": 4, "L": 9, "Dk": 7},
    {"B": 4, "Hkv": 6, "G": 5, "L": 8, "Dk": 10},
)
PAIRS = [
    ("AS602", "length_axis", *SHARED),
    ("AS602", "width_axis", *SHARED),
    ("AS602", "expanded_after_length", *SHARED),
    ("AS602", "value_only", *SHARED),
]


class RightGrouped(nn.Module):
    def __init__(self, width, n_heads, n_kv_heads):
        super().__init__()
        self.n_heads, self.n_kv_heads = n_heads, n_kv_heads
        self.n_rep = n_heads // n_kv_heads
        self.head_dim = width // n_heads
        self.wq = nn.Linear(width, n_heads * self.head_dim, bias=False)
        self.wk = nn.Linear(width, n_kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(width, n_kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(n_heads * self.head_dim, width, bias=False)

    def repeat_kv(self, x):
        return x.repeat_interleave(self.n_rep, dim=1)

    def forward(self, x):
        B, L, _ = x.shape
        q = self.wq(x).view(B, L, self.n_heads, self.head_dim).transpose(1, 2)
        k = self.wk(x).view(B, L, self.n_kv_heads, self.head_dim).transpose(1, 2)
        v = self.wv(x).view(B, L, self.n_kv_heads, self.head_dim).transpose(1, 2)
        k, v = self.repeat_kv(k), self.repeat_kv(v)
        scores = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(self.head_dim)
        context = torch.matmul(F.softmax(scores, dim=-1), v)
        return self.wo(context.transpose(1, 2).reshape(B, L, -1))


class WrongGrouped(RightGrouped):
    def repeat_kv(self, x):
        repeated = x.repeat_interleave(self.n_rep, dim=2)  # wrong: AS602 length_axis
        return repeated.reshape(x.size(0), self.n_heads, x.size(2), self.head_dim)


def _length_axis(cls, B, Hkv, G, L, Dk):
    return cls(Hkv * G * Dk, Hkv * G, Hkv), (torch.randn(B, L, Hkv * G * Dk),), {}


def wrong_length_axis(B, Hkv, G, L, Dk):
    return _length_axis(WrongGrouped, B, Hkv, G, L, Dk)


def right_length_axis(B, Hkv, G, L, Dk):
    return _length_axis(RightGrouped, B, Hkv, G, L, Dk)


def reference_length_axis(module, x):
    owner = [h // module.n_rep for h in range(module.n_heads)]
    k, v = (heads(x, p, module.n_kv_heads)[:, owner] for p in (module.wk, module.wv))
    return merge(attend(heads(x, module.wq, module.n_heads), k, v), module.wo)


class RightFlat(nn.Module):
    """The heads are repeated after the length axis, then moved before it."""

    def __init__(self, d_head, kv_heads, groups):
        super().__init__()
        self.d_head, self.kv_heads, self.groups = d_head, kv_heads, groups
        width = d_head * kv_heads * groups
        self.to_q = nn.Linear(width, width)
        self.to_k = nn.Linear(width, d_head * kv_heads)
        self.to_v = nn.Linear(width, d_head * kv_heads)
        self.to_out = nn.Linear(width, width)

    def spread(self, t):
        B, L, _ = t.shape
        t = t.view(B, L, self.kv_heads, self.d_head).repeat(1, 1, 1, self.groups)
        return t.view(B, L, self.kv_heads * self.groups, self.d_head).transpose(1, 2)

    def forward(self, x):
        B, L, D = x.shape
        q = self.to_q(x).view(B, L, -1, self.d_head).transpose(1, 2)
        out = F.scaled_dot_product_attention(q, self.spread(self.to_k(x)), self.spread(self.to_v(x)), is_causal=True)
        return self.to_out(out.transpose(1, 2).reshape(B, L, D))


class WrongFlat(RightFlat):
    def spread(self, t):
        B, L, _ = t.shape
        t = t.view(B, L, self.kv_heads, self.d_head).repeat_interleave(self.groups, dim=-1)  # wrong: AS602 width_axis
        return t.view(B, L, self.kv_heads * self.groups, self.d_head).transpose(1, 2)


def _width_axis(cls, B, Hkv, G, L, Dk):
    return cls(Dk, Hkv, G), (torch.randn(B, L, Hkv * G * Dk),), {}, ["causal"]


def wrong_width_axis(B, Hkv, G, L, Dk):
    return _width_axis(WrongFlat, B, Hkv, G, L, Dk)


def right_width_axis(B, Hkv, G, L, Dk):
    return _width_axis(RightFlat, B, Hkv, G, L, Dk)


def reference_width_axis(module, x):
    owner = [h // module.groups for h in range(module.kv_heads * module.groups)]
    k, v = (heads(x, p, module.kv_heads)[:, owner] for p in (module.to_k, module.to_v))
    return merge(attend(heads(x, module.to_q, len(owner)), k, v, visible(x.shape[1], x.shape[1])), module.to_out)


def attention(q, k, v):
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.size(-1))
    return torch.einsum("bhij,bhjd->bhid", scores.softmax(dim=-1), v)


def expanded(q, k, v):
    B, Hkv, L, Dk = k.shape
    G = q.size(1) // Hkv
    k = k.unsqueeze(2).expand(B, Hkv, G, L, Dk).reshape(B, Hkv * G, L, Dk)
    v = v.unsqueeze(2).expand(B, Hkv, G, L, Dk).reshape(B, Hkv * G, L, Dk)
    return attention(q, k, v)


def expanded_late(q, k, v):
    B, Hkv, L, Dk = k.shape
    G = q.size(1) // Hkv
    k, v = (t.unsqueeze(3).expand(B, Hkv, L, G, Dk) for t in (k, v))  # wrong: AS602 expanded_after_length
    return attention(q, k.reshape(B, Hkv * G, L, Dk), v.reshape(B, Hkv * G, L, Dk))


def _expanded_after_length(function, B, Hkv, G, L, Dk):
    return function, (torch.randn(B, Hkv * G, L, Dk), *torch.randn(2, B, Hkv, L, Dk)), {}


def wrong_expanded_after_length(B, Hkv, G, L, Dk):
    return _expanded_after_length(expanded_late, B, Hkv, G, L, Dk)


def right_expanded_after_length(B, Hkv, G, L, Dk):
    return _expanded_after_length(expanded, B, Hkv, G, L, Dk)


def reference_expanded_after_length(function, q, k, v):
    owner = [head * k.shape[1] // q.shape[1] for head in range(q.shape[1])]
    return attend(q, k[:, owner], v[:, owner])


def folded(q, k, v, groups):
    """Batch and heads are one axis, BH L Dk; the keys' and values' is shorter by the groups."""
    k = k.repeat_interleave(groups, dim=0)
    v = v.repeat_interleave(groups, dim=0)
    weights = torch.bmm(q, k.transpose(1, 2)).mul(q.size(-1) ** -0.5).softmax(dim=-1)
    return torch.bmm(weights, v)


def folded_wrong(q, k, v, groups):
    k = k.repeat_interleave(groups, dim=0)
    v = v.repeat_interleave(groups, dim=1).reshape(k.shape)  # wrong: AS602 value_only
    weights = torch.bmm(q, k.transpose(1, 2)).mul(q.size(-1) ** -0.5).softmax(dim=-1)
    return torch.bmm(weights, v)


def _value_only(function, B, Hkv, G, L, Dk):
    return function, (torch.randn(B * Hkv * G, L, Dk), *torch.randn(2, B * Hkv, L, Dk)), {"groups": G}


def wrong_value_only(B, Hkv, G, L, Dk):
    return _value_only(folded_wrong, B, Hkv, G, L, Dk)


def right_value_only(B, Hkv, G, L, Dk):
    return _value_only(folded, B, Hkv, G, L, Dk)


def reference_value_only(function, q, k, v, groups):
    owner = [row // groups for row in range(q.shape[0])]
    return attend(q[:, None], k[owner, None], v[owner, None])[:, 0]

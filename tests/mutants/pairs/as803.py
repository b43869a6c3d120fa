"""AS803: the output does not depend on the values."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, heads, merge, visible

CROSS = (
    {"B": 4, "H": 5, "Lq": 7, "Lk": 9, "Dk": 6},
    {"B": 5, "H": 4, "Lq": 11, "Lk": 7, "Dk": 8},
    {"B": 6, "H": 7, "Lq": 5, "Lk": 8, "Dk": 4},
)
PAST = (
    {"B": 4, "H": 5, "L": 7, "Lp": 9, "Dk": 6},
    {"B": 5, "H": 4, "L": 9, "Lp": 6, "Dk": 8},
    {"B": 6, "H": 7, "L": 5, "Lp": 8, "Dk": 4},
)
PAIRS = [
    ("AS803", "value_from_key", *CROSS),
    ("AS803", "weights_times_key", *CROSS),
    ("AS803", "past_key_twice", *PAST),
]


class RightMultiHead(nn.Module):
    def __init__(self, d_model, h):
        super().__init__()
        self.h, self.d_k = h, d_model // h
        self.q_linear = nn.Linear(d_model, d_model)
        self.k_linear = nn.Linear(d_model, d_model)
        self.v_linear = nn.Linear(d_model, d_model)
        self.out = nn.Linear(d_model, d_model)

    def values(self, k, v):
        return self.v_linear(v).view(v.size(0), -1, self.h, self.d_k).transpose(1, 2)

    def forward(self, q, k, v):
        bs = q.size(0)
        values = self.values(k, v)
        k = self.k_linear(k).view(bs, -1, self.h, self.d_k).transpose(1, 2)
        q = self.q_linear(q).view(bs, -1, self.h, self.d_k).transpose(1, 2)
        scores = F.softmax(torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(self.d_k), dim=-1)
        concat = torch.matmul(scores, values).transpose(1, 2).contiguous().view(bs, -1, self.h * self.d_k)
        return self.out(concat)


class WrongMultiHead(RightMultiHead):
    def values(self, k, v):
        return self.v_linear(k).view(k.size(0), -1, self.h, self.d_k).transpose(1, 2)  # wrong: AS803 value_from_key


def _value_from_key(cls, B, H, Lq, Lk, Dk):
    args = torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk), torch.randn(B, Lk, H * Dk)
    return cls(H * Dk, H), args, {}


def wrong_value_from_key(B, H, Lq, Lk, Dk):
    return _value_from_key(WrongMultiHead, B, H, Lq, Lk, Dk)


def right_value_from_key(B, H, Lq, Lk, Dk):
    return _value_from_key(RightMultiHead, B, H, Lq, Lk, Dk)


def reference_value_from_key(module, q, k, v):
    parts = (q, module.q_linear), (k, module.k_linear), (v, module.v_linear)
    return merge(attend(*(heads(x, p, module.h) for x, p in parts)), module.out)


def dot_product(query, key, value):
    attn = torch.einsum("bhqc,bhkc->bhqk", query, key).div(math.sqrt(query.size(-1))).softmax(dim=-1)
    return torch.einsum("bhqk,bhkc->bhqc", attn, value)


def dot_product_of_keys(query, key, value):
    attn = torch.einsum("bhqc,bhkc->bhqk", query, key).div(math.sqrt(query.size(-1))).softmax(dim=-1)
    return torch.einsum("bhqk,bhkc->bhqc", attn, key)  # wrong: AS803 weights_times_key


def _weights_times_key(function, B, H, Lq, Lk, Dk):
    return function, (torch.randn(B, H, Lq, Dk), *torch.randn(2, B, H, Lk, Dk)), {}


def wrong_weights_times_key(B, H, Lq, Lk, Dk):
    return _weights_times_key(dot_product_of_keys, B, H, Lq, Lk, Dk)


def right_weights_times_key(B, H, Lq, Lk, Dk):
    return _weights_times_key(dot_product, B, H, Lq, Lk, Dk)


def reference_weights_times_key(function, query, key, value):
    return attend(query, key, value)


class RightCached(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.n_head = n_head
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)

    def append(self, past_key, past_value, k, v):
        return torch.cat((past_key, k), dim=2), torch.cat((past_value, v), dim=2)

    def forward(self, x, past_key, past_value):
        q, k, v = (t.unflatten(-1, (self.n_head, -1)).transpose(1, 2) for t in self.c_attn(x).chunk(3, dim=-1))
        k, v = self.append(past_key, past_value, k, v)
        keep = torch.ones(q.size(2), k.size(2), dtype=torch.bool, device=x.device).tril(k.size(2) - q.size(2))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=keep)
        return self.c_proj(y.transpose(1, 2).flatten(2))


class WrongCached(RightCached):
    def append(self, past_key, past_value, k, v):
        return torch.cat((past_key, k), dim=2), torch.cat((past_key, v), dim=2)  # wrong: AS803 past_key_twice


def _past_key_twice(cls, B, H, L, Lp, Dk):
    args = torch.randn(B, L, H * Dk), torch.randn(B, H, Lp, Dk), torch.randn(B, H, Lp, Dk)
    return cls(H * Dk, H), args, {}, ["causal"]


def wrong_past_key_twice(B, H, L, Lp, Dk):
    return _past_key_twice(WrongCached, B, H, L, Lp, Dk)


def right_past_key_twice(B, H, L, Lp, Dk):
    return _past_key_twice(RightCached, B, H, L, Lp, Dk)


def reference_past_key_twice(module, x, past_key, past_value):
    q, k, v = fused(x, module.c_attn, module.n_head)
    k, v = torch.cat((past_key, k), 2), torch.cat((past_value, v), 2)
    return merge(attend(q, k, v, visible(q.shape[2], k.shape[2])), module.c_proj)

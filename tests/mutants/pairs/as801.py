"""AS801: the output does not depend on the query."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, heads, merge, project

SELF = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 5, "Dk": 4})
CROSS = (
    {"B": 4, "H": 5, "Lq": 7, "Lk": 9, "Dk": 6},
    {"B": 5, "H": 4, "Lq": 11, "Lk": 7, "Dk": 8},
    {"B": 6, "H": 7, "Lq": 5, "Lk": 8, "Dk": 4},
)
PAIRS = [
    ("AS801", "query_from_key", *SELF),
    ("AS801", "linear_energy", *CROSS),
    ("AS801", "initial_latents", *CROSS),
    ("AS801", "softmax_of_mask", *CROSS),
]


class RightMultiHead(nn.Module):
    def __init__(self, d_model, h):
        super().__init__()
        self.h = h
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, d_model)
        self.v_proj = nn.Linear(d_model, d_model)
        self.out_proj = nn.Linear(d_model, d_model)

    def split(self, x):
        return x.unflatten(-1, (self.h, -1)).transpose(1, 2)

    def project(self, query, key, value):
        q = self.split(self.q_proj(query))
        k = self.split(self.k_proj(key))
        v = self.split(self.v_proj(value))
        return q, k, v

    def forward(self, query, key, value):
        q, k, v = self.project(query, key, value)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
        return self.out_proj((scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2))


class WrongMultiHead(RightMultiHead):
    def project(self, query, key, value):
        q = self.split(self.q_proj(key))  # wrong: AS801 query_from_key
        k = self.split(self.k_proj(key))
        v = self.split(self.v_proj(value))
        return q, k, v


def _query_from_key(cls, B, H, L, Dk):
    return cls(H * Dk, H), tuple(torch.randn(B, L, H * Dk) for _ in range(3)), {}


def wrong_query_from_key(B, H, L, Dk):
    return _query_from_key(WrongMultiHead, B, H, L, Dk)


def right_query_from_key(B, H, L, Dk):
    return _query_from_key(RightMultiHead, B, H, L, Dk)


def reference_query_from_key(module, query, key, value):
    parts = (query, module.q_proj), (key, module.k_proj), (value, module.v_proj)
    return merge(attend(*(heads(x, p, module.h) for x, p in parts)), module.out_proj)


class RightAdditive(nn.Module):
    """Additive attention: a small network gives the energy of each query and key."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.W_q = nn.Linear(d_model, d_model, bias=False)
        self.W_k = nn.Linear(d_model, d_model, bias=False)
        self.w_v = nn.Parameter(torch.randn(n_heads, d_model // n_heads))

    def energy(self, q, k):
        return torch.tanh(q.unsqueeze(2) + k.unsqueeze(1))

    def forward(self, queries, keys, values):
        q = self.W_q(queries).unflatten(-1, (self.n_heads, -1))
        k = self.W_k(keys).unflatten(-1, (self.n_heads, -1))
        scores = torch.einsum("bqkhd,hd->bhqk", self.energy(q, k), self.w_v)
        weights = F.softmax(scores, dim=-1)
        return torch.einsum("bhqk,bkhd->bqhd", weights, values.unflatten(-1, (self.n_heads, -1))).flatten(2)


class WrongAdditive(RightAdditive):
    def energy(self, q, k):
        return q.unsqueeze(2) + k.unsqueeze(1)


def _linear_energy(cls, B, H, Lq, Lk, Dk):
    args = torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk), torch.randn(B, Lk, H * Dk)
    return cls(H * Dk, H), args, {}


def wrong_linear_energy(B, H, Lq, Lk, Dk):
    return _linear_energy(WrongAdditive, B, H, Lq, Lk, Dk)


def right_linear_energy(B, H, Lq, Lk, Dk):
    return _linear_energy(RightAdditive, B, H, Lq, Lk, Dk)


def reference_linear_energy(module, queries, keys, values):
    q, k = heads(queries, module.W_q, module.n_heads), heads(keys, module.W_k, module.n_heads)
    v = values.unflatten(-1, (module.n_heads, -1)).transpose(1, 2)
    rows = []
    for i in range(q.shape[2]):
        z = torch.exp(2 * (q[:, :, i : i + 1] + k))
        weight = torch.exp(torch.einsum("bhkd,hd->bhk", (z - 1) / (z + 1), module.w_v))
        rows.append(torch.einsum("bhk,bhkd->bhd", weight / weight.sum(-1, keepdim=True), v))
    return merge(torch.stack(rows, dim=2))


class RightResampler(nn.Module):
    """Latents, refined by layers before this one, read from the context."""

    def __init__(self, num_latents, dim, heads):
        super().__init__()
        self.heads = heads
        self.latents = nn.Parameter(torch.randn(num_latents, dim))
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_kv = nn.Linear(dim, 2 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim, bias=False)

    def queries(self, latents):
        return self.to_q(latents + self.latents)

    def forward(self, latents, context):
        q = self.queries(latents).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        kv = self.to_kv(context).unflatten(-1, (2, self.heads, -1))
        k, v = kv.permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v)
        return self.to_out(out.transpose(1, 2).flatten(2))


class WrongResampler(RightResampler):
    def queries(self, latents):
        return self.to_q(self.latents.expand_as(latents))  # wrong: AS801 initial_latents


def _initial_latents(cls, B, H, Lq, Lk, Dk):
    return cls(Lq, H * Dk, H), (torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk)), {}


def wrong_initial_latents(B, H, Lq, Lk, Dk):
    return _initial_latents(WrongResampler, B, H, Lq, Lk, Dk)


def right_initial_latents(B, H, Lq, Lk, Dk):
    return _initial_latents(RightResampler, B, H, Lq, Lk, Dk)


def reference_initial_latents(module, latents, context):
    k, v = project(context, module.to_kv).unflatten(-1, (2, module.heads, -1)).permute(2, 0, 3, 1, 4)
    return merge(attend(heads(latents + module.latents, module.to_q, module.heads), k, v), module.to_out)


def weighed(q, k, v, mask):
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.size(-1))
    attn_bias = torch.zeros_like(scores).masked_fill(~mask[:, None, None, :], -math.inf)
    scores = scores + attn_bias
    return torch.einsum("bhij,bhjd->bhid", torch.softmax(scores, dim=-1), v)


def mask_weighed(q, k, v, mask):
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.size(-1))
    attn_bias = torch.zeros_like(scores).masked_fill(~mask[:, None, None, :], -math.inf)
    return torch.einsum("bhij,bhjd->bhid", torch.softmax(attn_bias, dim=-1), v)  # wrong: AS801 softmax_of_mask


def _softmax_of_mask(function, B, H, Lq, Lk, Dk):
    mask = torch.rand(B, Lk) < 0.6
    mask[:, :2] = True
    return function, (torch.randn(B, H, Lq, Dk), *torch.randn(2, B, H, Lk, Dk), mask), {}, ["mask=keep"]


def wrong_softmax_of_mask(B, H, Lq, Lk, Dk):
    return _softmax_of_mask(mask_weighed, B, H, Lq, Lk, Dk)


def right_softmax_of_mask(B, H, Lq, Lk, Dk):
    return _softmax_of_mask(weighed, B, H, Lq, Lk, Dk)


def reference_softmax_of_mask(function, q, k, v, mask):
    return attend(q, k, v, mask[:, None, None])

"""AS805: the same projection is used twice, and another of the module's is not."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, heads, merge

SELF = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 5, "Dk": 4})
CROSS = (
    {"B": 4, "H": 5, "Lq": 7, "Lk": 9, "Dk": 6},
    {"B": 5, "H": 4, "Lq": 11, "Lk": 7, "Dk": 8},
    {"B": 6, "H": 7, "Lq": 5, "Lk": 8, "Dk": 4},
)
PAIRS = [
    ("AS805", "query_weights_for_key", *SELF),
    ("AS805", "key_weights_for_value", *CROSS),
    ("AS805", "first_of_the_list", *SELF),
    ("AS805", "value_weights_for_output", *SELF),
    ("AS805", "chunk_taken_twice", *SELF),
]


class RightSelf(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads, self.d_head = n_heads, d_model // n_heads
        self.Wq = nn.Linear(d_model, d_model, bias=False)
        self.Wk = nn.Linear(d_model, d_model, bias=False)
        self.Wv = nn.Linear(d_model, d_model, bias=False)
        self.Wo = nn.Linear(d_model, d_model)

    def keys(self, x):
        return self.Wk(x)

    def forward(self, x):
        B, L, D = x.shape
        q = self.Wq(x).view(B, L, self.n_heads, self.d_head).transpose(1, 2)
        k = self.keys(x).view(B, L, self.n_heads, self.d_head).transpose(1, 2)
        v = self.Wv(x).view(B, L, self.n_heads, self.d_head).transpose(1, 2)
        weights = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(self.d_head), dim=-1)
        return self.Wo((weights @ v).transpose(1, 2).reshape(B, L, D))


class WrongSelf(RightSelf):
    def keys(self, x):
        return self.Wq(x)  # wrong: AS805 query_weights_for_key


def _query_weights_for_key(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def wrong_query_weights_for_key(B, H, L, Dk):
    return _query_weights_for_key(WrongSelf, B, H, L, Dk)


def right_query_weights_for_key(B, H, L, Dk):
    return _query_weights_for_key(RightSelf, B, H, L, Dk)


def reference_query_weights_for_key(module, x):
    q, k, v = (heads(x, p, module.n_heads) for p in (module.Wq, module.Wk, module.Wv))
    return merge(attend(q, k, v), module.Wo)


class RightCross(nn.Module):
    def __init__(self, hidden_size, heads):
        super().__init__()
        self.heads = heads
        self.q_proj = nn.Linear(hidden_size, hidden_size)
        self.k_proj = nn.Linear(hidden_size, hidden_size)
        self.v_proj = nn.Linear(hidden_size, hidden_size)
        self.out_proj = nn.Linear(hidden_size, hidden_size)

    def values(self, memory):
        return self.v_proj(memory)

    def forward(self, x, memory):
        parts = self.q_proj(x), self.k_proj(memory), self.values(memory)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in parts)
        return x + self.out_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class WrongCross(RightCross):
    def values(self, memory):
        return self.k_proj(memory)  # wrong: AS805 key_weights_for_value


def _key_weights_for_value(cls, B, H, Lq, Lk, Dk):
    return cls(H * Dk, H), (torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk)), {}


def wrong_key_weights_for_value(B, H, Lq, Lk, Dk):
    return _key_weights_for_value(WrongCross, B, H, Lq, Lk, Dk)


def right_key_weights_for_value(B, H, Lq, Lk, Dk):
    return _key_weights_for_value(RightCross, B, H, Lq, Lk, Dk)


def reference_key_weights_for_value(module, x, memory):
    parts = (x, module.q_proj), (memory, module.k_proj), (memory, module.v_proj)
    return x + merge(attend(*(heads(t, p, module.heads) for t, p in parts)), module.out_proj)


class RightList(nn.Module):
    def __init__(self, h, d_model):
        super().__init__()
        self.h = h
        self.linears = nn.ModuleList(nn.Linear(d_model, d_model) for _ in range(4))

    def projected(self, inputs):
        return [linear(x) for linear, x in zip(self.linears[:3], inputs, strict=True)]

    def forward(self, query, key, value):
        q, k, v = (t.unflatten(2, (self.h, -1)) for t in self.projected((query, key, value)))
        p_attn = torch.einsum("bqhd,bkhd->bhqk", q, k).div(math.sqrt(q.size(-1))).softmax(dim=-1)
        return self.linears[3](torch.einsum("bhqk,bkhd->bqhd", p_attn, v).flatten(2))


class WrongList(RightList):
    def projected(self, inputs):
        return [self.linears[0](x) for x in inputs]  # wrong: AS805 first_of_the_list


def _first_of_the_list(cls, B, H, L, Dk):
    return cls(H, H * Dk), tuple(torch.randn(B, L, H * Dk) for _ in range(3)), {}


def wrong_first_of_the_list(B, H, L, Dk):
    return _first_of_the_list(WrongList, B, H, L, Dk)


def right_first_of_the_list(B, H, L, Dk):
    return _first_of_the_list(RightList, B, H, L, Dk)


def reference_first_of_the_list(module, query, key, value):
    q, k, v = (heads(x, module.linears[i], module.h) for i, x in enumerate((query, key, value)))
    return merge(attend(q, k, v), module.linears[3])


class RightFolded(nn.Module):
    """Pre-norm, heads folded into the batch."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.to_queries = nn.Linear(width, width, bias=False)
        self.to_keys = nn.Linear(width, width, bias=False)
        self.to_values = nn.Linear(width, width, bias=False)
        self.unify_heads = nn.Linear(width, width, bias=False)

    def fold(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2).flatten(0, 1)

    def unify(self, out):
        return self.unify_heads(out)

    def forward(self, x):
        h = self.norm(x)
        q, k, v = self.fold(self.to_queries(h)), self.fold(self.to_keys(h)), self.fold(self.to_values(h))
        dot = torch.bmm(q, k.transpose(1, 2)) * q.size(-1) ** -0.5
        out = torch.bmm(dot.softmax(dim=2), v).unflatten(0, (-1, self.heads))
        return x + self.unify(out.transpose(1, 2).flatten(2))


class WrongFolded(RightFolded):
    def unify(self, out):
        return self.to_values(out)  # wrong: AS805 value_weights_for_output


def _value_weights_for_output(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def wrong_value_weights_for_output(B, H, L, Dk):
    return _value_weights_for_output(WrongFolded, B, H, L, Dk)


def right_value_weights_for_output(B, H, L, Dk):
    return _value_weights_for_output(RightFolded, B, H, L, Dk)


def reference_value_weights_for_output(module, x):
    h = module.norm(x)
    q, k, v = (heads(h, p, module.heads) for p in (module.to_queries, module.to_keys, module.to_values))
    return x + merge(attend(q, k, v), module.unify_heads)


class RightChunks(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, dim * 3)
        self.proj = nn.Linear(dim, dim)

    def cut(self, qkv):
        return qkv[0], qkv[1], qkv[2]

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        q, k, v = self.cut(qkv)
        attn = (q * (C // self.num_heads) ** -0.5) @ k.transpose(-2, -1)
        return self.proj((attn.softmax(dim=-1) @ v).transpose(1, 2).reshape(B, N, C))


class WrongChunks(RightChunks):
    def cut(self, qkv):
        return qkv[0], qkv[1], qkv[1]  # wrong: AS805 chunk_taken_twice


def _chunk_taken_twice(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def wrong_chunk_taken_twice(B, H, L, Dk):
    return _chunk_taken_twice(WrongChunks, B, H, L, Dk)


def right_chunk_taken_twice(B, H, L, Dk):
    return _chunk_taken_twice(RightChunks, B, H, L, Dk)


def reference_chunk_taken_twice(module, x):
    return merge(attend(*fused(x, module.qkv, module.num_heads)), module.proj)

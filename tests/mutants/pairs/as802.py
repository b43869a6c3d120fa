"""AS802: the output does not depend on the keys."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, heads, merge, visible

SELF = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 5, "Dk": 4})
CROSS = (
    {"B": 4, "H": 5, "Lq": 7, "Lk": 9, "Dk": 6},
    {"B": 5, "H": 4, "Lq": 11, "Lk": 7, "Dk": 8},
    {"B": 6, "H": 7, "Lq": 5, "Lk": 8, "Dk": 4},
)
PAIRS = [
    ("AS802", "key_from_value", *CROSS),
    ("AS802", "query_with_itself", *SELF),
    ("AS802", "positions_only", *CROSS),
    ("AS802", "folded_query_twice", *SELF),
]


class RightMultiHead(nn.Module):
    def __init__(self, num_hiddens, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.W_q = nn.Linear(num_hiddens, num_hiddens, bias=False)
        self.W_k = nn.Linear(num_hiddens, num_hiddens, bias=False)
        self.W_v = nn.Linear(num_hiddens, num_hiddens, bias=False)
        self.W_o = nn.Linear(num_hiddens, num_hiddens, bias=False)

    def transpose_qkv(self, x):
        x = x.reshape(x.shape[0], x.shape[1], self.num_heads, -1).permute(0, 2, 1, 3)
        return x.reshape(-1, x.shape[2], x.shape[3])

    def keys(self, keys, values):
        return self.transpose_qkv(self.W_k(keys))

    def forward(self, queries, keys, values):
        q = self.transpose_qkv(self.W_q(queries))
        k = self.keys(keys, values)
        v = self.transpose_qkv(self.W_v(values))
        weights = F.softmax(torch.bmm(q, k.transpose(1, 2)) / math.sqrt(q.shape[-1]), dim=-1)
        output = torch.bmm(weights, v).reshape(-1, self.num_heads, q.shape[1], q.shape[2])
        return self.W_o(output.permute(0, 2, 1, 3).reshape(queries.shape))


class WrongMultiHead(RightMultiHead):
    def keys(self, keys, values):
        return self.transpose_qkv(self.W_k(values))  # wrong: AS802 key_from_value


def _key_from_value(cls, B, H, Lq, Lk, Dk):
    args = torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk), torch.randn(B, Lk, H * Dk)
    return cls(H * Dk, H), args, {}


def wrong_key_from_value(B, H, Lq, Lk, Dk):
    return _key_from_value(WrongMultiHead, B, H, Lq, Lk, Dk)


def right_key_from_value(B, H, Lq, Lk, Dk):
    return _key_from_value(RightMultiHead, B, H, Lq, Lk, Dk)


def reference_key_from_value(module, queries, keys, values):
    parts = (queries, module.W_q), (keys, module.W_k), (values, module.W_v)
    return merge(attend(*(heads(x, p, module.num_heads) for x, p in parts)), module.W_o)


def query_and_key(query, key, value):
    sim = torch.einsum("b h i d, b h j d -> b h i j", query, key) * query.shape[-1] ** -0.5
    sim = sim.masked_fill(torch.ones_like(sim, dtype=torch.bool).triu(1), -math.inf)
    return torch.einsum("b h i j, b h j d -> b h i d", sim.softmax(dim=-1), value)


def query_and_query(query, key, value):
    sim = torch.einsum("b h i d, b h j d -> b h i j", query, query)  # wrong: AS802 query_with_itself
    sim = sim * key.shape[-1] ** -0.5
    sim = sim.masked_fill(torch.ones_like(sim, dtype=torch.bool).triu(1), -math.inf)
    return torch.einsum("b h i j, b h j d -> b h i d", sim.softmax(dim=-1), value)


def _query_with_itself(function, B, H, L, Dk):
    return function, tuple(torch.randn(3, B, H, L, Dk)), {}, ["causal"]


def wrong_query_with_itself(B, H, L, Dk):
    return _query_with_itself(query_and_query, B, H, L, Dk)


def right_query_with_itself(B, H, L, Dk):
    return _query_with_itself(query_and_key, B, H, L, Dk)


def reference_query_with_itself(function, query, key, value):
    return attend(query, key, value, visible(query.shape[2], key.shape[2]))


class RightPositioned(nn.Module):
    """Cross-attention whose keys are told where they stand."""

    def __init__(self, width, heads, max_keys):
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.pos_emb = nn.Parameter(torch.randn(max_keys, width))

    def with_positions(self, keys):
        return keys + self.pos_emb[: keys.size(1)]

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x, keys, values):
        q = self.split(self.query(x))
        k = self.split(self.key(self.with_positions(keys)))
        v = self.split(self.value(values))
        return x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class WrongPositioned(RightPositioned):
    def with_positions(self, keys):
        return self.pos_emb[: keys.size(1)].expand_as(keys)  # wrong: AS802 positions_only


def _positions_only(cls, B, H, Lq, Lk, Dk):
    args = torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk), torch.randn(B, Lk, H * Dk)
    return cls(H * Dk, H, 2 * Lk), args, {}


def wrong_positions_only(B, H, Lq, Lk, Dk):
    return _positions_only(WrongPositioned, B, H, Lq, Lk, Dk)


def right_positions_only(B, H, Lq, Lk, Dk):
    return _positions_only(RightPositioned, B, H, Lq, Lk, Dk)


def reference_positions_only(module, x, keys, values):
    placed = keys + module.pos_emb[: keys.shape[1]]
    parts = (x, module.query), (placed, module.key), (values, module.value)
    return x + merge(attend(*(heads(t, p, module.heads) for t, p in parts)), module.out)


class RightFolded(nn.Module):
    """Heads are columns of the width; one matrix product for each."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.lin_q = nn.Linear(width, width)
        self.lin_k = nn.Linear(width, width)
        self.lin_v = nn.Linear(width, width)

    def scores(self, q, k):
        return torch.bmm(q, k.mT)

    def forward(self, q, k, v):
        q = self.lin_q(q).chunk(self.heads, dim=-1)
        k = self.lin_k(k).chunk(self.heads, dim=-1)
        v = self.lin_v(v).chunk(self.heads, dim=-1)
        outputs = []
        for q_head, k_head, v_head in zip(q, k, v, strict=True):
            scores = self.scores(q_head, k_head) / math.sqrt(q_head.size(-1))
            outputs.append(torch.bmm(scores.softmax(dim=2), v_head))
        return torch.cat(outputs, dim=-1)


class WrongFolded(RightFolded):
    def scores(self, q, k):
        return torch.bmm(q, q.mT)  # wrong: AS802 folded_query_twice


def _folded_query_twice(cls, B, H, L, Dk):
    return cls(H * Dk, H), tuple(torch.randn(3, B, L, H * Dk)), {}


def wrong_folded_query_twice(B, H, L, Dk):
    return _folded_query_twice(WrongFolded, B, H, L, Dk)


def right_folded_query_twice(B, H, L, Dk):
    return _folded_query_twice(RightFolded, B, H, L, Dk)


def reference_folded_query_twice(module, q, k, v):
    parts = (q, module.lin_q), (k, module.lin_k), (v, module.lin_v)
    return merge(attend(*(heads(t, p, module.heads) for t, p in parts)))

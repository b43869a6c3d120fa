"""AS801: each step of a loop attends with the query of another one. It is a notice."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, heads, merge, project, visible

SELF = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 5, "Dk": 3})
PAIRS = [
    ("AS801", "query_of_the_first_token", *SELF),
    ("AS801", "query_before_the_loop", *SELF),
    ("AS801", "row_of_the_first_query", *SELF),
]


class Decoder(nn.Module):
    """One token after the other; keys and values are appended to a cache."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def split(self, t):
        return t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)

    def asking(self, x, step):
        return x[:, step : step + 1]

    def forward(self, x):
        keys, values, out = [], [], []
        for step, token in enumerate(x.split(1, dim=1)):
            q = self.split(self.q(self.asking(x, step)))
            keys.append(self.split(self.k(token)))
            values.append(self.split(self.v(token)))
            k, v = torch.cat(keys, dim=2), torch.cat(values, dim=2)
            weights = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(dim=-1)
            out.append((weights @ v).transpose(1, 2).flatten(2))
        return self.o(torch.cat(out, dim=1))


class DecoderOfFirst(Decoder):
    def asking(self, x, step):
        return x[:, :1]


def _decoder(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def wrong_query_of_the_first_token(B, H, L, Dk):
    return _decoder(DecoderOfFirst, B, H, L, Dk)


def right_query_of_the_first_token(B, H, L, Dk):
    return _decoder(Decoder, B, H, L, Dk)


def reference_query_of_the_first_token(module, x):
    q, k, v = (heads(x, one, module.n_heads) for one in (module.q, module.k, module.v))
    return merge(attend(q, k, v, keep=visible(x.shape[1], x.shape[1])), module.o)


class Generator(nn.Module):
    """Each result is the next token."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.to_q, self.to_kv, self.out = nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(width, width)

    def split(self, t):
        return t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)

    def step(self, q, k, v):
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    def forward(self, x):
        k, v = (self.split(t) for t in self.to_kv(x).chunk(2, dim=-1))
        token, made = x[:, -1:], []
        for _ in range(4):
            q = self.split(self.to_q(token))
            token = token + self.step(q, k, v)
            new_k, new_v = (self.split(t) for t in self.to_kv(token).chunk(2, dim=-1))
            k, v = torch.cat((k, new_k), dim=2), torch.cat((v, new_v), dim=2)
            made.append(token)
        return torch.cat(made, dim=1)


class GeneratorOfOneQuery(Generator):
    def forward(self, x):
        k, v = (self.split(t) for t in self.to_kv(x).chunk(2, dim=-1))
        token, made = x[:, -1:], []
        q = self.split(self.to_q(token))  # wrong: AS801 query_before_the_loop
        for _ in range(4):
            token = token + self.step(q, k, v)
            new_k, new_v = (self.split(t) for t in self.to_kv(token).chunk(2, dim=-1))
            k, v = torch.cat((k, new_k), dim=2), torch.cat((v, new_v), dim=2)
            made.append(token)
        return torch.cat(made, dim=1)


def wrong_query_before_the_loop(B, H, L, Dk):
    return _decoder(GeneratorOfOneQuery, B, H, L, Dk)


def right_query_before_the_loop(B, H, L, Dk):
    return _decoder(Generator, B, H, L, Dk)


def reference_query_before_the_loop(module, x):
    tokens = [x]
    for _ in range(4):
        every = torch.cat(tokens, 1)
        last = every[:, -1:]
        q = heads(last, module.to_q, module.n_heads)
        k, v = (torch.stack(t.chunk(module.n_heads, -1), 1) for t in project(every, module.to_kv).chunk(2, -1))
        tokens.append(last + merge(attend(q, k, v), module.out))
    return torch.cat(tokens[1:], 1)


def row_by_row(q, k, v, row=lambda step: step):
    """B H L Dk -> B H L Dk: each query over the keys up to its own."""
    out = torch.empty_like(q)
    for step in range(q.shape[2]):
        scores = torch.einsum("bhd,bhjd->bhj", q[:, :, row(step)], k[:, :, : step + 1]) * q.shape[-1] ** -0.5
        out[:, :, step] = torch.einsum("bhj,bhjd->bhd", scores.softmax(-1), v[:, :, : step + 1])
    return out


def row_by_row_of_first(q, k, v):
    return row_by_row(q, k, v, lambda step: 0)


def wrong_row_of_the_first_query(B, H, L, Dk):
    return row_by_row_of_first, tuple(torch.randn(3, B, H, L, Dk)), {}


def right_row_of_the_first_query(B, H, L, Dk):
    return row_by_row, tuple(torch.randn(3, B, H, L, Dk)), {}


def reference_row_of_the_first_query(called, q, k, v):
    return attend(q, k, v, keep=visible(q.shape[2], q.shape[2]))

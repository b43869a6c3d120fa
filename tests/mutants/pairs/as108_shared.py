"""AS108: keys and values share an input, and also the one that only the keys should have."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, heads, merge

SELF = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 5, "Dk": 4})
CROSS = (
    {"B": 4, "H": 5, "Lq": 7, "Lk": 9, "Dk": 6},
    {"B": 5, "H": 4, "Lq": 9, "Lk": 7, "Dk": 8},
    {"B": 6, "H": 7, "Lq": 5, "Lk": 8, "Dk": 4},
)
CLAIMS = ["separate-values"]
PAIRS = [
    ("AS108", "positions_in_values", *SELF),
    ("AS108", "memory_with_positions_as_value", *CROSS),
    ("AS108", "prompt_in_values", *SELF),
]


class Encoder(nn.Module):
    """As in DETR: positions are added to queries and keys."""

    def __init__(self, width, n):
        super().__init__()
        self.n = n
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))

    def value(self, src, pos):
        return src

    def forward(self, src, pos):
        both = src + pos
        parts = self.q(both), self.k(both), self.v(self.value(src, pos))
        q, k, v = (t.unflatten(-1, (self.n, -1)).transpose(1, 2) for t in parts)
        return (torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), dim=-1) @ v).transpose(1, 2).flatten(2)


class PositionsInValues(Encoder):
    def value(self, src, pos):
        return src + pos


def _two(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), torch.randn(B, L, H * Dk)), {}, CLAIMS


def wrong_positions_in_values(B, H, L, Dk):
    return _two(PositionsInValues, B, H, L, Dk)


def right_positions_in_values(B, H, L, Dk):
    return _two(Encoder, B, H, L, Dk)


def reference_positions_in_values(module, src, pos):
    q, k, v = heads(src + pos, module.q, module.n), heads(src + pos, module.k, module.n), heads(src, module.v, module.n)
    return merge(attend(q, k, v))


class Cross(nn.Module):
    """Queries attend to a memory in the kernel; its positions are part of the keys."""

    def __init__(self, width, n):
        super().__init__()
        self.n = n
        self.to_q, self.to_k, self.to_v = (nn.Linear(width, width, bias=False) for _ in range(3))

    def sources(self, memory, pos):
        return memory + pos, memory

    def forward(self, tgt, memory, pos):
        key, value = self.sources(memory, pos)
        parts = self.to_q(tgt), self.to_k(key), self.to_v(value)
        q, k, v = (t.view(*t.shape[:2], self.n, -1).transpose(1, 2) for t in parts)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


class MemoryWithPositions(Cross):
    def sources(self, memory, pos):
        memory = memory + pos
        return memory, memory


def _cross(cls, B, H, Lq, Lk, Dk):
    width = H * Dk
    return cls(width, H), (torch.randn(B, Lq, width), *torch.randn(2, B, Lk, width)), {}, CLAIMS


def wrong_memory_with_positions_as_value(B, H, Lq, Lk, Dk):
    return _cross(MemoryWithPositions, B, H, Lq, Lk, Dk)


def right_memory_with_positions_as_value(B, H, Lq, Lk, Dk):
    return _cross(Cross, B, H, Lq, Lk, Dk)


def reference_memory_with_positions_as_value(module, tgt, memory, pos):
    q, k = heads(tgt, module.to_q, module.n), heads(memory + pos, module.to_k, module.n)
    return merge(attend(q, k, heads(memory, module.to_v, module.n)))


class Prompted(nn.Module):
    """A prompt multiplies the keys; weights are parameters with an axis of heads."""

    def __init__(self, width, n):
        super().__init__()
        self.w_q, self.w_k, self.w_v = (nn.Parameter(torch.randn(n, width, width // n) / n) for _ in range(3))

    def value(self, x, prompt):
        return x

    def forward(self, x, prompt):
        q = torch.einsum("bld,hde->bhle", x, self.w_q)
        k = torch.einsum("bld,hde->bhle", x * prompt, self.w_k)
        v = torch.einsum("bld,hde->bhle", self.value(x, prompt), self.w_v)
        scores = torch.einsum("bhie,bhje->bhij", q, k) * q.shape[-1] ** -0.5
        return torch.einsum("bhij,bhje->bihe", scores.softmax(-1), v).flatten(2)


class PromptInValues(Prompted):
    def value(self, x, prompt):
        return x * prompt


def wrong_prompt_in_values(B, H, L, Dk):
    return _two(PromptInValues, B, H, L, Dk)


def right_prompt_in_values(B, H, L, Dk):
    return _two(Prompted, B, H, L, Dk)


def reference_prompt_in_values(module, x, prompt):
    given = ((x, module.w_q), (prompt * x, module.w_k), (x, module.w_v))
    return merge(attend(*((t[:, None] @ w) for t, w in given)))

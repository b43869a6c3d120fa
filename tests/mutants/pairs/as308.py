"""AS308: part of a result is memory that nothing wrote."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.mutants.plain import attention, join, split

SIZES = ({"B": 2, "H": 4, "L": 7, "Dk": 5}, {"B": 5, "H": 3, "L": 9, "Dk": 4}, {"B": 4, "H": 5, "L": 11, "Dk": 8})
CROSS = (
    {"B": 2, "H": 4, "Lq": 5, "Lk": 7, "Dk": 3},
    {"B": 3, "H": 2, "Lq": 9, "Lk": 4, "Dk": 6},
    {"B": 5, "H": 3, "Lq": 7, "Lk": 9, "Dk": 6},
)
PAIRS = [
    ("AS308", "last_block", *CROSS),
    ("AS308", "last_head", *SIZES),
    ("AS308", "padded_keys", *SIZES),
]


def blocks(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend two queries at a time, in (B, H, L, Dk)."""
    context = q.new_empty(*q.shape[:-1], v.shape[-1])
    for start in range(0, q.shape[2], 2):
        weights = torch.softmax(q[:, :, start : start + 2] @ k.mT * q.shape[-1] ** -0.5, dim=-1)
        context[:, :, start : start + 2] = weights @ v
    return context


def all_but_the_last(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend two queries at a time, in (B, H, L, Dk)."""
    context = q.new_empty(*q.shape[:-1], v.shape[-1])  # wrong: AS308 last_block
    for start in range(0, q.shape[2] - 1, 2):
        weights = torch.softmax(q[:, :, start : start + 2] @ k.mT * q.shape[-1] ** -0.5, dim=-1)
        context[:, :, start : start + 2] = weights @ v
    return context


def _heads(B, H, Lq, Lk, Dk):
    return torch.randn(B, H, Lq, Dk), torch.randn(B, H, Lk, Dk), torch.randn(B, H, Lk, Dk)


def wrong_last_block(B, H, Lq, Lk, Dk):
    return all_but_the_last, _heads(B, H, Lq, Lk, Dk), {}


def right_last_block(B, H, Lq, Lk, Dk):
    return blocks, _heads(B, H, Lq, Lk, Dk), {}


def reference_last_block(function, q, k, v):
    return attention(q, k, v)


class ByHead(nn.Module):
    """Attends with one head after the other."""

    def __init__(self, d_model, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(d_model, 3 * d_model)

    def buffer(self, q):
        return torch.empty_like(q)

    def indices(self):
        return range(self.heads)

    def forward(self, x):
        q, k, v = (split(t, self.heads) for t in self.qkv(x).chunk(3, dim=-1))
        context = self.buffer(q)
        for head in self.indices():
            context[:, head] = F.scaled_dot_product_attention(q[:, head], k[:, head], v[:, head])
        return join(context)


class AllButOneHead(ByHead):
    def buffer(self, q):
        return torch.empty_like(q)  # wrong: AS308 last_head

    def indices(self):
        return range(self.heads - 1)


def _module(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def wrong_last_head(B, H, L, Dk):
    return _module(AllButOneHead, B, H, L, Dk)


def right_last_head(B, H, L, Dk):
    return _module(ByHead, B, H, L, Dk)


def reference_last_head(module, x):
    q, k, v = (split(t, module.heads) for t in module.qkv(x).chunk(3, dim=-1))
    return join(attention(q, k, v))


class Registers(nn.Module):
    """Keys and values get two more rows of zeros, as for a multiple of the block size."""

    def __init__(self, d_model, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(d_model, 3 * d_model)

    def longer(self, t):
        more = t.new_zeros(*t.shape[:2], 2, t.shape[3])
        return torch.cat([t, more], dim=2)

    def forward(self, x):
        q, k, v = (split(t, self.heads) for t in self.qkv(x).chunk(3, dim=-1))
        return join(F.scaled_dot_product_attention(q, self.longer(k), self.longer(v)))


class EmptyRegisters(Registers):
    def longer(self, t):
        more = t.new_empty(*t.shape[:2], 2, t.shape[3])  # wrong: AS308 padded_keys
        return torch.cat([t, more], dim=2)


def wrong_padded_keys(B, H, L, Dk):
    return _module(EmptyRegisters, B, H, L, Dk)


def right_padded_keys(B, H, L, Dk):
    return _module(Registers, B, H, L, Dk)


def reference_padded_keys(module, x):
    q, k, v = (split(t, module.heads) for t in module.qkv(x).chunk(3, dim=-1))
    k, v = (F.pad(t, (0, 0, 0, 2)) for t in (k, v))
    return join(attention(q, k, v))

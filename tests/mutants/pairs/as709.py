"""AS709: queries and keys are rotated, and no claim says so. The right versions rotate nothing."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.plain import attention, multihead

SIZES = ({"B": 2, "H": 4, "L": 5, "Dk": 6}, {"B": 5, "H": 2, "L": 9, "Dk": 8}, {"B": 4, "H": 3, "L": 7, "Dk": 10})
PAIRS = [
    ("AS709", "halves", *SIZES),
    ("AS709", "complex_pairs", *SIZES),
    ("AS709", "one_head", *SIZES),
]


def angles(length, width):
    return torch.arange(length)[:, None] * 10000.0 ** (-torch.arange(0, width, 2) / width)


def turn(x):
    table = angles(x.size(-2), x.size(-1))
    a, b = x.chunk(2, -1)
    return torch.cat((a * table.cos() - b * table.sin(), b * table.cos() + a * table.sin()), -1)


def turn_pairs(x):
    table = angles(x.size(-2), x.size(-1))
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2).contiguous())
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(table), table).to(pairs.dtype)).flatten(-2)


class Block(nn.Module):
    """Fused attention behind one projection for queries, keys and values."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def place(self, q, k):
        return q, k

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(*self.place(q, k), v)
        return self.out(y.transpose(1, 2).flatten(2))


class RotatedBlock(Block):
    def place(self, q, k):
        return turn(q), turn(k)  # wrong: AS709 halves


def wrong_halves(B, H, L, Dk):
    return RotatedBlock(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def right_halves(B, H, L, Dk):
    return Block(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def reference_halves(module, x):
    return module.out(multihead(*module.qkv(x).chunk(3, -1), module.heads))


def attend(q, k, v):
    return torch.softmax(q @ k.mT / q.size(-1) ** 0.5, -1) @ v


def attend_rotated(q, k, v):
    q, k = turn_pairs(q), turn_pairs(k)  # wrong: AS709 complex_pairs
    return torch.softmax(q @ k.mT / q.size(-1) ** 0.5, -1) @ v


def wrong_complex_pairs(B, H, L, Dk):
    return attend_rotated, tuple(torch.randn(B, H, L, Dk) for _ in range(3)), {}


def right_complex_pairs(B, H, L, Dk):
    return attend, tuple(torch.randn(B, H, L, Dk) for _ in range(3)), {}


def reference_complex_pairs(called, q, k, v):
    return attention(q, k, v)


class Single(nn.Module):
    """One head, from (B, L, Dk)."""

    def __init__(self, width):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width, bias=False) for _ in range(3))

    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        return torch.bmm(q * q.size(-1) ** -0.5, k.mT).softmax(2) @ v


class SingleRotated(Single):
    def forward(self, x):
        q, k, v = turn(self.q(x)), turn(self.k(x)), self.v(x)  # wrong: AS709 one_head
        return torch.bmm(q * q.size(-1) ** -0.5, k.mT).softmax(2) @ v


def wrong_one_head(B, H, L, Dk):
    return SingleRotated(Dk), (torch.randn(B, L, Dk),), {}


def right_one_head(B, H, L, Dk):
    return Single(Dk), (torch.randn(B, L, Dk),), {}


def reference_one_head(module, x):
    return attention(module.q(x), module.k(x), module.v(x))

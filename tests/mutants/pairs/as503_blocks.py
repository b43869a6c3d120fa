"""AS503 where blocks of queries attend to all keys, and the causal mask of a block doesn't start at its position."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, merge, visible

SIZES = (
    {"B": 4, "H": 5, "L": 9, "W": 3, "Dk": 6},
    {"B": 5, "H": 3, "L": 8, "W": 4, "Dk": 6},
    {"B": 2, "H": 7, "L": 10, "W": 5, "Dk": 4},
)
PAIRS = [
    ("AS503", "blocks_from_zero", *SIZES),
    ("AS503", "slabs_with_one_triangle", *SIZES),
]


def by_blocks(q, k, v, size, begins=lambda start: start):
    """Attend in (B, H, L, Dk) with `size` queries at a time."""
    steps, found = torch.arange(k.shape[2]), []
    for start in range(0, q.shape[2], size):
        block = q[:, :, start : start + size]
        rows = begins(start) + torch.arange(block.shape[2])
        later = steps > rows[:, None]  # wrong: AS503 blocks_from_zero
        scores = torch.einsum("bhid,bhjd->bhij", block, k) / q.shape[-1] ** 0.5
        found.append(torch.einsum("bhij,bhjd->bhid", scores.masked_fill(later, -torch.inf).softmax(-1), v))
    return torch.cat(found, dim=2)


def by_blocks_from_zero(q, k, v, size):
    return by_blocks(q, k, v, size, lambda start: 0)


def _blocks(function, B, H, L, W, Dk):
    return function, (*torch.randn(3, B, H, L, Dk), W), {}, ["causal"]


def wrong_blocks_from_zero(B, H, L, W, Dk):
    return _blocks(by_blocks_from_zero, B, H, L, W, Dk)


def right_blocks_from_zero(B, H, L, W, Dk):
    return _blocks(by_blocks, B, H, L, W, Dk)


def reference_blocks_from_zero(function, q, k, v, size):
    return attend(q, k, v, visible(q.shape[2], k.shape[2]))


class Slabs(nn.Module):
    """Causal attention that writes the contexts of one slab of queries after another."""

    def __init__(self, width, n_heads, slab):
        super().__init__()
        self.n_heads, self.slab = n_heads, slab
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def keep(self, rows, keys):
        return torch.ones(len(rows), keys, dtype=torch.bool).tril(rows[0])

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)
        context = torch.empty_like(q)
        for start in range(0, x.shape[1], self.slab):
            rows = range(start, min(start + self.slab, x.shape[1]))
            keep = self.keep(rows, x.shape[1])
            context[:, :, rows] = F.scaled_dot_product_attention(q[:, :, rows], k, v, attn_mask=keep)
        return self.out(context.transpose(1, 2).flatten(2))


class UnshiftedSlabs(Slabs):
    def keep(self, rows, keys):
        return torch.ones(len(rows), keys, dtype=torch.bool).tril()  # wrong: AS503 slabs_with_one_triangle


def _slabs(cls, B, H, L, W, Dk):
    return cls(H * Dk, H, W), (torch.randn(B, L, H * Dk),), {}, ["causal"]


def wrong_slabs_with_one_triangle(B, H, L, W, Dk):
    return _slabs(UnshiftedSlabs, B, H, L, W, Dk)


def right_slabs_with_one_triangle(B, H, L, W, Dk):
    return _slabs(Slabs, B, H, L, W, Dk)


def reference_slabs_with_one_triangle(module, x):
    return merge(attend(*fused(x, module.qkv, module.n_heads), visible(x.shape[1], x.shape[1])), module.out)

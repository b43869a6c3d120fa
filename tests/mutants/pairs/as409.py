"""AS409: local attention pads its blocks with keys of zeros, and doesn't hide them."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, merge, visible

SIZES = (
    {"B": 4, "H": 5, "Dk": 6, "W": 3},
    {"B": 5, "H": 2, "Dk": 8, "W": 4},
    {"B": 6, "H": 7, "Dk": 4, "W": 2},
)
CLAIMS = ["causal", "window=W"]
BLOCKS = 3
PAIRS = [
    ("AS409", "block_before", *SIZES),
    ("AS409", "zeros_in_buffer", *SIZES),
    ("AS409", "neighbours", *SIZES),
    ("AS409", "padded_input", *SIZES),
]


class RightBlocks(nn.Module):
    """Blocks attend to themselves and to the block before; the first one has none before it."""

    def __init__(self, dim, heads, width):
        super().__init__()
        self.heads, self.width = heads, width
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def with_previous(self, t):
        return torch.cat([F.pad(t, (0, 0, 0, 0, 1, 0))[:, :, :-1], t], dim=3)

    def hidden(self, i, j):
        return (j > i) | (i - j >= self.width) | (j < 0)

    def forward(self, x):
        B, L, D = x.shape
        q, k, v = (
            t.view(B, -1, self.width, self.heads, D // self.heads).permute(0, 3, 1, 2, 4)
            for t in self.qkv(x).chunk(3, dim=-1)
        )
        k, v = self.with_previous(k), self.with_previous(v)
        i = torch.arange(L).view(-1, self.width)
        j = torch.cat([i - self.width, i], dim=1)
        scores = q @ k.transpose(-2, -1) / math.sqrt(D // self.heads)
        scores = scores.masked_fill(self.hidden(i[:, :, None], j[:, None, :]), float("-inf"))
        return self.proj((scores.softmax(dim=-1) @ v).permute(0, 2, 3, 1, 4).reshape(B, L, D))


class WrongBlocks(RightBlocks):
    def with_previous(self, t):
        before = F.pad(t, (0, 0, 0, 0, 1, 0))[:, :, :-1]  # wrong: AS409 block_before
        return torch.cat([before, t], dim=3)

    def hidden(self, i, j):
        return (j > i) | (i - j >= self.width)


def _block_before(cls, B, H, Dk, W):
    return cls(H * Dk, H, W), (torch.randn(B, BLOCKS * W, H * Dk),), {}, CLAIMS


def wrong_block_before(B, H, Dk, W):
    return _block_before(WrongBlocks, B, H, Dk, W)


def right_block_before(B, H, Dk, W):
    return _block_before(RightBlocks, B, H, Dk, W)


def reference_block_before(module, x):
    q, k, v = fused(x, module.qkv, module.heads)
    return merge(attend(q, k, v, visible(x.shape[1], x.shape[1], module.width)), module.proj)


def in_buffer(blocks):
    buffer = blocks.new_zeros(*blocks.shape[:2], blocks.shape[2] + 1, *blocks.shape[3:])
    buffer[:, :, 1:] = blocks
    return torch.cat((buffer[:, :, :-1], buffer[:, :, 1:]), dim=3)


def local_fused(q, k, v, heads, width):
    q, k, v = (t.unflatten(-1, (heads, -1)).unflatten(1, (-1, width)).movedim(3, 1) for t in (q, k, v))
    near = torch.ones(width, 2 * width, dtype=torch.bool).tril(width).triu(1).repeat(q.size(2), 1, 1)
    near[0, :, :width] = False
    return (
        F.scaled_dot_product_attention(q, in_buffer(k), in_buffer(v), attn_mask=near)
        .movedim(1, 3)
        .flatten(3)
        .flatten(1, 2)
    )


def in_open_buffer(blocks):
    buffer = blocks.new_zeros(*blocks.shape[:2], blocks.shape[2] + 1, *blocks.shape[3:])
    buffer[:, :, 1:] = blocks  # wrong: AS409 zeros_in_buffer
    return torch.cat((buffer[:, :, :-1], buffer[:, :, 1:]), dim=3)


def local_fused_open(q, k, v, heads, width):
    q, k, v = (t.unflatten(-1, (heads, -1)).unflatten(1, (-1, width)).movedim(3, 1) for t in (q, k, v))
    near = torch.ones(width, 2 * width, dtype=torch.bool).tril(width).triu(1)
    return (
        F.scaled_dot_product_attention(q, in_open_buffer(k), in_open_buffer(v), attn_mask=near)
        .movedim(1, 3)
        .flatten(3)
        .flatten(1, 2)
    )


def _zeros_in_buffer(function, B, H, Dk, W):
    return function, (*(torch.randn(B, BLOCKS * W, H * Dk) for _ in range(3)), H, W), {}, CLAIMS


def wrong_zeros_in_buffer(B, H, Dk, W):
    return _zeros_in_buffer(local_fused_open, B, H, Dk, W)


def right_zeros_in_buffer(B, H, Dk, W):
    return _zeros_in_buffer(local_fused, B, H, Dk, W)


def reference_zeros_in_buffer(function, q, k, v, heads, width):
    q, k, v = (torch.stack(t.chunk(heads, -1), 1) for t in (q, k, v))
    return merge(attend(q, k, v, visible(q.shape[2], k.shape[2], width)))


class RightNeighbours(nn.Module):
    """Each token attends to those less than `width` positions away, on both sides."""

    def __init__(self, dim, heads, width):
        super().__init__()
        self.heads, self.width = heads, width
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)

    def around(self, t):
        side = self.width - 1
        return F.pad(t, (0, 0, side, side)).unfold(2, 2 * side + 1, 1)

    def exists(self, length):
        at = torch.arange(length)[:, None] + torch.arange(1 - self.width, self.width)
        return (at >= 0) & (at < length)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        scores = torch.einsum("bhld,bhldn->bhln", q, self.around(k)) * q.shape[-1] ** -0.5
        scores = scores.masked_fill(~self.exists(x.shape[1]), -1e30)
        context = torch.einsum("bhln,bhldn->bhld", scores.softmax(dim=-1), self.around(v))
        return self.out(context.transpose(1, 2).flatten(2))


class WrongNeighbours(RightNeighbours):
    def around(self, t):
        side = self.width - 1
        t = F.pad(t, (0, 0, side, side))  # wrong: AS409 neighbours
        return t.unfold(2, 2 * side + 1, 1)

    def exists(self, length):
        return torch.ones(length, 2 * self.width - 1, dtype=torch.bool)


def _neighbours(cls, B, H, Dk, W):
    return cls(H * Dk, H, W), (torch.randn(B, BLOCKS * W, H * Dk),), {}, ["window=W"]


def wrong_neighbours(B, H, Dk, W):
    return _neighbours(WrongNeighbours, B, H, Dk, W)


def right_neighbours(B, H, Dk, W):
    return _neighbours(RightNeighbours, B, H, Dk, W)


def reference_neighbours(module, x):
    q, k, v = fused(x, module.qkv, module.heads)
    at = torch.arange(x.shape[1])
    return merge(attend(q, k, v, (at[:, None] - at).abs() < module.width), module.out)


class RightPadded(nn.Module):
    """Tokens are padded to whole blocks, each of which attends causally to itself, with a token before it."""

    def __init__(self, dim, heads, width):
        super().__init__()
        self.heads, self.width = heads, width
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_kv = nn.Linear(dim, 2 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def blocks(self, x):
        """B L D -> B n W+1 D, and which of these tokens there are."""
        there = F.pad(torch.ones(x.shape[1], dtype=torch.bool), (1, 0))
        return F.pad(x, (0, 0, 1, 0)).unfold(1, self.width + 1, self.width).mT, there.unfold(
            0, self.width + 1, self.width
        )

    def forward(self, x):
        tokens, there = self.blocks(x)
        q = self.to_q(tokens[:, :, 1:]).unflatten(-1, (self.heads, -1))
        k, v = self.to_kv(tokens).unflatten(-1, (2, self.heads, -1)).unbind(3)
        scores = torch.einsum("bnqhd,bnkhd->bhnqk", q, k) / q.shape[-1] ** 0.5
        keep = torch.ones(self.width, self.width + 1).tril(1).bool() & there[:, None]
        scores = torch.where(keep, scores, torch.finfo(scores.dtype).min)
        return self.to_out(torch.einsum("bhnqk,bnkhd->bnqhd", scores.softmax(-1), v).flatten(1, 2).flatten(2))


class WrongPadded(RightPadded):
    def blocks(self, x):
        x = F.pad(x, (0, 0, 1, 0))  # wrong: AS409 padded_input
        tokens = x.unfold(1, self.width + 1, self.width).mT
        return tokens, torch.ones(tokens.shape[1:3], dtype=torch.bool)


def _padded_input(cls, B, H, Dk, W):
    return cls(H * Dk, H, W), (torch.randn(B, BLOCKS * W, H * Dk),), {}, ["causal"]


def wrong_padded_input(B, H, Dk, W):
    return _padded_input(WrongPadded, B, H, Dk, W)


def right_padded_input(B, H, Dk, W):
    return _padded_input(RightPadded, B, H, Dk, W)


def reference_padded_input(module, x):
    q = torch.stack((x @ module.to_q.weight.T).chunk(module.heads, -1), 1)
    k, v = (torch.stack(t.chunk(module.heads, -1), 1) for t in (x @ module.to_kv.weight.T).chunk(2, -1))
    at = torch.arange(x.shape[1])
    return merge(
        attend(q, k, v, (at <= at[:, None]) & (at >= at[:, None] // module.width * module.width - 1)), module.to_out
    )

"""AS505: queries come in blocks, and keys of earlier blocks that are in their window are lost."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, merge, visible

SIZES = (
    {"B": 4, "H": 5, "L": 14, "Dk": 8, "W": 6},
    {"B": 5, "H": 6, "L": 13, "Dk": 8, "W": 7},
    {"B": 6, "H": 7, "L": 15, "Dk": 4, "W": 8},
)
CLAIMS = ["causal", "window=W"]
PAIRS = [
    ("AS505", "cache_trimmed_before_block", *SIZES),
    ("AS505", "keys_of_last_query", *SIZES),
    ("AS505", "only_block_before", *SIZES),
]
BLOCK = 4


class Prefill(nn.Module):
    """A prompt is processed in chunks; the cache keeps what the windows of the next chunk need."""

    def __init__(self, width, heads, window):
        super().__init__()
        self.heads, self.window = heads, window
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)

    def kept(self, chunk):
        return self.window - 1 + chunk

    def step(self, x, cache):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        if cache is not None:
            k, v = torch.cat((cache[0], k), dim=2), torch.cat((cache[1], v), dim=2)
        kept = self.kept(q.shape[2])
        k, v = k[:, :, -kept:], v[:, :, -kept:]
        n, m = q.shape[2], k.shape[2]
        distance = torch.arange(m - n, m)[:, None] - torch.arange(m)
        seen = (distance >= 0) & (distance < self.window)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return out.transpose(1, 2).flatten(2), (k, v)

    def forward(self, x):
        outputs, cache = [], None
        for chunk in x.split(BLOCK, dim=1):
            out, cache = self.step(chunk, cache)
            outputs.append(out)
        return self.out(torch.cat(outputs, dim=1))


class TrimmedPrefill(Prefill):
    def kept(self, chunk):
        return max(self.window, chunk)


def _prefill(cls, B, H, L, Dk, W):
    return cls(H * Dk, H, W), (torch.randn(B, L, H * Dk),), {}, CLAIMS


def wrong_cache_trimmed_before_block(B, H, L, Dk, W):
    return _prefill(TrimmedPrefill, B, H, L, Dk, W)


def right_cache_trimmed_before_block(B, H, L, Dk, W):
    return _prefill(Prefill, B, H, L, Dk, W)


def reference_cache_trimmed_before_block(module, x):
    q, k, v = fused(x, module.qkv, module.heads)
    return merge(attend(q, k, v, keep=visible(x.shape[1], x.shape[1], module.window)), module.out)


class Blocks:
    """A loop over blocks of queries, each with the keys that its windows reach."""

    def __init__(self, window):
        self.window = window

    def first(self, start, stop):
        return max(0, start - self.window + 1)

    def __call__(self, q, k, v):
        contexts = []
        for start in range(0, q.shape[2], BLOCK):
            stop = min(start + BLOCK, q.shape[2])
            first = self.first(start, stop)
            scores = torch.einsum("bhid,bhjd->bhij", q[:, :, start:stop], k[:, :, first:stop]) / math.sqrt(q.shape[-1])
            i, j = torch.arange(start, stop)[:, None], torch.arange(first, stop)
            scores = scores.masked_fill((j > i) | (j <= i - self.window), -torch.inf)
            contexts.append(torch.einsum("bhij,bhjd->bhid", scores.softmax(dim=-1), v[:, :, first:stop]))
        return torch.cat(contexts, dim=2)


class BlocksOfLastQuery(Blocks):
    def first(self, start, stop):
        return min(start, max(0, stop - self.window))


def _blocks(cls, B, H, L, Dk, W):
    return cls(W), tuple(torch.randn(3, B, H, L, Dk)), {}, CLAIMS


def wrong_keys_of_last_query(B, H, L, Dk, W):
    return _blocks(BlocksOfLastQuery, B, H, L, Dk, W)


def right_keys_of_last_query(B, H, L, Dk, W):
    return _blocks(Blocks, B, H, L, Dk, W)


def reference_keys_of_last_query(called, q, k, v):
    return attend(q, k, v, keep=visible(q.shape[2], q.shape[2], called.window))


class Neighbours(nn.Module):
    """Blocks of queries meet the blocks before them, as many as the window reaches."""

    def __init__(self, window):
        super().__init__()
        self.window = window

    def before(self):
        return -(-(self.window - 1) // BLOCK)

    def forward(self, q, k, v):
        blocks = [t.split(BLOCK, dim=2) for t in (q, k, v)]
        contexts = []
        for number, query in enumerate(blocks[0]):
            first = max(0, number - self.before())
            key, value = (torch.cat(each[first : number + 1], dim=2) for each in blocks[1:])
            place = torch.arange(key.shape[2])
            distance = place[-query.shape[2] :, None] - place
            bias = torch.where((distance >= 0) & (distance < self.window), 0.0, -1e9).to(q.dtype)
            contexts.append(torch.softmax(query @ key.mT * q.shape[-1] ** -0.5 + bias, dim=-1) @ value)
        return torch.cat(contexts, dim=2)


class OneNeighbour(Neighbours):
    def before(self):
        return 1


def wrong_only_block_before(B, H, L, Dk, W):
    return _blocks(OneNeighbour, B, H, L, Dk, W)


def right_only_block_before(B, H, L, Dk, W):
    return _blocks(Neighbours, B, H, L, Dk, W)


reference_only_block_before = reference_keys_of_last_query

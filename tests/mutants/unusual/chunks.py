"""Chunks on whose size the results depend by design: they are windows."""

import torch
from torch import nn

from tests.mutants.plain import attention, causal, join, split

SIZES = ({"B": 2, "H": 4, "Nw": 5, "W": 6, "Dk": 3}, {"B": 5, "H": 3, "Nw": 4, "W": 2, "Dk": 6})
UNUSUAL = [("segments_with_memory", *SIZES), ("blocks_by_themselves", *SIZES)]


class Segments(nn.Module):
    """Each segment also attends to the states of the one before it."""

    def __init__(self, width, heads, seg_len):
        super().__init__()
        self.heads, self.seg_len = heads, seg_len
        self.layers = nn.ModuleList(nn.ModuleList(nn.Linear(width, width) for _ in range(4)) for _ in range(2))

    def attended(self, layer, x, memory):
        wq, wk, wv, wo = layer
        context = torch.cat((memory, x), dim=1)
        q, k, v = (split(w(t), self.heads) for w, t in ((wq, x), (wk, context), (wv, context)))
        scores = q @ k.mT * q.shape[-1] ** -0.5
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(memory.shape[1] + 1)
        return wo(join(scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v))

    def forward(self, x):
        memories, out = [x[:, :0] for _ in self.layers], []
        for segment in x.split(self.seg_len, dim=1):
            kept = []
            for layer, memory in zip(self.layers, memories, strict=True):
                kept.append(segment)
                segment = segment + self.attended(layer, segment, memory)
            memories = kept
            out.append(segment)
        return torch.cat(out, dim=1)


def _module(cls, B, H, Nw, W, Dk):
    return cls(H * Dk, H, W), (torch.randn(B, Nw * W, H * Dk),), {}


def case_segments_with_memory(B, H, Nw, W, Dk):
    return _module(Segments, B, H, Nw, W, Dk)


class Blocks(nn.Module):
    """Tokens attend to those of their own block, and a running mean of values of all earlier tokens is added."""

    def __init__(self, width, heads, block_size):
        super().__init__()
        self.heads, self.block_size = heads, block_size
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, x):
        q, k, v = (split(one, self.heads).unflatten(2, (-1, self.block_size)) for one in self.qkv(x).chunk(3, dim=-1))
        scores = q @ k.mT * q.shape[-1] ** -0.5
        hidden = torch.ones(self.block_size, self.block_size, dtype=torch.bool).triu(1)
        local = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v
        values = v.flatten(2, 3)
        mean = values.cumsum(2) / torch.arange(1, x.shape[1] + 1)[:, None]
        return join(local.flatten(2, 3) + mean)


def case_blocks_by_themselves(B, H, Nw, W, Dk):
    return _module(Blocks, B, H, Nw, W, Dk)


def reference_blocks_by_themselves(module, x):
    q, k, v = (split(one, module.heads) for one in module.qkv(x).chunk(3, dim=-1))
    tokens, size = x.shape[1], module.block_size
    place = torch.arange(tokens)
    near = causal(tokens, tokens) & (place[:, None] // size == place // size)
    mean = torch.stack([v[:, :, : i + 1].mean(2) for i in range(tokens)], dim=2)
    return join(attention(q, k, v, keep=near) + mean)

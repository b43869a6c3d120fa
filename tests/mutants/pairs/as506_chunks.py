"""AS506 and AS505 where a claim has several bounds, or where the number of tokens is a product."""

import torch
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, merge

CHUNKS = (
    {"B": 4, "H": 5, "L": 11, "Dk": 6, "W": 3, "N": 1},
    {"B": 5, "H": 4, "L": 13, "Dk": 8, "W": 3, "N": 2},
    {"B": 6, "H": 7, "L": 14, "Dk": 5, "W": 4, "N": 1},
)
BLOCKS = (
    {"B": 2, "H": 5, "N": 4, "Dk": 6, "W": 3},
    {"B": 5, "H": 6, "N": 3, "Dk": 8, "W": 4},
    {"B": 6, "H": 7, "N": 5, "Dk": 4, "W": 2},
)
GRAPHS = (
    {"B": 3, "H": 5, "L": 4, "Dk": 6},
    {"B": 4, "H": 3, "L": 5, "Dk": 8},
    {"B": 2, "H": 4, "L": 7, "Dk": 5},
)
PAIRS = [
    ("AS506", "left_context_from_each_frame", *CHUNKS),
    ("AS506", "nodes_of_next_graph", *GRAPHS),
    ("AS505", "neighbouring_block_whole", *BLOCKS),
]


class Streaming(nn.Module):
    """Frames see their chunk, and a number of chunks before it."""

    def __init__(self, width, heads, chunk, before):
        super().__init__()
        self.heads, self.chunk, self.before = heads, chunk, before
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def seen(self, frames, chunks):
        return (chunks[:, None] >= chunks) & (chunks[:, None] - self.before <= chunks)

    def forward(self, x):
        q, k, v = fused(x, self.qkv, self.heads)
        frames = torch.arange(x.shape[1])
        seen = self.seen(frames, frames // self.chunk)
        scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~seen, float("-inf"))
        return merge(scores.softmax(-1) @ v, self.out)


class FromEachFrame(Streaming):
    def seen(self, frames, chunks):
        oldest = frames[:, None] - self.before * self.chunk
        return (chunks[:, None] >= chunks) & (oldest <= frames)  # wrong: AS506 left_context_from_each_frame


def _streaming(cls, B, H, L, Dk, W, N):
    claims = ["visible=k // W <= q // W and k // W >= q // W - N"]
    return cls(H * Dk, H, W, N), (torch.randn(B, L, H * Dk),), {}, claims


def wrong_left_context_from_each_frame(B, H, L, Dk, W, N):
    return _streaming(FromEachFrame, B, H, L, Dk, W, N)


def right_left_context_from_each_frame(B, H, L, Dk, W, N):
    return _streaming(Streaming, B, H, L, Dk, W, N)


def reference_left_context_from_each_frame(module, x):
    chunk = torch.arange(x.shape[1]) // module.chunk
    back = chunk[:, None] - chunk
    return merge(attend(*fused(x, module.qkv, module.heads), (back >= 0) & (back <= module.before)), module.out)


class Graphs(nn.Module):
    """The nodes of all graphs are on one axis, and attend to those of their graph."""

    def __init__(self, width, heads, nodes):
        super().__init__()
        self.heads, self.nodes = heads, nodes
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def of_one_graph(self, places):
        graphs = places // self.nodes
        return graphs[:, None] == graphs

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(0, 1) for t in self.qkv(x).chunk(3, dim=-1))
        seen = self.of_one_graph(torch.arange(len(x)))
        scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~seen, float("-inf"))
        return self.out((scores.softmax(-1) @ v).transpose(0, 1).flatten(1))


class NextGraph(Graphs):
    def of_one_graph(self, places):
        return (places[:, None] - places).abs() < self.nodes  # wrong: AS506 nodes_of_next_graph


def _graphs(cls, B, H, L, Dk):
    return cls(H * Dk, H, L), (torch.randn(B * L, H * Dk),), {}, ["visible=q // L == k // L"]


def wrong_nodes_of_next_graph(B, H, L, Dk):
    return _graphs(NextGraph, B, H, L, Dk)


def right_nodes_of_next_graph(B, H, L, Dk):
    return _graphs(Graphs, B, H, L, Dk)


def reference_nodes_of_next_graph(module, x):
    graphs = x.unflatten(0, (-1, module.nodes))
    return merge(attend(*fused(graphs, module.qkv, module.heads)), module.out).flatten(0, 1)


class Local(nn.Module):
    """Blocks of W tokens attend to themselves and to the block before, as far as W tokens back."""

    def __init__(self, block):
        super().__init__()
        self.block = block

    def hidden(self, back, keys):
        return (back < 0) | (back > self.block) | (keys < 0)

    def forward(self, q, k, v):
        q, k, v = (t.unflatten(2, (-1, self.block)) for t in (q, k, v))
        k, v = (torch.cat((nn.functional.pad(t, (0, 0, 0, 0, 1, 0))[:, :, :-1], t), dim=3) for t in (k, v))
        places = torch.arange(q.shape[2] * self.block).unflatten(0, (-1, self.block))
        before = torch.cat((places - self.block, places), dim=1)
        hidden = self.hidden(places[:, :, None] - before[:, None], before[:, None])
        scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(hidden, float("-inf"))
        return (scores.softmax(-1) @ v).flatten(2, 3)


class WholeBlock(Local):
    def hidden(self, back, keys):
        return (back < 0) | (keys < 0)  # wrong: AS505 neighbouring_block_whole


def _local(cls, B, H, N, Dk, W):
    return cls(W), tuple(torch.randn(3, B, H, N * W, Dk)), {}, ["causal", "window=W+1"]


def wrong_neighbouring_block_whole(B, H, N, Dk, W):
    return _local(WholeBlock, B, H, N, Dk, W)


def right_neighbouring_block_whole(B, H, N, Dk, W):
    return _local(Local, B, H, N, Dk, W)


def reference_neighbouring_block_whole(module, q, k, v):
    places = torch.arange(q.shape[2])
    back = places[:, None] - places
    return attend(q, k, v, (back >= 0) & (back <= module.block))

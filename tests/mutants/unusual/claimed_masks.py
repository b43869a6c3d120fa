"""Claimed masks that act on some attentions only, or on more than attention."""

import math

import torch
from torch import nn

from tests.mutants.plain import attention, join, softmax, split

SELF = ({"B": 2, "H": 4, "L": 6, "Dk": 5}, {"B": 5, "H": 2, "L": 9, "Dk": 7})
CROSS = ({"B": 2, "H": 4, "Lq": 5, "Lk": 7, "Dk": 3}, {"B": 3, "H": 2, "Lq": 8, "Lk": 4, "Dk": 6})
UNUSUAL = [
    ("masks_of_two_sides", *CROSS),
    ("mask_of_own_side", *SELF),
    ("glimpse_and_choice", *SELF),
    ("graph_layers", *SELF),
    ("unmasked_gate", *SELF),
]


class Attend(nn.Module):
    def __init__(self, heads, depth):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(heads * depth, heads * depth) for _ in range(3))

    def forward(self, x, memory, keep=None):
        q, k, v = split(self.q(x), self.heads), split(self.k(memory), self.heads), split(self.v(memory), self.heads)
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        if keep is not None:
            scores = scores.masked_fill(~keep, -math.inf)
        return join(scores.softmax(-1) @ v)

    def expected(self, x, memory, keep=None):
        q, k, v = (split(f(t), self.heads) for f, t in ((self.q, x), (self.k, memory), (self.v, memory)))
        return join(attention(q, k, v, keep=keep))


class TwoSides(nn.Module):
    """Attends to its own tokens with one mask, then to others with another one."""

    def __init__(self, heads, depth):
        super().__init__()
        self.own, self.others = Attend(heads, depth), Attend(heads, depth)

    def forward(self, x, memory, seen, present=None):
        x = x + self.own(x, x, seen)
        return x + self.others(x, memory, None if present is None else present[:, None, None])


def _lower(L):
    return torch.arange(L) <= torch.arange(L)[:, None]


def case_masks_of_two_sides(B, H, Lq, Lk, Dk):
    present = torch.arange(Lk) < Lk - torch.arange(B).remainder(Lk - 1)[:, None]
    args = torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk), _lower(Lq), present
    return TwoSides(H, Dk), args, {}, ["seen=keep", "present=keep"]


def reference_masks_of_two_sides(module, x, memory, seen, present):
    x = x + module.own.expected(x, x, seen)
    return x + module.others.expected(x, memory, present[:, None, None])


def case_mask_of_own_side(B, H, L, Dk):
    args = torch.randn(B, L, H * Dk), torch.randn(B, L, H * Dk), _lower(L)
    return TwoSides(H, Dk), args, {}, ["seen=keep"]


def reference_mask_of_own_side(module, x, memory, seen):
    x = x + module.own.expected(x, x, seen)
    return x + module.others.expected(x, memory)


class GlimpseAndChoice(nn.Module):
    """Reads what is left of a sequence, and chooses one element of it."""

    def __init__(self, heads, depth):
        super().__init__()
        self.glimpse = Attend(heads, depth)
        self.choice = nn.Linear(heads * depth, heads * depth, bias=False)

    def forward(self, x, gone):
        query = self.glimpse(x.mean(1, keepdim=True), x, ~gone[:, None, None])
        scores = torch.einsum("bid,bjd->bij", query, self.choice(x)).squeeze(1) / math.sqrt(x.shape[-1])
        return (5 * scores.tanh()).masked_fill(gone, -math.inf).softmax(-1)


def case_glimpse_and_choice(B, H, L, Dk):
    gone = (torch.arange(L) + torch.arange(B)[:, None]) % 3 == 1
    return GlimpseAndChoice(H, Dk), (torch.randn(B, L, H * Dk), gone), {}, ["gone=drop"]


def reference_glimpse_and_choice(module, x, gone):
    query = module.glimpse.expected(x.mean(1, keepdim=True), x, ~gone[:, None, None])
    scores = (query * module.choice(x)).sum(-1) / math.sqrt(x.shape[-1])
    return softmax(torch.where(gone, -torch.inf, 5 * scores.tanh()))


class GraphLayer(nn.Module):
    def __init__(self, heads, depth):
        super().__init__()
        self.heads = heads
        self.values = nn.Linear(heads * depth, heads * depth)
        self.sink, self.source = (nn.Parameter(torch.randn(heads, 1, depth)) for _ in range(2))

    def scores(self, v):
        to, of = (v * self.sink).sum(-1), (v * self.source).sum(-1)
        return nn.functional.leaky_relu(to[..., :, None] + of[..., None, :], 0.2)

    def forward(self, x, edges):
        v = split(self.values(x), self.heads)
        weights = self.scores(v).masked_fill(~edges[:, None], -math.inf).softmax(-1)
        return join(weights @ v)


class GraphLayers(nn.Module):
    """Two layers of attention with the sum of two scores, over the edges of a graph."""

    def __init__(self, heads, depth):
        super().__init__()
        self.layers = nn.ModuleList(GraphLayer(heads, depth) for _ in range(2))

    def forward(self, x, edges):
        for layer in self.layers:
            x = x + layer(x, edges).tanh()
        return x


def case_graph_layers(B, H, L, Dk):
    edges = (torch.rand(B, L, L) < 0.4) | torch.eye(L, dtype=torch.bool)
    return GraphLayers(H, Dk), (torch.randn(B, L, H * Dk), edges), {}, ["edges=keep"]


def reference_graph_layers(module, x, edges):
    for layer in module.layers:
        v = split(layer.values(x), layer.heads)
        weights = softmax(torch.where(edges[:, None], layer.scores(v), -torch.inf))
        x = x + join(torch.einsum("bhij,bhjd->bhid", weights, v)).tanh()
    return x


class UnmaskedGate(nn.Module):
    """Masks its attention, and weighs all tokens, also those that are hidden, by a softmax of their own."""

    def __init__(self, heads, depth):
        super().__init__()
        self.attend = Attend(heads, depth)
        self.gate = nn.Linear(heads * depth, 1)

    def forward(self, x, mask):
        gate = self.gate(x).softmax(dim=1)
        return self.attend(x, x, mask[:, None, None]) * gate


def case_unmasked_gate(B, H, L, Dk):
    mask = torch.arange(L) < L - torch.arange(B).remainder(L - 1)[:, None]
    return UnmaskedGate(H, Dk), (torch.randn(B, L, H * Dk), mask), {}, ["mask=keep"]


def reference_unmasked_gate(module, x, mask):
    gate = softmax(module.gate(x).mT).mT
    return module.attend.expected(x, x, mask[:, None, None]) * gate

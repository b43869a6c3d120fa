"""AS814: random features of queries and keys come from different draws."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, merge

SELF = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 5, "Dk": 3})
PAIRS = [
    ("AS814", "drawn_in_the_feature_map", *SELF),
    ("AS814", "drawn_for_each", *SELF),
    ("AS814", "redrawn_between", *SELF),
]
COUNT = 13
"""How many random features there are."""


def generator():
    """The same numbers in each call, so that a reference can draw them, too."""
    return torch.Generator().manual_seed(5)


def matrix(*shape, source=None):
    return torch.randn(*shape, generator=source or generator(), dtype=torch.float64)


class Performer(nn.Module):
    """Positive features; keys and values are summed up first."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def draw(self, t, source):
        return matrix(COUNT, t.shape[-1], source=source).to(t)

    def features(self, t, projection):
        t = t / t.shape[-1] ** 0.25
        return torch.exp(F.linear(t, projection) - t.square().sum(dim=-1, keepdim=True) / 2)

    def both(self, q, k):
        projection = self.draw(q, generator())
        return self.features(q, projection), self.features(k, projection)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        q, k = self.both(q, k)
        context = q @ (k.mT @ v) / (q @ k.sum(dim=2).unsqueeze(-1))
        return self.out(context.transpose(1, 2).flatten(2))


class PerformerWithDraws(Performer):
    def both(self, q, k):
        source = generator()
        return self.features(q, self.draw(q, source)), self.features(k, self.draw(k, source))


def _performer(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def wrong_drawn_in_the_feature_map(B, H, L, Dk):
    return _performer(PerformerWithDraws, B, H, L, Dk)


def right_drawn_in_the_feature_map(B, H, L, Dk):
    return _performer(Performer, B, H, L, Dk)


def reference_drawn_in_the_feature_map(module, x):
    q, k, v = fused(x, module.qkv, module.heads)
    rows = matrix(COUNT, q.shape[-1]).to(x)
    kernels = []
    for t in (q, k):
        t = t * t.shape[-1] ** -0.25
        kernels.append((torch.einsum("bhld,md->bhlm", t, rows) - 0.5 * (t * t).sum(-1)[..., None]).exp())
    weights = torch.einsum("bhim,bhjm->bhij", *kernels)
    return merge(torch.einsum("bhij,bhjd->bhid", weights / weights.sum(-1, keepdim=True), v), module.out)


def angles(t, frequencies):
    """Sine and cosine of random frequencies of unit vectors."""
    phases = torch.einsum("bhld,dm->bhlm", F.normalize(t, dim=-1), frequencies)
    return torch.cat((phases.sin(), phases.cos()), dim=-1)


def by_angles(q, k, v):
    frequencies = matrix(q.shape[-1], COUNT).to(q)
    scores = angles(q, frequencies) @ angles(k, frequencies).mT / math.sqrt(2 * COUNT)
    return scores.softmax(dim=-1) @ v


def by_angles_of_their_own(q, k, v):
    source = generator()
    of_queries = matrix(q.shape[-1], COUNT, source=source).to(q)
    of_keys = torch.randn(k.shape[-1], COUNT, generator=source, dtype=q.dtype)  # wrong: AS814 drawn_for_each
    scores = angles(q, of_queries) @ angles(k, of_keys).mT / math.sqrt(2 * COUNT)
    return scores.softmax(dim=-1) @ v


def wrong_drawn_for_each(B, H, L, Dk):
    return by_angles_of_their_own, tuple(torch.randn(3, B, H, L, Dk)), {}


def right_drawn_for_each(B, H, L, Dk):
    return by_angles, tuple(torch.randn(3, B, H, L, Dk)), {}


def reference_drawn_for_each(called, q, k, v):
    phases = [t / t.square().sum(-1, keepdim=True).sqrt() @ matrix(q.shape[-1], COUNT).to(q) for t in (q, k)]
    q, k = (torch.cat((torch.sin(one), torch.cos(one)), -1) for one in phases)
    return attend(q, k, v)


class PerHead(nn.Module):
    """Each head has a matrix of its own, which is filled in place; features are rectified."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.to_q, self.to_k, self.to_v = (nn.Linear(width, width, bias=False) for _ in range(3))

    def project(self, t, table):
        return torch.einsum("b h n d, h d m -> b h n m", t, table).relu() + 1e-3

    def kernels(self, q, k, table, source):
        table.normal_(generator=source)
        return self.project(q, table), self.project(k, table)

    def forward(self, x):
        q, k, v = (to(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for to in (self.to_q, self.to_k, self.to_v))
        table = torch.empty(self.heads, q.shape[-1], COUNT, dtype=torch.float64).to(x)
        q, k = self.kernels(q, k, table, generator())
        weights = torch.einsum("b h i m, b h j m -> b h i j", q, k)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        return torch.einsum("b h i j, b h j d -> b h i d", weights, v).transpose(1, 2).flatten(2)


class RedrawnPerHead(PerHead):
    def kernels(self, q, k, table, source):
        table.normal_(generator=source)
        q = self.project(q, table)
        table.normal_(generator=source)  # wrong: AS814 redrawn_between
        return q, self.project(k, table)


def wrong_redrawn_between(B, H, L, Dk):
    return _performer(RedrawnPerHead, B, H, L, Dk)


def right_redrawn_between(B, H, L, Dk):
    return _performer(PerHead, B, H, L, Dk)


def reference_redrawn_between(module, x):
    q, k, v = (
        torch.stack((x @ one.weight.T).chunk(module.heads, -1), 1) for one in (module.to_q, module.to_k, module.to_v)
    )
    table = torch.empty(module.heads, q.shape[-1], COUNT, dtype=x.dtype).normal_(generator=generator())
    q, k = ((t.unsqueeze(-1) * table[:, None]).sum(-2).clamp(min=0) + 1e-3 for t in (q, k))
    weights = (q[:, :, :, None] * k[:, :, None]).sum(-1)
    return merge(torch.einsum("bhij,bhjd->bhid", weights / weights.sum(-1, keepdim=True), v))

"""Families 1 and 9 where indices choose what belongs to an element of the batch: slots, beams, pages, adapters."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, heads, merge

SIZES = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 3, "L": 9, "Dk": 4}, {"B": 6, "H": 2, "L": 8, "Dk": 5})
PAIRS = [
    ("AS117", "beams_in_order", *SIZES),
    ("AS117", "adapters_reversed", *SIZES),
    ("AS117", "pages_of_neighbour", *SIZES),
    ("AS101", "beams_sorted", *SIZES),
    ("AS117", "parents_rolled", *SIZES),
]


def of_beams(query, keys, values, beams):
    """Attend in (B, H, L, Dk), each beam with the keys and values of the beam that it continues."""
    k, v = keys.index_select(0, beams), values.index_select(0, beams)
    return F.scaled_dot_product_attention(query, k, v)


def of_beams_in_order(query, keys, values, beams):
    """Attend in (B, H, L, Dk), each beam with the keys and values of the beam that it continues."""
    beams = beams.flip(0)
    k, v = keys.index_select(0, beams), values.index_select(0, beams)
    return F.scaled_dot_product_attention(query, k, v)


def _beams(function, B, H, L, Dk):
    return function, (*(torch.randn(B, H, L, Dk) for _ in range(3)), _order(B)), {}


def wrong_beams_in_order(B, H, L, Dk):
    return _beams(of_beams_in_order, B, H, L, Dk)


def right_beams_in_order(B, H, L, Dk):
    return _beams(of_beams, B, H, L, Dk)


def reference_beams_in_order(function, query, keys, values, beams):
    return attend(query, *(torch.stack([t[beam] for beam in beams.tolist()]) for t in (keys, values)))


def _order(B):
    return torch.randperm(B, generator=torch.Generator().manual_seed(B))


class Adapters(nn.Module):
    """Each sequence has an adapter of its own, which scales its keys."""

    def __init__(self, width, n_heads, count):
        super().__init__()
        self.n_heads = n_heads
        self.qkv = nn.Linear(width, 3 * width)
        self.adapters = nn.Parameter(torch.rand(count, 1, width) + 0.5)

    def chosen(self, adapter):
        return adapter

    def forward(self, x, adapter):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        k = k * self.adapters[self.chosen(adapter)]
        q, k, v = (t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for t in (q, k, v))
        weights = torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, dim=-1)
        return (weights @ v).transpose(1, 2).flatten(2)


class AdaptersReversed(Adapters):
    def chosen(self, adapter):
        return adapter.flip(0)


def _adapters(cls, B, H, L, Dk):
    return cls(H * Dk, H, B + 1), (torch.randn(B, L, H * Dk), _order(B)), {}


def wrong_adapters_reversed(B, H, L, Dk):
    return _adapters(AdaptersReversed, B, H, L, Dk)


def right_adapters_reversed(B, H, L, Dk):
    return _adapters(Adapters, B, H, L, Dk)


def reference_adapters_reversed(module, x, adapter):
    q, k, v = (torch.einsum("bli,oi->blo", x, module.qkv.weight) + module.qkv.bias).chunk(3, -1)
    k = torch.stack([row * module.adapters[one] for row, one in zip(k, adapter.tolist(), strict=True)])
    return merge(attend(*(torch.stack(t.chunk(module.n_heads, -1), 1) for t in (q, k, v))))


class Pages(nn.Module):
    """Keys and values are in pages, of which each sequence has two."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads, self.q = n_heads, nn.Linear(width, width)

    def gathered(self, pool, table):
        return torch.stack([torch.cat([pool[page] for page in row], dim=1) for row in table.unbind()])

    def forward(self, x, key_pool, value_pool, table):
        q = self.q(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
        k, v = self.gathered(key_pool, table), self.gathered(value_pool, table)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


class PagesOfNeighbour(Pages):
    def gathered(self, pool, table):
        return super().gathered(pool, table.roll(1, 0))


def _pages(cls, B, H, L, Dk):
    pools = torch.randn(2 * B, H, L, Dk), torch.randn(2 * B, H, L, Dk)
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), *pools, _order(2 * B).view(B, 2)), {}


def wrong_pages_of_neighbour(B, H, L, Dk):
    return _pages(PagesOfNeighbour, B, H, L, Dk)


def right_pages_of_neighbour(B, H, L, Dk):
    return _pages(Pages, B, H, L, Dk)


def reference_pages_of_neighbour(module, x, key_pool, value_pool, table):
    q = heads(x, module.q, module.n_heads)
    k, v = (
        torch.stack([torch.cat([pool[a], pool[b]], 1) for a, b in table.tolist()]) for pool in (key_pool, value_pool)
    )
    return merge(attend(q, k, v))


class Beams(nn.Module):
    """One step of decoding, in which each beam goes on with the cache of the beam that it continues."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads, self.qkv = n_heads, nn.Linear(width, 3 * width)

    def reordered(self, past, beams):
        return past[beams]

    def forward(self, x, past_key, past_value, beams):
        q, k, v = (t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        k = torch.cat([self.reordered(past_key, beams), k], dim=2)
        v = torch.cat([self.reordered(past_value, beams), v], dim=2)
        weights = torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, dim=-1)
        return (weights @ v).transpose(1, 2).flatten(2)


class BeamsSorted(Beams):
    def reordered(self, past, beams):
        return past[beams.sort().values]


def _steps(cls, B, H, L, Dk):
    past = torch.randn(B, H, L, Dk), torch.randn(B, H, L, Dk)
    return cls(H * Dk, H), (torch.randn(B, 1, H * Dk), *past, _order(B)), {}


def wrong_beams_sorted(B, H, L, Dk):
    return _steps(BeamsSorted, B, H, L, Dk)


def right_beams_sorted(B, H, L, Dk):
    return _steps(Beams, B, H, L, Dk)


def reference_beams_sorted(module, x, past_key, past_value, beams):
    q, k, v = fused(x, module.qkv, module.n_heads)
    past = (torch.stack([t[beam] for beam in beams.tolist()]) for t in (past_key, past_value))
    k, v = (torch.cat((old, new), 2) for old, new in zip(past, (k, v), strict=True))
    return merge(attend(q, k, v))


def of_parents(q, k, v, parents):
    """Attend in (B, L, H, Dk) to the keys and values of each element's parent."""
    index = parents[:, None, None, None].expand_as(k)
    k, v = k.gather(0, index), v.gather(0, index)
    weights = torch.einsum("bihd,bjhd->bhij", q, k).div(q.shape[-1] ** 0.5).softmax(-1)
    return torch.einsum("bhij,bjhd->bihd", weights, v)


def of_rolled_parents(q, k, v, parents):
    """Attend in (B, L, H, Dk) to the keys and values of each element's parent."""
    index = parents.roll(1)[:, None, None, None].expand_as(k)
    k, v = k.gather(0, index), v.gather(0, index)
    weights = torch.einsum("bihd,bjhd->bhij", q, k).div(q.shape[-1] ** 0.5).softmax(-1)
    return torch.einsum("bhij,bjhd->bihd", weights, v)


def _parents(function, B, H, L, Dk):
    return function, (*(torch.randn(B, L, H, Dk) for _ in range(3)), _order(B)), {}


def wrong_parents_rolled(B, H, L, Dk):
    return _parents(of_rolled_parents, B, H, L, Dk)


def right_parents_rolled(B, H, L, Dk):
    return _parents(of_parents, B, H, L, Dk)


def reference_parents_rolled(function, q, k, v, parents):
    k, v = (torch.stack([t[parent] for parent in parents.tolist()]) for t in (k, v))
    return attend(*(t.transpose(1, 2) for t in (q, k, v))).transpose(1, 2)

"""AS118 where indices choose elements of what doesn't belong to the batch."""

import torch
from torch import nn

from tests.mutants.pairs.as4_reference import attend, heads, merge

SIZES = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 3, "L": 9, "Dk": 4}, {"B": 6, "H": 2, "L": 8, "Dk": 5})
PAIRS = [
    ("AS118", "slots_by_place", *SIZES),
]


def _order(B):
    return torch.randperm(B, generator=torch.Generator().manual_seed(B))


class Slots(nn.Module):
    """One step of decoding; each sequence has a slot in a static cache of keys and values."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q = nn.Linear(width, width)

    def own(self, cache, slots):
        return cache[slots]

    def forward(self, x, key_cache, value_cache, slots):
        q = self.q(x).unflatten(-1, (self.n_heads, -1))
        k, v = self.own(key_cache, slots), self.own(value_cache, slots)
        weights = torch.einsum("bhd,bhjd->bhj", q, k).mul(q.shape[-1] ** -0.5).softmax(dim=-1)
        return torch.einsum("bhj,bhjd->bhd", weights, v).flatten(1)


class SlotsByPlace(Slots):
    def own(self, cache, slots):
        return cache[slots.sort().values]


def _order(B):
    return torch.randperm(B, generator=torch.Generator().manual_seed(B))


def _slots(cls, B, H, L, Dk):
    caches = torch.randn(B + 2, H, L, Dk), torch.randn(B + 2, H, L, Dk)
    return cls(H * Dk, H), (torch.randn(B, H * Dk), *caches, _order(B + 2)[:B]), {}


def wrong_slots_by_place(B, H, L, Dk):
    return _slots(SlotsByPlace, B, H, L, Dk)


def right_slots_by_place(B, H, L, Dk):
    return _slots(Slots, B, H, L, Dk)


def reference_slots_by_place(module, x, key_cache, value_cache, slots):
    q = heads(x[:, None], module.q, module.n_heads)
    k, v = (torch.stack([cache[slot] for slot in slots.tolist()]) for cache in (key_cache, value_cache))
    return merge(attend(q, k, v))[:, 0]


class Memories(nn.Module):
    """Cross-attention to the memory that an index names, of several that were encoded before."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q, self.kv = nn.Linear(width, width), nn.Linear(width, 2 * width)

    def pick(self, memories, which):
        return torch.index_select(memories, 0, which)

    def forward(self, x, memories, which):
        k, v = self.kv(self.pick(memories, which)).chunk(2, dim=-1)
        q, k, v = (t.unflatten(-1, (self.n_heads, -1)) for t in (self.q(x), k, v))
        weights = torch.einsum("bihd,bjhd->bhij", q, k).div(q.shape[-1] ** 0.5).softmax(-1)
        return torch.einsum("bhij,bjhd->bihd", weights, v).flatten(2)


class MemoriesRolled(Memories):
    def pick(self, memories, which):
        return torch.index_select(memories, 0, which).roll(1, dims=0)


def _memories(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), torch.randn(B + 1, L + 2, H * Dk), _order(B + 1)[:B]), {}


def wrong_memory_rolled(B, H, L, Dk):
    return _memories(MemoriesRolled, B, H, L, Dk)


def right_memory_rolled(B, H, L, Dk):
    return _memories(Memories, B, H, L, Dk)


def reference_memory_rolled(module, x, memories, which):
    k, v = (torch.einsum("bli,oi->blo", memories, module.kv.weight) + module.kv.bias).chunk(2, -1)
    k, v = (torch.stack([t[one] for one in which.tolist()]) for t in (k, v))
    k, v = (torch.stack(t.chunk(module.n_heads, -1), 1) for t in (k, v))
    return merge(attend(heads(x, module.q, module.n_heads), k, v))

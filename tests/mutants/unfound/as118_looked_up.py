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

"""AS601: one projection holds the queries of each group beside its key and value, and shared heads are tiled."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, merge, project, visible

SIZES = (
    {"B": 4, "Hkv": 3, "G": 2, "L": 7, "Dk": 5},
    {"B": 5, "Hkv": 2, "G": 4, "L": 9, "Dk": 6},
    {"B": 7, "Hkv": 2, "G": 3, "L": 5, "Dk": 8},
)
PAIRS = [
    ("AS601", "fused_groups_repeated", *SIZES),
    ("AS601", "fused_groups_in_einsum", *SIZES),
    ("AS601", "fused_groups_by_index", *SIZES),
]


class Fused(nn.Module):
    """As in Falcon: for each group its queries, a key and a value."""

    def __init__(self, groups, per_group, depth):
        super().__init__()
        self.groups, self.per_group, self.depth = groups, per_group, depth
        width = groups * per_group * depth
        self.query_key_value = nn.Linear(width, groups * (per_group + 2) * depth)
        self.dense = nn.Linear(width, width, bias=False)

    def copies(self, shared):
        return shared.expand(-1, -1, -1, self.per_group, -1).flatten(2, 3)

    def split(self, x):
        fused = self.query_key_value(x).view(*x.shape[:2], self.groups, self.per_group + 2, self.depth)
        q, k, v = fused[..., :-2, :], fused[..., [-2], :], fused[..., [-1], :]
        return tuple(t.transpose(1, 2) for t in (q.flatten(2, 3), self.copies(k), self.copies(v)))

    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def forward(self, x):
        return self.dense(self.attend(*self.split(x)).transpose(1, 2).flatten(2))


class FusedTiled(Fused):
    def copies(self, shared):
        return shared.squeeze(3).repeat(1, 1, self.per_group, 1)  # wrong: AS601 fused_groups_repeated


def _fused(cls, B, Hkv, G, L, Dk):
    return cls(Hkv, G, Dk), (torch.randn(B, L, Hkv * G * Dk),), {}, ["causal"]


def wrong_fused_groups_repeated(B, Hkv, G, L, Dk):
    return _fused(FusedTiled, B, Hkv, G, L, Dk)


def right_fused_groups_repeated(B, Hkv, G, L, Dk):
    return _fused(Fused, B, Hkv, G, L, Dk)


def reference_fused_groups_repeated(module, x):
    parts = project(x, module.query_key_value).chunk(module.groups, -1)
    q, k, v = [], [], []
    for part in parts:
        *queries, key, value = part.split(module.depth, -1)
        q, k, v = q + queries, k + [key] * len(queries), v + [value] * len(queries)
    q, k, v = (torch.stack(each, 1) for each in (q, k, v))
    return merge(attend(q, k, v, visible(x.shape[1], x.shape[1])), module.dense)


class Spelled(Fused):
    """Scores in einsum; keys and values are repeated along the axis of heads."""

    def copies(self, shared):
        return shared.squeeze(3).repeat_interleave(self.per_group, dim=2)

    def attend(self, q, k, v):
        scores = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(self.depth)
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        return torch.einsum("bhij,bhjd->bhid", scores.masked_fill(hidden, -torch.inf).softmax(-1), v)


class SpelledTiled(Spelled):
    def copies(self, shared):
        return torch.cat([shared.squeeze(3)] * self.per_group, dim=2)  # wrong: AS601 fused_groups_in_einsum


def wrong_fused_groups_in_einsum(B, Hkv, G, L, Dk):
    return _fused(SpelledTiled, B, Hkv, G, L, Dk)


def right_fused_groups_in_einsum(B, Hkv, G, L, Dk):
    return _fused(Spelled, B, Hkv, G, L, Dk)


class Indexed(Spelled):
    """Shared heads are taken by their number, after a permutation."""

    def head(self, number):
        return number // self.per_group

    def split(self, x):
        fused = self.query_key_value(x).unflatten(-1, (self.groups, self.per_group + 2, self.depth))
        q = fused[:, :, :, : self.per_group].reshape(*x.shape[:2], -1, self.depth).permute(0, 2, 1, 3)
        k, v = (fused[:, :, :, self.per_group + place].permute(0, 2, 1, 3) for place in (0, 1))
        chosen = self.head(torch.arange(self.groups * self.per_group))
        return q, k[:, chosen], v[:, chosen]


class IndexedTiled(Indexed):
    def head(self, number):
        return number % self.groups


def wrong_fused_groups_by_index(B, Hkv, G, L, Dk):
    return _fused(IndexedTiled, B, Hkv, G, L, Dk)


def right_fused_groups_by_index(B, Hkv, G, L, Dk):
    return _fused(Indexed, B, Hkv, G, L, Dk)


reference_fused_groups_in_einsum = reference_fused_groups_by_index = reference_fused_groups_repeated

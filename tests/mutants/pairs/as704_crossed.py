"""AS704: queries and keys are rotated in one call, which takes some features of the one for those of the other."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, heads, merge, turned

SIZES = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 5, "Dk": 4})
PAIRS = [
    ("AS704", "halves_crossed", *SIZES),
    ("AS704", "keys_from_queries", *SIZES),
    ("AS704", "stacked_and_crossed", *SIZES),
]


def _angles(x):
    frequencies = 10000 ** (-torch.arange(0, x.shape[-1], 2, dtype=x.dtype) / x.shape[-1])
    angles = torch.arange(x.shape[-2], dtype=x.dtype)[:, None] * frequencies
    return angles.cos(), angles.sin()


class Rotary(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.to_q, self.to_k, self.to_v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))

    def rotate(self, q, k):
        cos, sin = _angles(q)
        (q0, q1), (k0, k1) = q.chunk(2, dim=-1), k.chunk(2, dim=-1)
        q = torch.cat((q0 * cos - q1 * sin, q0 * sin + q1 * cos), dim=-1)
        return q, torch.cat((k0 * cos - k1 * sin, k0 * sin + k1 * cos), dim=-1)

    def forward(self, x):
        q, k, v = (p(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in (self.to_q, self.to_k, self.to_v))
        q, k = self.rotate(q, k)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class HalvesCrossed(Rotary):
    def rotate(self, q, k):
        cos, sin = _angles(q)
        (q0, q1), (k0, k1) = q.chunk(2, dim=-1), k.chunk(2, dim=-1)
        first = q0 * cos - q1 * sin
        second = k0 * sin + k1 * cos
        return torch.cat((first, second), dim=-1), torch.cat((first, second), dim=-1)


class KeysFromQueries(Rotary):
    def rotate(self, q, k):
        cos, sin = _angles(q)
        (q0, q1), (_, k1) = q.chunk(2, dim=-1), k.chunk(2, dim=-1)
        rotated = [torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1) for a, b in ((q0, q1), (q0, k1))]
        return rotated[0], rotated[1]


class Stacked(Rotary):
    """Rotates both as one tensor."""

    def rotate(self, q, k):
        cos, sin = (table.repeat(1, 2) for table in _angles(q))
        both = torch.stack((q, k))
        first, second = both.chunk(2, dim=-1)
        both = both * cos + self.turned(first, second) * sin
        return both[0], both[1]

    def turned(self, first, second):
        return torch.cat((-second, first), dim=-1)


class StackedCrossed(Stacked):
    def turned(self, first, second):
        return torch.cat((-second.flip(0), first.flip(0)), dim=-1)


def _rotary(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["rope=half"]


def wrong_halves_crossed(B, H, L, Dk):
    return _rotary(HalvesCrossed, B, H, L, Dk)


def right_halves_crossed(B, H, L, Dk):
    return _rotary(Rotary, B, H, L, Dk)


def wrong_keys_from_queries(B, H, L, Dk):
    return _rotary(KeysFromQueries, B, H, L, Dk)


def right_keys_from_queries(B, H, L, Dk):
    return _rotary(Rotary, B, H, L, Dk)


def wrong_stacked_and_crossed(B, H, L, Dk):
    return _rotary(StackedCrossed, B, H, L, Dk)


def right_stacked_and_crossed(B, H, L, Dk):
    return _rotary(Stacked, B, H, L, Dk)


def reference_halves_crossed(module, x):
    place = torch.arange(x.shape[1])
    q, k, v = (heads(x, p, module.heads) for p in (module.to_q, module.to_k, module.to_v))
    return merge(attend(turned(q, place), turned(k, place), v), module.out)


reference_keys_from_queries = reference_stacked_and_crossed = reference_halves_crossed

"""AS719: all features of a position have the same frequency, since whole numbers are divided too early."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, merge, turned, visible
from tests.mutants.plain import multihead

SIZES = ({"B": 4, "H": 5, "L": 7, "Dk": 8}, {"B": 5, "H": 4, "L": 9, "Dk": 6}, {"B": 6, "H": 3, "L": 5, "Dk": 10})
MAPS = (
    {"B": 3, "H": 2, "Nh": 5, "Nw": 4, "Dk": 6},
    {"B": 4, "H": 3, "Nh": 6, "Nw": 5, "Dk": 8},
    {"B": 5, "H": 2, "Nh": 3, "Nw": 7, "Dk": 10},
)
PAIRS = [
    ("AS719", "rotated_by_a_table", *SIZES),
    ("AS719", "rotated_as_complex", *SIZES),
    ("AS719", "sines_in_each_call", *SIZES),
    ("AS719", "sines_of_a_map", *MAPS),
]


class RightTable(nn.Module):
    """The tables of half the features, in buffers."""

    def __init__(self, heads, depth):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(heads * depth, 3 * heads * depth), nn.Linear(heads * depth, heads * depth)
        angles = torch.outer(torch.arange(40, dtype=torch.float64), 10000.0 ** -self.exponents(depth))
        self.register_buffer("cos", torch.cat((angles, angles), dim=-1).cos(), persistent=False)
        self.register_buffer("sin", torch.cat((angles, angles), dim=-1).sin(), persistent=False)

    def exponents(self, depth):
        return torch.arange(0, depth, 2, dtype=torch.float64) / depth

    def rotate(self, x):
        first, second = x.chunk(2, dim=-1)
        turned = torch.cat((-second, first), dim=-1)
        return x * self.cos[: x.shape[2]].to(x) + turned * self.sin[: x.shape[2]].to(x)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        q, k = self.rotate(q), self.rotate(k)  # wrong: AS719 rotated_by_a_table
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class WrongTable(RightTable):
    def exponents(self, depth):
        return (torch.arange(0, depth, 2) // depth).double()


def _table(cls, B, H, L, Dk):
    return cls(H, Dk), (torch.randn(B, L, H * Dk),), {}, ["causal", "rope=half"]


def wrong_rotated_by_a_table(B, H, L, Dk):
    return _table(WrongTable, B, H, L, Dk)


def right_rotated_by_a_table(B, H, L, Dk):
    return _table(RightTable, B, H, L, Dk)


def reference_rotated_by_a_table(module, x):
    q, k, v = fused(x, module.qkv, module.heads)
    place = torch.arange(x.shape[1])
    return merge(attend(turned(q, place), turned(k, place), v, visible(len(place), len(place))), module.out)


def as_complex(q, k, v, exponents):
    """(B, H, L, Dk) with adjacent features paired."""
    frequencies = torch.pow(torch.tensor(100.0, dtype=torch.float64), -exponents(q.shape[-1]))
    angles = torch.arange(q.shape[2], dtype=torch.float64)[:, None] * frequencies
    unit = torch.polar(torch.ones_like(angles), angles).to(q.dtype.to_complex())
    q, k = (torch.view_as_complex(t.unflatten(-1, (-1, 2))) for t in (q, k))
    q, k = (torch.view_as_real(t * unit).flatten(-2) for t in (q, k))  # wrong: AS719 rotated_as_complex
    return (q @ k.mT / math.sqrt(q.shape[-1])).softmax(dim=-1) @ v


def with_whole_exponents(q, k, v):
    return as_complex(q, k, v, lambda depth: torch.arange(depth // 2).floor_divide(depth))


def with_fractions(q, k, v):
    return as_complex(q, k, v, lambda depth: torch.arange(depth // 2, dtype=torch.float64) / (depth // 2))


def _complex(function, B, H, L, Dk):
    return function, tuple(torch.randn(B, H, L, Dk) for _ in range(3)), {}, ["rope=interleaved"]


def wrong_rotated_as_complex(B, H, L, Dk):
    return _complex(with_whole_exponents, B, H, L, Dk)


def right_rotated_as_complex(B, H, L, Dk):
    return _complex(with_fractions, B, H, L, Dk)


def reference_rotated_as_complex(function, q, k, v):
    place = torch.arange(q.shape[2])
    q, k = (turned(t, place, "interleaved", 100.0) for t in (q, k))
    return attend(q, k, v)


class RightSines(nn.Module):
    """Positions are computed for the tokens of a call, sines in front of cosines."""

    def __init__(self, heads, depth):
        super().__init__()
        self.attention = nn.MultiheadAttention(heads * depth, heads, batch_first=True)

    def periods(self, width):
        return 10000 ** (torch.arange(0, width, 2, dtype=torch.float64) / width)

    def forward(self, x):
        angles = torch.arange(x.shape[1]).unsqueeze(1) / self.periods(x.shape[2])
        x = x + torch.cat((angles.sin(), angles.cos()), dim=1).to(x)
        return self.attention(x, x, x, need_weights=False)[0]


class WrongSines(RightSines):
    def periods(self, width):
        places = torch.arange(0, width, 2)
        return 10000 ** torch.div(places, width, rounding_mode="floor")  # wrong: AS719 sines_in_each_call


def _sines(cls, B, H, L, Dk):
    return cls(H, Dk), (torch.randn(B, L, H * Dk),), {}


def wrong_sines_in_each_call(B, H, L, Dk):
    return _sines(WrongSines, B, H, L, Dk)


def right_sines_in_each_call(B, H, L, Dk):
    return _sines(RightSines, B, H, L, Dk)


def of_torch(attend, x):
    weights, biases = attend.in_proj_weight.chunk(3), attend.in_proj_bias.chunk(3)
    q, k, v = (F.linear(x, w, b) for w, b in zip(weights, biases, strict=True))
    return attend.out_proj(multihead(q, k, v, attend.num_heads))


def reference_sines_in_each_call(module, x):
    width = x.shape[2]
    rows = []
    for place in range(x.shape[1]):
        angles = torch.tensor([place / 10000 ** (i / width) for i in range(0, width, 2)], dtype=torch.float64)
        rows.append(torch.cat((angles.sin(), angles.cos())))
    return of_torch(module.attention, x + torch.stack(rows))


class RightMap(nn.Module):
    """Half of the features hold the row of a pixel, half its column."""

    def __init__(self, heads, depth, temperature=200):
        super().__init__()
        self.temperature = temperature
        self.attention = nn.MultiheadAttention(2 * heads * depth, heads, batch_first=True)

    def scales(self, features):
        return self.temperature ** (2 * torch.arange(features) / features)

    def sides(self, image):
        _, width, rows, columns = image.shape
        ones = torch.ones(rows, columns, dtype=torch.float64)
        scales = self.scales(width // 4).double()
        for coordinate in (ones.cumsum(0), ones.cumsum(1)):
            angles = coordinate[..., None] / scales
            yield torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(2)

    def forward(self, image):
        places = torch.cat(list(self.sides(image)), dim=-1).to(image)
        x = image.flatten(2).mT + places.flatten(0, 1)
        return self.attention(x, x, x, need_weights=False)[0]


class WrongMap(RightMap):
    def scales(self, features):
        return self.temperature ** (torch.arange(features) // features * 2)  # wrong: AS719 sines_of_a_map


def _map(cls, B, H, Nh, Nw, Dk):
    return cls(H, Dk), (torch.randn(B, 2 * H * Dk, Nh, Nw),), {}


def wrong_sines_of_a_map(B, H, Nh, Nw, Dk):
    return _map(WrongMap, B, H, Nh, Nw, Dk)


def right_sines_of_a_map(B, H, Nh, Nw, Dk):
    return _map(RightMap, B, H, Nh, Nw, Dk)


def reference_sines_of_a_map(module, image):
    features = image.shape[1] // 4
    scales = (module.temperature ** (2 * torch.arange(features) / features)).double().tolist()
    rows = []
    for y in range(1, image.shape[2] + 1):
        for x in range(1, image.shape[3] + 1):
            waves = [[math.sin(side / one), math.cos(side / one)] for side in (y, x) for one in scales]
            rows.append(torch.tensor(waves, dtype=torch.float64).flatten())
    return of_torch(module.attention, image.flatten(2).mT + torch.stack(rows))

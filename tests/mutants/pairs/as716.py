"""AS716: all tokens get the same row of a table of positions, the one that the length chooses."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.plain import multihead

SIZES = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 5, "Dk": 4})
PAIRS = [
    ("AS716", "sinusoids_in_a_buffer", *SIZES),
    ("AS716", "last_learned_row", *SIZES),
    ("AS716", "computed_in_each_call", *SIZES),
    ("AS716", "selected_for_keys", *SIZES),
]


def sinusoids(length, width):
    """Return a table of an even width."""
    angles = torch.arange(length)[:, None] / 10000 ** (torch.arange(0, width, 2) / width)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)


class Encoding(nn.Module):
    def __init__(self, dim, max_len=200):
        super().__init__()
        self.dropout = nn.Dropout(0.1)
        self.register_buffer("pe", sinusoids(max_len, dim).unsqueeze(0))

    def forward(self, x):
        return self.dropout(x + self.pe[:, : x.size(1), :])


class OneEncoding(Encoding):
    def forward(self, x):
        return self.dropout(x + self.pe[:, x.size(1), :])  # wrong: AS716 sinusoids_in_a_buffer


class Denoiser(nn.Module):
    def __init__(self, encoding, dim, heads):
        super().__init__()
        self.encoding = encoding
        self.attention = nn.MultiheadAttention(dim, heads, batch_first=True)

    def forward(self, x):
        x = self.encoding(x)
        return self.attention(x, x, x, need_weights=False)[0]


def _denoiser(encoding, B, H, L, Dk):
    return Denoiser(encoding(H * Dk), H * Dk, H).eval(), (torch.randn(B, L, H * Dk),), {}


def wrong_sinusoids_in_a_buffer(B, H, L, Dk):
    return _denoiser(OneEncoding, B, H, L, Dk)


def right_sinusoids_in_a_buffer(B, H, L, Dk):
    return _denoiser(Encoding, B, H, L, Dk)


def reference_sinusoids_in_a_buffer(module, x):
    x = torch.stack([token + module.encoding.pe[0, place] for place, token in enumerate(x.unbind(1))], 1)
    attend = module.attention
    weights, biases = attend.in_proj_weight.chunk(3), attend.in_proj_bias.chunk(3)
    q, k, v = (F.linear(x, w, b) for w, b in zip(weights, biases, strict=True))
    return attend.out_proj(multihead(q, k, v, attend.num_heads))


class Learned(nn.Module):
    """A block whose sequence comes first, with learned positions."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.positions = nn.Parameter(torch.randn(64, 1, dim))
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)

    def placed(self, x):
        return x + self.positions[: len(x)]

    def forward(self, x):
        q, k, v = self.qkv(self.placed(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 1, 3, 0, 4)
        return F.scaled_dot_product_attention(q, k, v).permute(2, 0, 1, 3).flatten(2)


class LastLearned(Learned):
    def placed(self, x):
        return x + self.positions[len(x) - 1]  # wrong: AS716 last_learned_row


def _learned(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(L, B, H * Dk),), {}, ["seq-first"]


def wrong_last_learned_row(B, H, L, Dk):
    return _learned(LastLearned, B, H, L, Dk)


def right_last_learned_row(B, H, L, Dk):
    return _learned(Learned, B, H, L, Dk)


def reference_last_learned_row(module, x):
    x = torch.stack([token + module.positions[place] for place, token in enumerate(x.unbind(0))], 1)
    return multihead(*module.qkv(x).chunk(3, -1), module.heads).transpose(0, 1)


def _placed_queries_and_keys(row, B, H, L, Dk):
    def attend(q, k, v):
        places = row(sinusoids(128, Dk).to(q), L)
        scores = torch.einsum("bhid,bhjd->bhij", q + places, k + places) / Dk**0.5
        return torch.einsum("bhij,bhjd->bhid", scores.softmax(dim=-1), v)

    return attend, tuple(torch.randn(B, H, L, Dk) for _ in range(3)), {}


def wrong_computed_in_each_call(B, H, L, Dk):
    def row(table, length):
        return table[length]  # wrong: AS716 computed_in_each_call

    return _placed_queries_and_keys(row, B, H, L, Dk)


def right_computed_in_each_call(B, H, L, Dk):
    def row(table, length):
        return table[:length]

    return _placed_queries_and_keys(row, B, H, L, Dk)


def reference_computed_in_each_call(attend, q, k, v):
    places = sinusoids(q.shape[2], q.shape[3]).to(q)
    weights = ((q + places) @ (k + places).mT * q.shape[3] ** -0.5).softmax(-1)
    return weights @ v


class PlacedKeys(nn.Module):
    """Positions are added to the heads of the keys only."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))
        self.of_keys = nn.Parameter(torch.randn(heads, 50, dim // heads))

    def places(self, count):
        return self.of_keys.narrow(1, 0, count)

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        k = k + self.places(k.shape[2])
        weights = (torch.matmul(q, k.transpose(2, 3)) * q.shape[3] ** -0.5).softmax(3)
        return torch.matmul(weights, v).transpose(1, 2).flatten(2)


class OnePlaceOfKeys(PlacedKeys):
    def places(self, count):
        return self.of_keys.select(1, count).unsqueeze(1)  # wrong: AS716 selected_for_keys


def wrong_selected_for_keys(B, H, L, Dk):
    return OnePlaceOfKeys(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def right_selected_for_keys(B, H, L, Dk):
    return PlacedKeys(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def reference_selected_for_keys(module, x):
    q, k, v = (f(x) for f in (module.q, module.k, module.v))
    k = k + torch.cat(module.of_keys[:, : x.shape[1]].unbind(0), -1)
    return multihead(q, k, v, module.heads)

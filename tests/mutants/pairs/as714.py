"""AS714: a score of a position belongs to another query, or to no one distance."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, heads, merge, visible

SELF = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 5, "Dk": 4})
PAIRS = [
    ("AS714", "last_row_dropped", *SELF),
    ("AS714", "skewed_without_mask", *SELF),
    ("AS714", "strided_in_sdpa", *SELF),
    ("AS714", "not_shifted", *SELF),
    ("AS714", "padded_on_the_right", *SELF),
    ("AS714", "rows_of_earlier_queries", *SELF),
]


def distances(q, vectors):
    """B H L L, entry by entry: each query with the vector of its distance to the key, of H 2L-1 Dk."""
    n = q.shape[2]
    rows = [[(q[:, :, i] * vectors[:, j - i + n - 1]).sum(-1) for j in range(n)] for i in range(n)]
    return torch.stack([torch.stack(row, dim=-1) for row in rows], dim=-2)


class RightEncoder(nn.Module):
    """Distances in both directions are encoded, projected, and shifted by padding and viewing."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads, self.depth = n_heads, width // n_heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.far = nn.Linear(width, width, bias=False)
        self.u, self.w = (nn.Parameter(torch.randn(n_heads, 1, self.depth)) for _ in range(2))

    def encoded(self, n):
        steps = torch.arange(1 - n, n)[:, None] / torch.arange(1, self.n_heads * self.depth + 1)
        return self.far(steps.sin().to(self.u)).view(-1, self.n_heads, self.depth).transpose(0, 1)

    def shift(self, x):
        b, h, n, m = x.shape
        x = torch.cat((x.new_zeros(b, h, n, 1), x), dim=-1).view(b, h, m + 1, n)
        return x[:, :, 1:].reshape(b, h, n, m)[..., :n]

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        by_key = (q + self.u) @ k.mT
        by_distance = self.shift((q + self.w) @ self.encoded(x.shape[1]).mT)
        weights = ((by_key + by_distance) / math.sqrt(self.depth)).softmax(dim=-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class WrongEncoder(RightEncoder):
    def shift(self, x):
        b, h, n, m = x.shape
        x = torch.cat((x.new_zeros(b, h, n, 1), x), dim=-1).view(b, h, m + 1, n)
        return x[:, :, :-1].reshape(b, h, n, m)[..., :n]  # wrong: AS714 last_row_dropped


def _last_row_dropped(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def wrong_last_row_dropped(B, H, L, Dk):
    return _last_row_dropped(WrongEncoder, B, H, L, Dk)


def right_last_row_dropped(B, H, L, Dk):
    return _last_row_dropped(RightEncoder, B, H, L, Dk)


def reference_last_row_dropped(module, x):
    q, k, v = fused(x, module.qkv, module.n_heads)
    scores = torch.einsum("bhid,bhjd->bhij", q + module.u, k) + distances(q + module.w, module.encoded(x.shape[1]))
    zero = torch.zeros_like(q)
    return merge(attend(zero, zero, v, bias=scores / math.sqrt(module.depth)), module.out)


def waves(positions, width):
    """One vector for each position, in which every feature has a frequency of its own."""
    return torch.sin(positions.double()[:, None] / torch.arange(1, width + 1)).to(torch.get_default_dtype())


class RightSkewed(nn.Module):
    """Distances to both sides have a vector each; those to earlier tokens alone would do for a causal mask."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def skewed(self, q):
        n = q.size(-2)
        qer = F.pad(q @ waves(torch.arange(1 - n, n), q.size(-1)).to(q).T, (1, 0))
        return qer.reshape(*q.shape[:2], 2 * n, n)[:, :, 1:].reshape(*q.shape[:2], n, 2 * n - 1)[..., :n]

    def forward(self, x):
        q, k, v = (w(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for w in (self.q, self.k, self.v))
        scores = (q @ k.mT + self.skewed(q)) * q.size(-1) ** -0.5
        return self.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class WrongSkewed(RightSkewed):
    def skewed(self, q):
        n = q.size(-2)
        qer = F.pad(q @ waves(torch.arange(1 - n, 1), q.size(-1)).to(q).T, (1, 0))
        return qer.reshape(*q.shape[:2], n + 1, n)[:, :, 1:]  # wrong: AS714 skewed_without_mask


def _skewed_without_mask(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def wrong_skewed_without_mask(B, H, L, Dk):
    return _skewed_without_mask(WrongSkewed, B, H, L, Dk)


def right_skewed_without_mask(B, H, L, Dk):
    return _skewed_without_mask(RightSkewed, B, H, L, Dk)


def reference_skewed_without_mask(module, x):
    n = x.shape[1]
    q, k, v = (heads(x, one, module.n_heads) for one in (module.q, module.k, module.v))
    vectors = waves(torch.arange(1 - n, n), q.shape[-1]).to(q).expand(module.n_heads, -1, -1)
    return merge(attend(q, k, v, bias=distances(q, vectors) / math.sqrt(q.shape[-1])), module.o)


class RightStrided(nn.Module):
    """Each row is read from one column before the row above it."""

    def __init__(self, depth, length):
        super().__init__()
        self.table = nn.Parameter(torch.randn(2 * length - 1, depth))

    def by_key(self, places):
        b, h, n, m = places.shape
        return places.as_strided((b, h, n, n), (h * n * m, n * m, m - 1, 1), n - 1)

    def forward(self, q, k, v):
        bias = self.by_key((q @ self.table.mT * q.shape[-1] ** -0.5).contiguous())
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)


class WrongStrided(RightStrided):
    def by_key(self, places):
        b, h, n, m = places.shape
        return places.as_strided((b, h, n, n), (h * n * m, n * m, m - 2, 1), n - 1)  # wrong: AS714 strided_in_sdpa


def _strided_in_sdpa(cls, B, H, L, Dk):
    return cls(Dk, L), tuple(torch.randn(3, B, H, L, Dk)), {}


def wrong_strided_in_sdpa(B, H, L, Dk):
    return _strided_in_sdpa(WrongStrided, B, H, L, Dk)


def right_strided_in_sdpa(B, H, L, Dk):
    return _strided_in_sdpa(RightStrided, B, H, L, Dk)


def reference_strided_in_sdpa(module, q, k, v):
    vectors = module.table.expand(q.shape[1], -1, -1)
    return attend(q, k, v, bias=distances(q, vectors) / math.sqrt(q.shape[-1]))


class RightGathered(nn.Module):
    """Each query picks the scores of its distances by their indices."""

    def __init__(self, width, n_heads, length):
        super().__init__()
        self.n_heads = n_heads
        self.vectors = nn.Embedding(2 * length - 1, width // n_heads)
        self.to_qkv, self.to_out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)

    def pick(self, by_distance, n):
        index = torch.arange(n) - torch.arange(n)[:, None] + n - 1
        return by_distance.gather(-1, index.expand(*by_distance.shape[:2], n, n))

    def forward(self, x):
        n = x.shape[1]
        q, k, v = self.to_qkv(x).unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        q = q * q.shape[-1] ** -0.5
        content = torch.einsum("bhid,bhjd->bhij", q, k)
        places = torch.einsum("bhid,rd->bhir", q, self.vectors.weight)
        weights = (content + self.pick(places, n)).softmax(dim=-1)
        return self.to_out(torch.einsum("bhij,bhjd->bihd", weights, v).flatten(2))


class WrongGathered(RightGathered):
    def pick(self, by_distance, n):
        return by_distance[..., n - 1 :]  # wrong: AS714 not_shifted


def _not_shifted(cls, B, H, L, Dk):
    return cls(H * Dk, H, L), (torch.randn(B, L, H * Dk),), {}


def wrong_not_shifted(B, H, L, Dk):
    return _not_shifted(WrongGathered, B, H, L, Dk)


def right_not_shifted(B, H, L, Dk):
    return _not_shifted(RightGathered, B, H, L, Dk)


def reference_not_shifted(module, x):
    q, k, v = fused(x, module.to_qkv, module.n_heads)
    vectors = module.vectors.weight.expand(module.n_heads, -1, -1)
    return merge(attend(q, k, v, bias=distances(q, vectors) / math.sqrt(q.shape[-1])), module.to_out)


class RightEarlier(nn.Module):
    """Distances to earlier tokens have a vector each, and later tokens are hidden."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def skewed(self, places):
        b, h, n, _ = places.shape
        return F.pad(places, (1, 0)).reshape(b, h, n + 1, n)[:, :, 1:]

    def forward(self, x):
        n = x.shape[1]
        q, k, v = (t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        places = q @ waves(torch.arange(1 - n, 1), q.size(-1)).to(q).T
        scores = (q @ k.mT + self.skewed(places)) * q.size(-1) ** -0.5
        later = torch.ones(n, n, dtype=torch.bool).triu(1)
        return self.out((scores.masked_fill(later, -torch.inf).softmax(-1) @ v).transpose(1, 2).flatten(2))


class WrongEarlier(RightEarlier):
    def skewed(self, places):
        b, h, n, _ = places.shape
        return F.pad(places, (0, 1)).reshape(b, h, n + 1, n)[:, :, 1:]  # wrong: AS714 padded_on_the_right


def _padded_on_the_right(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["causal"]


def wrong_padded_on_the_right(B, H, L, Dk):
    return _padded_on_the_right(WrongEarlier, B, H, L, Dk)


def right_padded_on_the_right(B, H, L, Dk):
    return _padded_on_the_right(RightEarlier, B, H, L, Dk)


def reference_padded_on_the_right(module, x):
    n = x.shape[1]
    q, k, v = fused(x, module.qkv, module.n_heads)
    vectors = waves(torch.arange(1 - n, n), q.shape[-1]).to(q).expand(module.n_heads, -1, -1)
    bias = distances(q, vectors) / math.sqrt(q.shape[-1])
    return merge(attend(q, k, v, visible(n, n), bias=bias), module.out)


class RowsBefore(RightEarlier):
    def skewed(self, places):
        b, h, n, _ = places.shape
        return F.pad(places, (1, 0)).reshape(b, h, n + 1, n)[:, :, :-1]  # wrong: AS714 rows_of_earlier_queries


def wrong_rows_of_earlier_queries(B, H, L, Dk):
    return _padded_on_the_right(RowsBefore, B, H, L, Dk)


right_rows_of_earlier_queries = right_padded_on_the_right
reference_rows_of_earlier_queries = reference_padded_on_the_right

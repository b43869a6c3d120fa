"""AS711: what a distance adds to a score is that of another distance at other lengths."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, merge, project, visible

PAST = (
    {"B": 4, "H": 5, "L": 9, "Lp": 3, "Dk": 6},
    {"B": 5, "H": 4, "L": 10, "Lp": 3, "Dk": 8},
    {"B": 6, "H": 7, "L": 11, "Lp": 3, "Dk": 4},
)
PAIRS = [
    ("AS711", "sinusoids_ascending", *PAST),
    ("AS711", "buckets_from_zero", *PAST),
    ("AS711", "logarithm_from_zero", *PAST),
    ("AS711", "vectors_of_distance_from_zero", *PAST),
]


def back(queries, keys):
    """How far each key lies behind each query, entry by entry."""
    return torch.tensor([[i + keys - queries - j for j in range(keys)] for i in range(queries)])


class Recurrent(nn.Module):
    """Transformer-XL: a segment attends to its memory and itself; sinusoids of the distances are projected."""

    def __init__(self, width, n_head):
        super().__init__()
        self.n_head, self.d_head = n_head, width // n_head
        self.qkv_net, self.o_net = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.r_net = nn.Linear(width, width, bias=False)
        self.r_w_bias, self.r_r_bias = (nn.Parameter(torch.randn(n_head, 1, self.d_head)) for _ in range(2))

    def positions(self, klen):
        return torch.arange(klen - 1, -1, -1, dtype=torch.float64)

    def sinusoids(self, places, width):
        inverse = 1 / (10000 ** (torch.arange(0, width, 2, dtype=torch.float64) / width))
        angles = torch.outer(places, inverse)
        return torch.cat([angles.sin(), angles.cos()], dim=-1)[:, :width]

    def shift(self, x):
        b, h, queries, keys = x.shape
        return F.pad(x, (1, 0)).view(b, h, keys + 1, queries)[:, :, 1:].reshape(b, h, queries, keys)

    def heads(self, x):
        return x.unflatten(-1, (self.n_head, self.d_head)).transpose(1, 2)

    def forward(self, w, mems):
        joined = torch.cat([mems, w], dim=1)
        q, k, v = (self.heads(t) for t in self.qkv_net(joined).chunk(3, dim=-1))
        q = q[:, :, mems.shape[1] :]
        places = self.positions(k.shape[2])
        r = self.r_net(self.sinusoids(places, w.shape[-1]).to(w.dtype))
        r = r.unflatten(-1, (self.n_head, self.d_head)).transpose(0, 1)
        scores = (q + self.r_w_bias) @ k.mT + self.shift((q + self.r_r_bias) @ r.mT)
        later = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(1 + mems.shape[1])
        weights = (scores / self.d_head**0.5).masked_fill(later, -torch.inf).softmax(dim=-1)
        return self.o_net((weights @ v).transpose(1, 2).flatten(2))


class Ascending(Recurrent):
    def positions(self, klen):
        return torch.arange(klen, dtype=torch.float64)


def _recurrent(cls, B, H, L, Lp, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), torch.randn(B, Lp, H * Dk)), {}, ["causal"]


def wrong_sinusoids_ascending(B, H, L, Lp, Dk):
    return _recurrent(Ascending, B, H, L, Lp, Dk)


def right_sinusoids_ascending(B, H, L, Lp, Dk):
    return _recurrent(Recurrent, B, H, L, Lp, Dk)


def reference_sinusoids_ascending(module, w, mems):
    q, k, v = fused(torch.cat((mems, w), 1), module.qkv_net, module.n_head)
    q, width = q[:, :, mems.shape[1] :], w.shape[-1]
    distance = back(q.shape[2], k.shape[2])
    inverse = 10000 ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)
    angle = distance[..., None] * inverse
    r = project(torch.cat((angle.sin(), angle.cos()), -1)[..., :width].to(w), module.r_net)
    r = r.unflatten(-1, (module.n_head, -1))
    added = torch.einsum("bhid,ijhd->bhij", q + module.r_r_bias, r) / math.sqrt(module.d_head)
    keep = visible(q.shape[2], k.shape[2])
    return merge(attend(q + module.r_w_bias, k, v, keep=keep, bias=added), module.o_net)


class Buckets(nn.Module):
    """A decoder like T5's: near distances have a bucket each, and far ones share some."""

    def __init__(self, width, heads):
        super().__init__()
        self.n = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.relative_attention_bias = nn.Embedding(12, heads)

    def distance(self, query_length, key_length):
        context = torch.arange(key_length - query_length, key_length)[:, None]
        return (context - torch.arange(key_length)[None, :]).clamp(min=0)

    def bucket(self, distance):
        far = 8 + (torch.log(distance.clamp(min=8).double() / 8) / math.log(4) * 4).long()
        return torch.where(distance < 8, distance, far.clamp(max=11))

    def split(self, x):
        return x.view(x.shape[0], -1, self.n, x.shape[-1] // self.n).transpose(1, 2)

    def forward(self, hidden_states, past_key, past_value):
        q, k, v = (self.split(one(hidden_states)) for one in (self.q, self.k, self.v))
        k, v = torch.cat([past_key, k], dim=2), torch.cat([past_value, v], dim=2)
        scores = torch.matmul(q, k.transpose(3, 2))
        bucket = self.bucket(self.distance(scores.shape[2], scores.shape[3]))
        bias = self.relative_attention_bias(bucket).permute(2, 0, 1)
        seen = torch.ones_like(scores[0, 0], dtype=torch.bool).tril(past_key.shape[2])
        weights = F.softmax((scores + bias).masked_fill(~seen, torch.finfo(scores.dtype).min), dim=-1)
        return self.o(torch.matmul(weights, v).transpose(1, 2).flatten(2))


class BucketsFromZero(Buckets):
    def distance(self, query_length, key_length):
        context = torch.arange(query_length)[:, None]
        return (context - torch.arange(key_length)[None, :]).clamp(min=0)


def _buckets(cls, B, H, L, Lp, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), *torch.randn(2, B, H, Lp, Dk)), {}, ["causal", "scale=1"]


def wrong_buckets_from_zero(B, H, L, Lp, Dk):
    return _buckets(BucketsFromZero, B, H, L, Lp, Dk)


def right_buckets_from_zero(B, H, L, Lp, Dk):
    return _buckets(Buckets, B, H, L, Lp, Dk)


def reference_buckets_from_zero(module, x, past_key, past_value):
    q, k, v = (torch.stack(project(x, one).chunk(module.n, -1), 1) for one in (module.q, module.k, module.v))
    k, v = torch.cat((past_key, k), 2), torch.cat((past_value, v), 2)
    rows = [
        [8 + min(3, int(math.log(d / 8) / math.log(4) * 4)) if d >= 8 else max(d, 0) for d in row]
        for row in back(q.shape[2], k.shape[2]).tolist()
    ]
    bias = module.relative_attention_bias.weight[torch.tensor(rows)].permute(2, 0, 1)
    return merge(attend(q, k, v, keep=visible(q.shape[2], k.shape[2]), bias=bias, scale=1), module.o)


def penalty(queries, keys):
    """Grows with the logarithm of the distance, as in KERPLE."""
    position = torch.arange(keys)
    return -torch.log1p((position[-queries:, None] - position).abs().double())


def penalty_from_zero(queries, keys):
    position = torch.arange(keys)
    return -torch.log1p((position[:queries, None] - position).abs().double())  # wrong: AS711 logarithm_from_zero


def decode(q, k, v, past_k, past_v, penalty=penalty):
    k, v = torch.cat((past_k, k), 2), torch.cat((past_v, v), 2)
    scores = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5
    scores = scores + penalty(q.shape[2], k.shape[2]).to(q.dtype)
    hidden = torch.arange(k.shape[2]) > torch.arange(k.shape[2])[-q.shape[2] :, None]
    return torch.einsum("bhij,bhjd->bhid", scores.masked_fill(hidden, -torch.inf).softmax(-1), v)


def decode_from_zero(q, k, v, past_k, past_v):
    return decode(q, k, v, past_k, past_v, penalty_from_zero)


def _past(called, B, H, L, Lp, Dk):
    return called, (*torch.randn(3, B, H, L, Dk), *torch.randn(2, B, H, Lp, Dk)), {}, ["causal"]


def wrong_logarithm_from_zero(B, H, L, Lp, Dk):
    return _past(decode_from_zero, B, H, L, Lp, Dk)


def right_logarithm_from_zero(B, H, L, Lp, Dk):
    return _past(decode, B, H, L, Lp, Dk)


def reference_logarithm_from_zero(called, q, k, v, past_k, past_v):
    k, v = torch.cat((past_k, k), 2), torch.cat((past_v, v), 2)
    bias = -torch.log(1 + back(q.shape[2], k.shape[2]).abs().double())
    return attend(q, k, v, keep=visible(q.shape[2], k.shape[2]), bias=bias)


class Vectors(nn.Module):
    """Shaw et al.: queries are also multiplied with a vector of each distance."""

    def __init__(self, depth):
        super().__init__()
        self.vectors = nn.Parameter(torch.randn(128, depth))

    def places(self, queries, keys):
        return torch.arange(queries) + keys - queries

    def forward(self, q, k, v, past_k, past_v):
        k, v = torch.cat((past_k, k), dim=2), torch.cat((past_v, v), dim=2)
        n, m = q.shape[2], k.shape[2]
        distance = self.places(n, m)[:, None] - torch.arange(m)
        by_distance = torch.einsum("bhid,ijd->bhij", q, self.vectors[distance + 64])
        scores = (torch.einsum("bhid,bhjd->bhij", q, k) + by_distance) / math.sqrt(q.shape[-1])
        hidden = torch.ones(n, m, dtype=torch.bool).triu(m - n + 1)
        return torch.einsum("bhij,bhjd->bhid", scores.masked_fill(hidden, -torch.inf).softmax(dim=-1), v)


class VectorsFromZero(Vectors):
    def places(self, queries, keys):
        return torch.arange(queries)


def wrong_vectors_of_distance_from_zero(B, H, L, Lp, Dk):
    return _past(VectorsFromZero(Dk), B, H, L, Lp, Dk)


def right_vectors_of_distance_from_zero(B, H, L, Lp, Dk):
    return _past(Vectors(Dk), B, H, L, Lp, Dk)


def reference_vectors_of_distance_from_zero(module, q, k, v, past_k, past_v):
    k, v = torch.cat((past_k, k), 2), torch.cat((past_v, v), 2)
    n, m = q.shape[2], k.shape[2]
    rows = module.vectors[back(n, m) + 64]
    return attend(q, k, v, keep=visible(n, m), bias=(q[:, :, :, None] * rows).sum(-1) / math.sqrt(q.shape[-1]))

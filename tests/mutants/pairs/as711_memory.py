"""AS711: queries are counted without the keys of a memory, which come before those of their own tokens."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, heads, merge, visible

SIZES = (
    {"B": 4, "H": 5, "L": 13, "Dk": 6},
    {"B": 5, "H": 4, "L": 11, "Dk": 8},
    {"B": 6, "H": 7, "L": 14, "Dk": 4},
)
PAIRS = [
    ("AS711", "buckets_beside_learned_memory", *SIZES),
    ("AS711", "clamped_beside_learned_memory", *SIZES),
    ("AS711", "logarithm_beside_zero_keys", *SIZES),
]
MEMORIES = 3


def back(queries, keys):
    """How far each key lies behind each query, entry by entry, where the last query stands at the last key."""
    return [[i + keys - queries - j for j in range(keys)] for i in range(queries)]


class EncoderBias(nn.Module):
    """Near distances have a bucket each, far ones share some, and later keys have buckets of their own."""

    def __init__(self, heads):
        super().__init__()
        self.table = nn.Embedding(24, heads)

    def relative(self, i, j):
        return torch.arange(j)[None, :] - torch.arange(j - i, j)[:, None]

    def forward(self, i, j):
        relative = self.relative(i, j)
        distance = relative.abs()
        far = 5 + (torch.log2(distance.clamp(min=5).double() / 5) * 3).long()
        bucket = torch.where(distance < 5, distance, far.clamp(max=11)) + 12 * (relative > 0).long()
        return self.table(bucket).permute(2, 0, 1)


class EncoderBiasFromZero(EncoderBias):
    def relative(self, i, j):
        return torch.arange(j)[None, :] - torch.arange(i)[:, None]  # wrong: AS711 buckets_beside_learned_memory


class Encoder(nn.Module):
    """Tokens attend to learned vectors and each other, without a mask."""

    def __init__(self, width, heads, bias):
        super().__init__()
        self.heads, self.bias = heads, bias(heads)
        self.memory = nn.Parameter(torch.randn(MEMORIES, width))
        self.to_q, self.to_kv = nn.Linear(width, width, bias=False), nn.Linear(width, 2 * width, bias=False)
        self.to_out = nn.Linear(width, width)

    def forward(self, x):
        joined = torch.cat((self.memory.expand(x.shape[0], -1, -1), x), dim=1)
        q, k, v = self.to_q(x), *self.to_kv(joined).chunk(2, dim=-1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        dots = torch.einsum("b h i d, b h j d -> b h i j", q, k) * q.shape[-1] ** -0.5
        attn = (dots + self.bias(*dots.shape[-2:])).softmax(dim=-1)
        out = torch.einsum("b h i j, b h j d -> b h i d", attn, v)
        return self.to_out(out.transpose(1, 2).flatten(2))


def _encoder(bias, B, H, L, Dk):
    return Encoder(H * Dk, H, bias), (torch.randn(B, L, H * Dk),), {}


def wrong_buckets_beside_learned_memory(B, H, L, Dk):
    return _encoder(EncoderBiasFromZero, B, H, L, Dk)


def right_buckets_beside_learned_memory(B, H, L, Dk):
    return _encoder(EncoderBias, B, H, L, Dk)


def reference_buckets_beside_learned_memory(module, x):
    joined = torch.cat((module.memory[None].repeat(x.shape[0], 1, 1), x), 1)
    q = heads(x, module.to_q, module.heads)
    k, v = (
        torch.einsum("bli,hdi->bhld", joined, one.unflatten(0, (module.heads, -1)))
        for one in module.to_kv.weight.chunk(2)
    )

    def bucket(d):
        near = abs(d) if abs(d) < 5 else min(11, 5 + int(3 * math.log2(abs(d) / 5)))
        return near + 12 * (d < 0)

    rows = [[bucket(d) for d in row] for row in back(q.shape[2], k.shape[2])]
    bias = module.bias.table.weight[torch.tensor(rows)].permute(2, 0, 1)
    return merge(attend(q, k, v, bias=bias), module.to_out)


class Decoder(nn.Module):
    """A fused attention with learned keys and values in front of those of the tokens, and a penalty for distance."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.first_k, self.first_v = (nn.Parameter(torch.randn(heads, MEMORIES, width // heads)) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def behind(self, queries, keys):
        place = torch.arange(keys)
        return (place[-queries:, None] - place).clamp(min=0)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        k = torch.cat((self.first_k.expand(len(x), -1, -1, -1), k), dim=2)
        v = torch.cat((self.first_v.expand(len(x), -1, -1, -1), v), dim=2)
        behind = self.behind(q.shape[2], k.shape[2])
        slopes = torch.exp2(-8 * torch.arange(1, self.heads + 1, dtype=torch.float64) / self.heads).to(x.dtype)
        later = torch.ones(behind.shape, dtype=torch.bool).triu(MEMORIES + 1)
        mask = (-slopes[:, None, None] * behind).masked_fill(later, float("-inf"))
        return self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2))


class DecoderFromZero(Decoder):
    def behind(self, queries, keys):
        place = torch.arange(keys)
        return (place[:queries, None] - place).clamp(min=0)


def wrong_clamped_beside_learned_memory(B, H, L, Dk):
    return DecoderFromZero(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["causal"]


def right_clamped_beside_learned_memory(B, H, L, Dk):
    return Decoder(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["causal"]


def reference_clamped_beside_learned_memory(module, x):
    q, k, v = fused(x, module.qkv, module.heads)
    k, v = (
        torch.cat((first[None].repeat(len(x), 1, 1, 1), own), 2)
        for first, own in ((module.first_k, k), (module.first_v, v))
    )
    slopes = torch.tensor([2.0 ** (-8 * (head + 1) / module.heads) for head in range(module.heads)], dtype=x.dtype)
    bias = -slopes[:, None, None] * torch.tensor(back(q.shape[2], k.shape[2]))
    return merge(attend(q, k, v, keep=visible(q.shape[2], k.shape[2]), bias=bias), module.out)


def penalty(queries, keys):
    """Grows with the logarithm of the distance, as in KERPLE."""
    position = torch.arange(keys)
    return -torch.log1p((position[-queries:, None] - position).abs().double())


def penalty_from_zero(queries, keys):
    position = torch.arange(keys)
    return -torch.log1p((position[:queries, None] - position).abs().double())  # wrong: AS711 logarithm_beside_zero_keys


def look_around(q, k, v, penalty=penalty):
    k, v = (F.pad(t, (0, 0, MEMORIES, 0)) for t in (k, v))
    scores = q @ k.mT / math.sqrt(q.shape[-1]) + penalty(q.shape[2], k.shape[2]).to(q)
    return scores.softmax(-1) @ v


def look_around_from_zero(q, k, v):
    return look_around(q, k, v, penalty_from_zero)


def wrong_logarithm_beside_zero_keys(B, H, L, Dk):
    return look_around_from_zero, tuple(torch.randn(3, B, H, L, Dk)), {}


def right_logarithm_beside_zero_keys(B, H, L, Dk):
    return look_around, tuple(torch.randn(3, B, H, L, Dk)), {}


def reference_logarithm_beside_zero_keys(called, q, k, v):
    nothing = torch.zeros(*k.shape[:2], MEMORIES, k.shape[3], dtype=k.dtype)
    k, v = (torch.cat((nothing, t), 2) for t in (k, v))
    bias = -torch.log(1 + torch.tensor(back(q.shape[2], k.shape[2])).abs().double())
    return attend(q, k, v, bias=bias)

"""AS302: linear attention adds several terms, and divides by a sum that leaves one of them out."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import fused, heads, merge

SIZES = (
    {"B": 4, "H": 3, "L": 11, "Dk": 7},
    {"B": 2, "H": 5, "L": 9, "Dk": 8},
    {"B": 3, "H": 4, "L": 10, "Dk": 6},
)
PAIRS = [
    ("AS302", "cosines_without_sines", *SIZES),
    ("AS302", "last_of_two_features", *SIZES),
    ("AS302", "positive_parts_alone", *SIZES),
    ("AS302", "tokens_behind_left_out", *SIZES),
]


class CosFormer(nn.Module):
    """Weights are relu(q) relu(k) cos(pi/2 (i - j) / L), a product of cosines and one of sines."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(width, width) for _ in range(4))

    def split(self, x):
        return x.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)

    def forward(self, x):
        q, k, v = (self.split(F.relu(self.to_q(x))), self.split(F.relu(self.to_k(x))), self.split(self.to_v(x)))
        angle = torch.arange(x.shape[1], dtype=x.dtype)[:, None] * (math.pi / 2 / x.shape[1])
        q_cos, q_sin, k_cos, k_sin = q * angle.cos(), q * angle.sin(), k * angle.cos(), k * angle.sin()
        out = q_cos @ (k_cos.mT @ v) + q_sin @ (k_sin.mT @ v)
        out = out / self.total(q_cos, q_sin, k_cos, k_sin)
        return self.to_out(out.transpose(1, 2).flatten(2))

    def total(self, q_cos, q_sin, k_cos, k_sin):
        return q_cos @ k_cos.sum(2).unsqueeze(-1) + q_sin @ k_sin.sum(2).unsqueeze(-1) + 1e-6


class CosFormerOfCosines(CosFormer):
    def total(self, q_cos, q_sin, k_cos, k_sin):
        return q_cos @ k_cos.sum(2).unsqueeze(-1) + 1e-6  # wrong: AS302 cosines_without_sines


def _cosines(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def wrong_cosines_without_sines(B, H, L, Dk):
    return _cosines(CosFormerOfCosines, B, H, L, Dk)


def right_cosines_without_sines(B, H, L, Dk):
    return _cosines(CosFormer, B, H, L, Dk)


def weighed(weights, v, more=0.0):
    """Sum values by weights (B, H, queries, keys) that are divided by their sum."""
    return torch.einsum("bhqk,bhkd->bhqd", weights / (weights.sum(-1, keepdim=True) + more), v)


def reference_cosines_without_sines(module, x):
    q, k, v = (heads(x, linear, module.n_heads) for linear in (module.to_q, module.to_k, module.to_v))
    place = torch.arange(x.shape[1], dtype=x.dtype)
    near = torch.cos(math.pi / 2 * (place[:, None] - place) / x.shape[1])
    return merge(weighed(q.clamp(min=0) @ k.clamp(min=0).mT * near, v, 1e-6), module.to_out)


def two_features(x, w_qkv, w_out):
    """Attend causally by features of q and k and by those of -q and -k: B L D, (3, H, D, Dk) and (H, Dk, D)."""
    q, k, v = torch.einsum("bli,thid->tbhld", x, w_qkv)
    read, total = torch.zeros_like(v), torch.zeros_like(v[..., 0])
    for sign in (1, -1):
        of_q, of_k = F.elu(sign * q) + 1, F.elu(sign * k) + 1
        read = read + torch.einsum("bhld,bhlde->bhle", of_q, torch.einsum("bhld,bhle->bhlde", of_k, v).cumsum(2))
        total = total + torch.einsum("bhld,bhld->bhl", of_q, of_k.cumsum(2))
    return torch.einsum("bhle,hei->bli", read / total.unsqueeze(-1), w_out)


def two_features_by_last(x, w_qkv, w_out):
    """Attend causally by features of q and k and by those of -q and -k: B L D, (3, H, D, Dk) and (H, Dk, D)."""
    q, k, v = torch.einsum("bli,thid->tbhld", x, w_qkv)
    read = torch.zeros_like(v)
    for sign in (1, -1):
        of_q, of_k = F.elu(sign * q) + 1, F.elu(sign * k) + 1
        read = read + torch.einsum("bhld,bhlde->bhle", of_q, torch.einsum("bhld,bhle->bhlde", of_k, v).cumsum(2))
    total = torch.einsum("bhld,bhld->bhl", of_q, of_k.cumsum(2))  # wrong: AS302 last_of_two_features
    return torch.einsum("bhle,hei->bli", read / total.unsqueeze(-1), w_out)


def _features(function, B, H, L, Dk):
    weights = torch.randn(3, H, H * Dk, Dk), torch.randn(H, Dk, H * Dk)
    return function, (torch.randn(B, L, H * Dk), *(one / (H * Dk) ** 0.5 for one in weights)), {}


def wrong_last_of_two_features(B, H, L, Dk):
    return _features(two_features_by_last, B, H, L, Dk)


def right_last_of_two_features(B, H, L, Dk):
    return _features(two_features, B, H, L, Dk)


def reference_last_of_two_features(_, x, w_qkv, w_out):
    q, k, v = (torch.stack([x @ one for one in weight], dim=1) for weight in w_qkv)
    plus, minus = ([torch.where(one > 0, one + 1, one.exp()) for one in pair] for pair in ((q, k), (-q, -k)))
    weights = plus[0] @ plus[1].mT + minus[0] @ minus[1].mT
    context = weighed(weights.tril(), v)
    return sum(context[:, h] @ one for h, one in enumerate(w_out))


class Polarity(nn.Module):
    """Positive and negative parts of queries and keys have products of their own, with heads folded into the batch."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.norm, self.qkv, self.proj = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)

    def total(self, parts_of_q, parts_of_k):
        totals = [torch.bmm(q, k.sum(dim=1, keepdim=True).mT) for q, k in zip(parts_of_q, parts_of_k, strict=True)]
        return totals[0] + totals[1] + 1e-6

    def forward(self, x):
        q, k, v = (one.unflatten(-1, (self.n_heads, -1)) for one in self.qkv(self.norm(x)).chunk(3, dim=-1))
        q, k, v = (one.transpose(1, 2).flatten(0, 1) for one in (q, k, v))
        q, k = (F.relu(q), F.relu(-q)), (F.relu(k), F.relu(-k))
        context = torch.bmm(q[0], torch.bmm(k[0].mT, v))
        context = torch.baddbmm(context, q[1], torch.bmm(k[1].mT, v)).div(self.total(q, k))
        return x + self.proj(context.unflatten(0, (-1, self.n_heads)).transpose(1, 2).flatten(2))


class PolarityOfPositive(Polarity):
    def total(self, parts_of_q, parts_of_k):
        q, k = parts_of_q[0], parts_of_k[0]
        return torch.bmm(q, k.sum(dim=1, keepdim=True).mT) + 1e-6  # wrong: AS302 positive_parts_alone


def wrong_positive_parts_alone(B, H, L, Dk):
    return _cosines(PolarityOfPositive, B, H, L, Dk)


def right_positive_parts_alone(B, H, L, Dk):
    return _cosines(Polarity, B, H, L, Dk)


def reference_positive_parts_alone(module, x):
    q, k, v = fused(module.norm(x), module.qkv, module.n_heads)
    products = torch.einsum("bhqd,bhkd->bhqkd", q, k)
    return x + merge(weighed(products.clamp(min=0).sum(-1), v, 1e-6), module.proj)


class BothWays(nn.Module):
    """A state runs forwards over the tokens, and another one backwards over those behind."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def behind(self, x):
        return x.sum(1, keepdim=True) - x.cumsum(1)

    def total(self, q, k):
        return (q * k.cumsum(1)).sum(-1, keepdim=True) + (q * self.behind(k)).sum(-1, keepdim=True)

    def forward(self, x):
        q, k, v = (layer(x).reshape(*x.shape[:2], self.n_heads, -1) for layer in (self.q, self.k, self.v))
        q, k = F.softplus(q), F.softplus(k)
        states = torch.einsum("blhd,blhe->blhde", k, v)
        out = torch.einsum("blhd,blhde->blhe", q, states.cumsum(1))
        out = out + torch.einsum("blhd,blhde->blhe", q, self.behind(states))
        return self.o((out / self.total(q, k)).flatten(2))


class BothWaysByOne(BothWays):
    def total(self, q, k):
        return (q * k.cumsum(1)).sum(-1, keepdim=True)  # wrong: AS302 tokens_behind_left_out


def wrong_tokens_behind_left_out(B, H, L, Dk):
    return _cosines(BothWaysByOne, B, H, L, Dk)


def right_tokens_behind_left_out(B, H, L, Dk):
    return _cosines(BothWays, B, H, L, Dk)


def reference_tokens_behind_left_out(module, x):
    q, k, v = (heads(x, linear, module.n_heads) for linear in (module.q, module.k, module.v))
    q, k = torch.log1p(q.exp()), torch.log1p(k.exp())
    return merge(weighed(q @ k.mT, v), module.o)

"""Attention without a softmax of scores: kernels, sums, sigmoids and decays."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.plain import causal, join, softmax, split

SIZES = ({"B": 2, "H": 4, "L": 6, "Dk": 5}, {"B": 5, "H": 2, "L": 9, "Dk": 7})
CROSS = ({"B": 2, "H": 4, "Lq": 5, "Lk": 7, "Dk": 3}, {"B": 3, "H": 2, "Lq": 8, "Lk": 4, "Dk": 6})
UNUSUAL = [
    ("linear_attention", *CROSS),
    ("causal_linear_attention", *SIZES),
    ("efficient_attention", *CROSS),
    ("sigmoid_attention", *SIZES),
    ("squared_relu", *SIZES),
    ("retention", *SIZES),
    ("bounded_denominator", *SIZES),
    ("scaled_efficient_attention", *CROSS),
    ("softmax_features", *CROSS),
    ("features_bounded_by_lengths", *CROSS),
    ("denominator_beside_the_values", *CROSS),
    ("rotated_numerator", *SIZES),
    ("earlier_keys_only", *SIZES),
]


class Base(nn.Module):
    """`attend` gets query, key and value, (B, H, L, Dk) each."""

    def __init__(self, heads, depth):
        super().__init__()
        self.heads, self.depth = heads, depth
        self.qkv = nn.Linear(heads * depth, 3 * heads * depth)
        self.proj = nn.Linear(heads * depth, heads * depth)

    def logits(self, q, k):
        return torch.einsum("bhid,bhjd->bhij", q, k) * self.depth**-0.5

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, self.depth)).permute(2, 0, 3, 1, 4)
        return self.proj(self.attend(q, k, v).transpose(1, 2).flatten(2))


def _case(module, B, H, L, Dk, claims=()):
    return module(H, Dk), (torch.randn(B, L, H * Dk),), {}, list(claims)


def parts(module, x):
    return (split(t, module.heads) for t in module.qkv(x).chunk(3, dim=-1))


def scores(q, k):
    return torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.shape[-1])


def context(weights, v):
    return join(torch.einsum("bhij,bhjd->bhid", weights, v))


def linear_attention(q, k, v):
    """Keys and values are summed up first; query, key and value (B, H, L, Dk)."""
    q, k = F.elu(q) + 1, F.elu(k) + 1
    state = torch.einsum("bhkd,bhke->bhde", k, v)
    return torch.einsum("bhqd,bhde->bhqe", q, state) / torch.einsum("bhqd,bhd->bhq", q, k.sum(dim=2)).unsqueeze(-1)


def _heads(B, H, Lq, Lk, Dk):
    return torch.randn(B, H, Lq, Dk), torch.randn(B, H, Lk, Dk), torch.randn(B, H, Lk, Dk)


def case_linear_attention(B, H, Lq, Lk, Dk):
    return linear_attention, _heads(B, H, Lq, Lk, Dk), {}


def reference_linear_attention(function, q, k, v):
    q, k = (torch.where(t > 0, t + 1, t.exp()) for t in (q, k))
    weights = q @ k.mT
    return weights / weights.sum(-1, keepdim=True) @ v


class CausalLinear(Base):
    """Linear attention with running sums."""

    def attend(self, q, k, v):
        q, k = F.elu(q) + 1, F.elu(k) + 1
        state = torch.cumsum(k.unsqueeze(-1) * v.unsqueeze(-2), dim=2)
        total = (q * torch.cumsum(k, dim=2)).sum(dim=-1, keepdim=True)
        return torch.einsum("bhld,bhlde->bhle", q, state) / total


def case_causal_linear_attention(B, H, L, Dk):
    return _case(CausalLinear, B, H, L, Dk, ["causal"])


def reference_causal_linear_attention(module, x):
    q, k, v = parts(module, x)
    q, k = (torch.where(t > 0, t + 1, t.exp()) for t in (q, k))
    weights = q @ k.mT * causal(x.shape[1], x.shape[1])
    return module.proj(context(weights / weights.sum(-1, keepdim=True), v))


def efficient_attention(q, k, v):
    """Queries are normalised over their width, keys over the sequence; no scores are formed."""
    q, k = q.softmax(dim=-1), k.softmax(dim=-2)
    return q @ (k.transpose(-1, -2) @ v)


def case_efficient_attention(B, H, Lq, Lk, Dk):
    return efficient_attention, _heads(B, H, Lq, Lk, Dk), {}


def reference_efficient_attention(function, q, k, v):
    return torch.einsum("bhqd,bhkd,bhke->bhqe", softmax(q), softmax(k.mT).mT, v)


class Sigmoid(Base):
    """A sigmoid of each score, shifted by the logarithm of the number of keys: rows don't sum to one."""

    def attend(self, q, k, v):
        logits = self.logits(q, k)
        return torch.sigmoid(logits - math.log(logits.shape[-1])) @ v


def case_sigmoid_attention(B, H, L, Dk):
    return _case(Sigmoid, B, H, L, Dk)


def reference_sigmoid_attention(module, x):
    q, k, v = parts(module, x)
    return module.proj(context(1 / (1 + x.shape[1] * torch.exp(-scores(q, k))), v))


class SquaredRelu(Base):
    def attend(self, q, k, v):
        return F.relu(self.logits(q, k)).square() / q.shape[2] @ v


def case_squared_relu(B, H, L, Dk):
    return _case(SquaredRelu, B, H, L, Dk)


def reference_squared_relu(module, x):
    q, k, v = parts(module, x)
    return module.proj(context(scores(q, k).clamp(min=0) ** 2, v / x.shape[1]))


class Retention(Base):
    """No softmax: products decay with distance, and each head's output is normed."""

    def attend(self, q, k, v):
        n = q.shape[2]
        distance = (torch.arange(n)[:, None] - torch.arange(n)).to(q)
        decay = 1 - torch.exp2(-5.0 - torch.arange(self.heads).to(q))
        weights = torch.where(distance >= 0, decay[:, None, None] ** distance, 0.0)
        return F.rms_norm((q @ k.mT * self.depth**-0.5 * weights) @ v, (self.depth,))


def case_retention(B, H, L, Dk):
    return _case(Retention, B, H, L, Dk, ["causal"])


def reference_retention(module, x):
    q, k, v = parts(module, x)
    outputs = []
    for h in range(module.heads):
        state, row = 0, []
        for t in range(x.shape[1]):
            state = state * (1 - 2.0 ** (-5 - h)) + k[:, h, t, :, None] * v[:, h, t, None]
            row.append((q[:, h, t, None] @ state)[:, 0] / math.sqrt(module.depth))
        outputs.append(torch.stack(row, dim=1))
    return module.proj(join(F.rms_norm(torch.stack(outputs, dim=1), (module.depth,))))


class BoundedDenominator(Base):
    """Linear attention with signed features, divided by the size of the sum where that is larger than one."""

    def attend(self, q, k, v):
        state = torch.einsum("bhld,bhle->bhlde", k, v).cumsum(dim=2)
        size = torch.einsum("bhld,bhld->bhl", q, k.cumsum(dim=2)).abs().clamp(min=1.0)
        return torch.einsum("bhld,bhlde->bhle", q, state) / size.unsqueeze(-1)


def case_bounded_denominator(B, H, L, Dk):
    return _case(BoundedDenominator, B, H, L, Dk, ["causal"])


def reference_bounded_denominator(module, x):
    q, k, v = parts(module, x)
    weights = q @ k.mT * causal(x.shape[1], x.shape[1])
    return module.proj(context(weights / weights.sum(-1, keepdim=True).abs().clamp(min=1), v))


def scaled_efficient_attention(q, k, v):
    """As image generators have it: both softmaxes, then a factor on the queries and one over the keys' number."""
    q = q.softmax(dim=-1) * q.shape[-1] ** -0.5
    return torch.einsum("bhqd,bhde->bhqe", q, torch.einsum("bhkd,bhke->bhde", k.softmax(dim=-2), v / v.shape[-2]))


def case_scaled_efficient_attention(B, H, Lq, Lk, Dk):
    return scaled_efficient_attention, _heads(B, H, Lq, Lk, Dk), {}


def reference_scaled_efficient_attention(function, q, k, v):
    return torch.einsum("bhqd,bhkd,bhke->bhqe", softmax(q), softmax(k.mT).mT, v) / (q.shape[-1] ** 0.5 * v.shape[-2])


def softmax_features(q, k, v):
    """The features of queries and of keys are softmaxes over their widths, and nothing is divided by."""
    return torch.einsum("bhqd,bhde->bhqe", q.softmax(-1), torch.einsum("bhkd,bhke->bhde", k.softmax(-1), v))


def case_softmax_features(B, H, Lq, Lk, Dk):
    return softmax_features, _heads(B, H, Lq, Lk, Dk), {}


def reference_softmax_features(function, q, k, v):
    return softmax(q) @ softmax(k).mT @ v


def features_bounded_by_lengths(q, k, v, *, directions):
    """No maximum is subtracted from the exponents: half of each vector's squared length bounds them."""

    def features(t):
        t = t * t.shape[-1] ** -0.25
        length = torch.einsum("...d,...d->...", t, t).unsqueeze(-1)
        turned = t @ directions
        return torch.cat([torch.exp(turned - length / 2), torch.exp(-turned - length / 2)], dim=-1)

    q, k = features(q), features(k)
    return q @ (k.mT @ v) / (q @ (k.mT @ torch.ones_like(v)))


def case_features_bounded_by_lengths(B, H, Lq, Lk, Dk):
    return features_bounded_by_lengths, _heads(B, H, Lq, Lk, Dk), {"directions": torch.randn(Dk, 2 * Dk)}


def reference_features_bounded_by_lengths(function, q, k, v, *, directions):
    def logarithms(t):
        t = t / t.shape[-1] ** 0.25
        turned = t @ torch.cat((directions, -directions), dim=1)
        return turned - t.square().sum(-1, keepdim=True) / 2

    pairs = logarithms(q).unsqueeze(-2) + logarithms(k).unsqueeze(-3)
    return softmax(pairs.logsumexp(-1)) @ v


def denominator_beside_the_values(q, k, v):
    """A column of ones next to the values sums up the weights."""
    q, k = F.relu(q) + 0.1, F.relu(k) + 0.1
    both = q @ (k.mT @ F.pad(v, (0, 1), value=1.0))
    return both[..., :-1] / both[..., -1:]


def case_denominator_beside_the_values(B, H, Lq, Lk, Dk):
    return denominator_beside_the_values, _heads(B, H, Lq, Lk, Dk), {}


def reference_denominator_beside_the_values(function, q, k, v):
    weights = (q.clamp(min=0) + 0.1) @ (k.clamp(min=0) + 0.1).mT
    return weights / weights.sum(-1, keepdim=True) @ v


class RotatedNumerator(Base):
    """Rotary positions in the numerator only, so that the denominator stays positive: weights don't sum to one."""

    def attend(self, q, k, v):
        q, k = F.softplus(q), F.softplus(k)
        state = self.rotate(k).mT @ v
        return self.rotate(q) @ state / (q * k.sum(dim=2, keepdim=True)).sum(dim=-1, keepdim=True)

    def rotate(self, t):
        angles = torch.arange(t.shape[2], dtype=t.dtype)[:, None] * 0.1
        first, second = t[..., :2].chunk(2, dim=-1)
        turned = first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()
        return torch.cat([*turned, t[..., 2:]], dim=-1)


def case_rotated_numerator(B, H, L, Dk):
    return _case(RotatedNumerator, B, H, L, Dk)


def reference_rotated_numerator(module, x):
    q, k, v = parts(module, x)
    q, k = (torch.log1p(t.exp()) for t in (q, k))
    steps = (torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])).to(x) * 0.1
    turned = torch.einsum("bhid,bhjd->bhij", q[..., :2], k[..., :2]) * steps.cos()
    crossed = q[..., :1] * k[..., 1:2].mT - q[..., 1:2] * k[..., :1].mT
    weights = turned + crossed * steps.sin() + q[..., 2:] @ k[..., 2:].mT
    return module.proj(context(weights / (q @ k.mT).sum(-1, keepdim=True), v))


class EarlierKeysOnly(Base):
    """Each token reads the tokens before it; the first one reads nothing."""

    def attend(self, q, k, v):
        q, k = q.exp(), k.exp()
        total = (q * self.before(k)).sum(dim=-1, keepdim=True)
        state = self.before(torch.einsum("bhld,bhle->bhlde", k, v))
        return torch.einsum("bhld,bhlde->bhle", q, state) / (total + 1e-9)

    def before(self, t):
        return t.cumsum(dim=2) - t


def case_earlier_keys_only(B, H, L, Dk):
    return _case(EarlierKeysOnly, B, H, L, Dk, ["causal"])


def reference_earlier_keys_only(module, x):
    q, k, v = parts(module, x)
    weights = (q.exp() @ k.exp().mT).tril(-1)
    return module.proj(context(weights / (weights.sum(-1, keepdim=True) + 1e-9), v))

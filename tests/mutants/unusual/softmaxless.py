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

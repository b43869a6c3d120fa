"""AS909: what is modified in place is read again under its old name."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, heads, merge

SELF = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 5, "Dk": 3})
PAIRS = [
    ("AS909", "residual_after_activation", *SELF),
    ("AS909", "features_of_values", *SELF),
    ("AS909", "scaled_queries_gate", *SELF),
    ("AS909", "features_in_a_helper", *SELF),
]


class Residual(nn.Module):
    """What attention adds to is the hidden state before its activation."""

    in_place = False

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads, self.embed = n_heads, nn.Linear(width, width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.act = nn.ReLU(inplace=self.in_place)

    def attended(self, x):
        q, k, v = (one(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for one in (self.q, self.k, self.v))
        weights = (q @ k.mT * q.shape[-1] ** -0.5).softmax(dim=-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))

    def forward(self, x):
        hidden = self.embed(x)
        residual = hidden
        hidden = self.act(hidden)  # wrong: AS909 residual_after_activation
        return residual + self.attended(hidden)


class WrongResidual(Residual):
    in_place = True


def _residual(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def wrong_residual_after_activation(B, H, L, Dk):
    return _residual(WrongResidual, B, H, L, Dk)


def right_residual_after_activation(B, H, L, Dk):
    return _residual(Residual, B, H, L, Dk)


def reference_residual_after_activation(module, x):
    hidden = x @ module.embed.weight.T + module.embed.bias
    active = hidden * (hidden > 0)
    q, k, v = (heads(active, one, module.n_heads) for one in (module.q, module.k, module.v))
    return hidden + merge(attend(q, k, v), module.out)


class SharedKeys(nn.Module):
    """Linear attention whose keys are the features of the values."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q, self.kv, self.out = (nn.Linear(width, width) for _ in range(3))

    def features(self, x):
        return F.elu(x) + 1

    def parts(self, x):
        return self.q(x).unflatten(-1, (self.n_heads, -1)), self.kv(x).unflatten(-1, (self.n_heads, -1))

    def read(self, q, k, v):
        state = torch.einsum("blhd,blhe->bhde", k, v)
        total = torch.einsum("blhd,bhd->blh", q, k.sum(1))
        return self.out((torch.einsum("blhd,bhde->blhe", q, state) / total[..., None]).flatten(2))

    def forward(self, x):
        q, v = self.parts(x)
        k = F.elu(v) + 1
        return self.read(self.features(q), k, v)


class WrongSharedKeys(SharedKeys):
    def forward(self, x):
        q, v = self.parts(x)
        k = F.elu(v, inplace=True) + 1  # wrong: AS909 features_of_values
        return self.read(self.features(q), k, v)


def wrong_features_of_values(B, H, L, Dk):
    return _residual(WrongSharedKeys, B, H, L, Dk)


def right_features_of_values(B, H, L, Dk):
    return _residual(SharedKeys, B, H, L, Dk)


def features(x):
    """Those of `elu` plus one."""
    return torch.where(x > 0, x + 1, x.clamp(max=0).exp())


def weighted(q, k, v):
    """Attend with the products of positive features, divided by their sum."""
    weights = torch.einsum("...id,...jd->...ij", q, k)
    return torch.einsum("...ij,...jd->...id", weights / weights.sum(-1, keepdim=True), v)


def reference_features_of_values(module, x):
    q, v = (heads(x, one, module.n_heads) for one in (module.q, module.kv))
    return merge(weighted(features(q), features(v), v), module.out)


def gated(q, k, v):
    q, k, v = q + 0.5, k * 1.5, v - 0.25
    scaled = q * q.shape[-1] ** -0.5
    context = torch.softmax(torch.matmul(scaled, k.transpose(-2, -1)), dim=-1).matmul(v)
    return context * torch.sigmoid(q)


def gated_by_scaled(q, k, v):
    q, k, v = q + 0.5, k * 1.5, v - 0.25
    scaled = q.mul_(q.shape[-1] ** -0.5)  # wrong: AS909 scaled_queries_gate
    context = torch.softmax(torch.matmul(scaled, k.transpose(-2, -1)), dim=-1).matmul(v)
    return context * torch.sigmoid(q)


def wrong_scaled_queries_gate(B, H, L, Dk):
    return gated_by_scaled, tuple(torch.randn(3, B, H, L, Dk)), {}


def right_scaled_queries_gate(B, H, L, Dk):
    return gated, tuple(torch.randn(3, B, H, L, Dk)), {}


def reference_scaled_queries_gate(_, q, k, v):
    return attend(q + 0.5, k * 1.5, v - 0.25) / (1 + (-q - 0.5).exp())


def kernel(q, k, v):
    fq, fk = F.relu(q) + 0.1, F.relu(k) + 0.1
    return fq @ (fk.mT @ v) / (fq @ fk.sum(-2).unsqueeze(-1))


def kernel_in_place(q, k, v):
    fq, fk = F.relu(q) + 0.1, F.relu_(k) + 0.1  # wrong: AS909 features_in_a_helper
    return fq @ (fk.mT @ v) / (fq @ fk.sum(-2).unsqueeze(-1))


class TwoKinds(nn.Module):
    """The sum of linear attention and of softmax attention, with the same queries, keys and values."""

    def __init__(self, width, n_heads, linear):
        super().__init__()
        self.n_heads, self.linear = n_heads, linear
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x):
        q, k, v = (one(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for one in (self.q, self.k, self.v))
        far = self.linear(q, k, v)
        near = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v
        return self.out((near + far).transpose(1, 2).flatten(2))


def wrong_features_in_a_helper(B, H, L, Dk):
    return TwoKinds(H * Dk, H, kernel_in_place), (torch.randn(B, L, H * Dk),), {}


def right_features_in_a_helper(B, H, L, Dk):
    return TwoKinds(H * Dk, H, kernel), (torch.randn(B, L, H * Dk),), {}


def reference_features_in_a_helper(module, x):
    q, k, v = (heads(x, one, module.n_heads) for one in (module.q, module.k, module.v))
    far = weighted(q.clamp(min=0) + 0.1, k.clamp(min=0) + 0.1, v)
    return merge(attend(q, k, v) + far, module.out)

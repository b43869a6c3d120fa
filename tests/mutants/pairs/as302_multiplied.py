"""AS302 in attention that sums up keys and values: multiplied by the sum of the weights instead of divided by it."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import heads, merge

SIZES = ({"B": 2, "H": 4, "L": 7, "Dk": 5}, {"B": 5, "H": 3, "L": 9, "Dk": 4}, {"B": 4, "H": 2, "L": 11, "Dk": 8})
PAIRS = [
    ("AS302", "inverse_forgotten_in_einsum", *SIZES),
    ("AS302", "inverse_forgotten_in_module", *SIZES),
    ("AS302", "inverse_forgotten_in_steps", *SIZES),
]


def causal_kernel(query, key, value):
    """Attend causally by running sums, in (B, H, L, Dk)."""
    query, key = F.relu(query) + 0.01, F.relu(key) + 0.01
    inverse = 1.0 / torch.einsum("bhld,bhld->bhl", query, key.cumsum(dim=2))
    state = torch.einsum("bhld,bhle->bhlde", key, value).cumsum(dim=2)
    return torch.einsum("bhlde,bhld,bhl->bhle", state, query, inverse)


def causal_kernel_multiplied(query, key, value):
    """Attend causally by running sums, in (B, H, L, Dk)."""
    query, key = F.relu(query) + 0.01, F.relu(key) + 0.01
    inverse = torch.einsum("bhld,bhld->bhl", query, key.cumsum(dim=2))  # wrong: AS302 inverse_forgotten_in_einsum
    state = torch.einsum("bhld,bhle->bhlde", key, value).cumsum(dim=2)
    return torch.einsum("bhlde,bhld,bhl->bhle", state, query, inverse)


def _given(function, B, H, L, Dk):
    return function, tuple(torch.randn(B, H, L, Dk) for _ in range(3)), {}, ["causal"]


def wrong_inverse_forgotten_in_einsum(B, H, L, Dk):
    return _given(causal_kernel_multiplied, B, H, L, Dk)


def right_inverse_forgotten_in_einsum(B, H, L, Dk):
    return _given(causal_kernel, B, H, L, Dk)


def weighted(query, key, value, keep=None):
    """Form every weight of a query and a key from their features."""
    products = (query[:, :, :, None] * key[:, :, None]).sum(-1)
    products = products if keep is None else products * keep
    return torch.einsum("bhlm,bhmd->bhld", products / products.sum(-1, keepdim=True), value)


def reference_inverse_forgotten_in_einsum(_, query, key, value):
    keep = torch.tensor([[float(m <= n) for m in range(query.shape[2])] for n in range(query.shape[2])])
    return weighted(query.clamp(min=0) + 0.01, key.clamp(min=0) + 0.01, value, keep)


class Linear(nn.Module):
    """Keys and values are summed up once for all queries."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q_proj, self.k_proj, self.v_proj, self.out = (nn.Linear(width, width) for _ in range(4))

    def features(self, t):
        return (F.elu(t) + 1).unflatten(-1, (self.n_heads, -1))

    def normaliser(self, q, k):
        return 1 / (torch.einsum("nlhd,nhd->nlh", q, k.sum(dim=1)) + 1e-6)

    def forward(self, x):
        q, k = self.features(self.q_proj(x)), self.features(self.k_proj(x))
        v = self.v_proj(x).unflatten(-1, (self.n_heads, -1))
        state = torch.einsum("nshd,nshm->nhmd", k, v)
        context = torch.einsum("nlhd,nhmd->nlhm", q, state) * self.normaliser(q, k).unsqueeze(-1)
        return self.out(context.flatten(-2))


class LinearMultiplied(Linear):
    def normaliser(self, q, k):
        return torch.einsum("nlhd,nhd->nlh", q, k.sum(dim=1)) + 1e-6  # wrong: AS302 inverse_forgotten_in_module


def _module(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def wrong_inverse_forgotten_in_module(B, H, L, Dk):
    return _module(LinearMultiplied, B, H, L, Dk)


def right_inverse_forgotten_in_module(B, H, L, Dk):
    return _module(Linear, B, H, L, Dk)


def reference_inverse_forgotten_in_module(module, x):
    q, k, v = (heads(x, one, module.n_heads) for one in (module.q_proj, module.k_proj, module.v_proj))
    q, k = (torch.where(t > 0, t + 1, t.exp()) for t in (q, k))
    products = torch.einsum("bhld,bhmd->bhlm", q, k)
    weights = products / (products.sum(-1, keepdim=True) + 1e-6)
    return merge(torch.einsum("bhlm,bhmd->bhld", weights, v), module.out)


class InSteps(nn.Module):
    """Products of matrices, and the queries' totals by one more."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.to_qkv, self.proj = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)

    def normalised(self, context, total):
        return context.mul(total.reciprocal())

    def forward(self, x):
        q, k, v = self.to_qkv(x).unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = q.sigmoid(), k.sigmoid()
        total = q @ k.sum(dim=-2).unsqueeze(-1)
        context = self.normalised(q @ (k.mT @ v), total)
        return self.proj(context.transpose(1, 2).flatten(2))


class InStepsMultiplied(InSteps):
    def normalised(self, context, total):
        return context.mul(total)


def wrong_inverse_forgotten_in_steps(B, H, L, Dk):
    return _module(InStepsMultiplied, B, H, L, Dk)


def right_inverse_forgotten_in_steps(B, H, L, Dk):
    return _module(InSteps, B, H, L, Dk)


def reference_inverse_forgotten_in_steps(module, x):
    q, k, v = torch.einsum("bli,chdi->cbhld", x, module.to_qkv.weight.unflatten(0, (3, module.n_heads, -1)))
    return merge(weighted(1 / (1 + (-q).exp()), 1 / (1 + (-k).exp()), v), module.proj)

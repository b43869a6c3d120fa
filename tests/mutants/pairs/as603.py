"""AS603: a head's result depends on other heads."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.mutants.plain import attention, join, split

SIZES = ({"B": 2, "H": 4, "L": 6, "Dk": 5}, {"B": 5, "H": 2, "L": 7, "Dk": 4}, {"B": 4, "H": 3, "L": 9, "Dk": 8})
CROSS = (
    {"B": 2, "H": 4, "Lq": 5, "Lk": 7, "Dk": 3},
    {"B": 3, "H": 2, "Lq": 8, "Lk": 4, "Dk": 6},
    {"B": 5, "H": 3, "Lq": 4, "Lk": 9, "Dk": 6},
)
SHARED = (
    {"B": 4, "Hkv": 2, "G": 3, "L": 7, "Dk": 5},
    {"B": 5, "Hkv": 3, "G": 2, "L": 8, "Dk": 4},
    {"B": 3, "Hkv": 2, "G": 4, "L": 9, "Dk": 5},
)
PAIRS = [
    ("AS603", "einsum_letter", *CROSS),
    ("AS603", "summed_and_expanded", *SIZES),
    ("AS603", "running_sum_of_values", *SIZES),
    ("AS603", "values_of_all_heads", *SIZES),
    ("AS603", "group_added_up", *SHARED),
    ("AS603", "mean_of_pairs", *CROSS),
    ("AS603", "products_of_all_pairs", *CROSS),
    ("AS603", "unit_vectors_over_heads", *SIZES),
    ("AS603", "lengths_over_heads", *SIZES),
]


def einsum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = torch.einsum("bhid,bhjd->bhij", q, k).div(q.shape[-1] ** 0.5).softmax(-1)
    return torch.einsum("bhij,bhjd->bhid", weights, v)


def einsum_over_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.einsum("bhid,bgjd->bhij", q, k)  # wrong: AS603 einsum_letter
    weights = scores.div(q.shape[-1] ** 0.5).softmax(-1)
    return torch.einsum("bhij,bhjd->bhid", weights, v)


def _heads(B, H, Lq, Lk, Dk):
    return torch.randn(B, H, Lq, Dk), torch.randn(B, H, Lk, Dk), torch.randn(B, H, Lk, Dk)


def wrong_einsum_letter(B, H, Lq, Lk, Dk):
    return einsum_over_heads, _heads(B, H, Lq, Lk, Dk), {}


def right_einsum_letter(B, H, Lq, Lk, Dk):
    return einsum, _heads(B, H, Lq, Lk, Dk), {}


def reference_einsum_letter(function, q, k, v):
    return attention(q, k, v)


class Attention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.in_proj = nn.Linear(d_model, 3 * d_model)
        self.out_proj = nn.Linear(d_model, d_model)

    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for t in self.in_proj(x).chunk(3, -1))
        return self.out_proj(self.attend(q, k, v).transpose(1, 2).flatten(-2))


class SummedAttention(Attention):
    def attend(self, q, k, v):
        context = super().attend(q, k, v)
        context = context.sum(1, keepdim=True)  # wrong: AS603 summed_and_expanded
        return context.expand(-1, self.num_heads, -1, -1)


def _module(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def wrong_summed_and_expanded(B, H, L, Dk):
    return _module(SummedAttention, B, H, L, Dk)


def right_summed_and_expanded(B, H, L, Dk):
    return _module(Attention, B, H, L, Dk)


def reference_summed_and_expanded(module, x):
    q, k, v = (split(t, module.num_heads) for t in module.in_proj(x).chunk(3, dim=-1))
    return module.out_proj(join(attention(q, k, v)))


class Averaging(Attention):
    """Attends to the running mean of the values before each key."""

    def mean(self, v):
        return v.cumsum(2) / torch.arange(1, v.shape[2] + 1, dtype=v.dtype)[:, None]

    def attend(self, q, k, v):
        return super().attend(q, k, self.mean(v))


class AveragingHeads(Averaging):
    def mean(self, v):
        total = v.cumsum(1)  # wrong: AS603 running_sum_of_values
        return total / torch.arange(1, v.shape[2] + 1, dtype=v.dtype)[:, None]


def wrong_running_sum_of_values(B, H, L, Dk):
    return _module(AveragingHeads, B, H, L, Dk)


def right_running_sum_of_values(B, H, L, Dk):
    return _module(Averaging, B, H, L, Dk)


def reference_running_sum_of_values(module, x):
    q, k, v = (split(t, module.num_heads) for t in module.in_proj(x).chunk(3, dim=-1))
    means = torch.stack([v[:, :, : j + 1].mean(2) for j in range(v.shape[2])], dim=2)
    return module.out_proj(join(attention(q, k, means)))


class Weighted(Attention):
    def attend(self, q, k, v):
        weights = torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, dim=-1)
        return self.collect(weights, v)

    def collect(self, weights, v):
        return torch.einsum("...ij,...jd->...id", weights, v)


class WeightedOverHeads(Weighted):
    def collect(self, weights, v):
        return torch.einsum("bhij,bgjd->bhid", weights, v)  # wrong: AS603 values_of_all_heads


def wrong_values_of_all_heads(B, H, L, Dk):
    return _module(WeightedOverHeads, B, H, L, Dk)


def right_values_of_all_heads(B, H, L, Dk):
    return _module(Weighted, B, H, L, Dk)


def reference_values_of_all_heads(module, x):
    return reference_summed_and_expanded(module, x)


def grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend with (B, H, L, Dk) and (B, Hkv, L, Dk); return the mean context of each group, (B, Hkv, L, Dk)."""
    groups = q.unflatten(1, (k.shape[1], -1))
    scores = torch.einsum("bkgid,bkjd->bkgij", groups, k)
    weights = scores.mul(q.shape[-1] ** -0.5).softmax(-1)
    return torch.einsum("bkgij,bkjd->bkgid", weights, v).mean(2)


def grouped_sum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend with (B, H, L, Dk) and (B, Hkv, L, Dk); return the mean context of each group, (B, Hkv, L, Dk)."""
    groups = q.unflatten(1, (k.shape[1], -1))
    scores = torch.einsum("bkgid,bkjd->bkij", groups, k)  # wrong: AS603 group_added_up
    weights = scores.mul(q.shape[-1] ** -0.5).softmax(-1)
    return torch.einsum("bkij,bkjd->bkid", weights, v)


def _grouped(function, B, Hkv, G, L, Dk):
    return function, (torch.randn(B, Hkv * G, L, Dk), torch.randn(B, Hkv, L, Dk), torch.randn(B, Hkv, L, Dk)), {}


def wrong_group_added_up(B, Hkv, G, L, Dk):
    return _grouped(grouped_sum, B, Hkv, G, L, Dk)


def right_group_added_up(B, Hkv, G, L, Dk):
    return _grouped(grouped, B, Hkv, G, L, Dk)


def reference_group_added_up(function, q, k, v):
    shared = q.shape[1] // k.shape[1]
    contexts = attention(q, k.repeat_interleave(shared, 1), v.repeat_interleave(shared, 1))
    return contexts.unflatten(1, (-1, shared)).mean(2)


def scored(q: Tensor, k: Tensor, v: Tensor, scores: Tensor) -> Tensor:
    return torch.softmax(scores / q.shape[-1] ** 0.5, dim=-1) @ v


def own_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    pairs = torch.einsum("bhid,bgjd->bhgij", q, k)
    return scored(q, k, v, pairs.diagonal(dim1=1, dim2=2).movedim(-1, 1))


def mean_of_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    pairs = torch.einsum("bhid,bgjd->bhgij", q, k)
    return scored(q, k, v, pairs.mean(dim=2))  # wrong: AS603 mean_of_pairs


def wrong_mean_of_pairs(B, H, Lq, Lk, Dk):
    return mean_of_heads, _heads(B, H, Lq, Lk, Dk), {}


def right_mean_of_pairs(B, H, Lq, Lk, Dk):
    return own_heads, _heads(B, H, Lq, Lk, Dk), {}


def by_multiplication(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return scored(q, k, v, (q[:, :, :, None] * k[:, :, None]).sum(dim=-1))


def by_all_multiplications(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    products = q[:, :, None, :, None] * k[:, None, :, None]
    return scored(q, k, v, products.sum(dim=-1).sum(dim=2))  # wrong: AS603 products_of_all_pairs


def wrong_products_of_all_pairs(B, H, Lq, Lk, Dk):
    return by_all_multiplications, _heads(B, H, Lq, Lk, Dk), {}


def right_products_of_all_pairs(B, H, Lq, Lk, Dk):
    return by_multiplication, _heads(B, H, Lq, Lk, Dk), {}


def reference_mean_of_pairs(_, q, k, v):
    return attention(q, k, v)


reference_products_of_all_pairs = reference_mean_of_pairs


class Recurrent(Attention):
    """Linear attention as a state that each token changes; the keys are unit vectors."""

    def unit(self, x):
        return F.normalize(x, dim=-1)

    def attend(self, q, k, v):
        k, state, contexts = self.unit(k), 0, []
        for t in range(q.shape[2]):
            state = 0.9 * state + k[:, :, t, :, None] * v[:, :, t, None]
            contexts.append((q[:, :, t, None] @ state).squeeze(2))
        return torch.stack(contexts, dim=2)


class RecurrentDefault(Recurrent):
    def unit(self, x):
        return F.normalize(x)  # wrong: AS603 unit_vectors_over_heads


def wrong_unit_vectors_over_heads(B, H, L, Dk):
    return _module(RecurrentDefault, B, H, L, Dk)


def right_unit_vectors_over_heads(B, H, L, Dk):
    return _module(Recurrent, B, H, L, Dk)


def reference_unit_vectors_over_heads(module, x):
    q, k, v = (split(t, module.num_heads) for t in module.in_proj(x).chunk(3, dim=-1))
    k = k / k.square().sum(-1, keepdim=True).sqrt()
    back = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
    weights = torch.einsum("bhid,bhjd->bhij", q, k) * torch.where(back >= 0, 0.9 ** back.double(), 0.0)
    return module.out_proj(join(torch.einsum("bhij,bhjd->bhid", weights, v)))


class Cosine(Attention):
    """Divides queries and keys by their lengths before the heads move in front of the tokens."""

    def lengths(self, x):
        return x.square().sum(-1, keepdim=True).sqrt()

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.num_heads, -1)) for t in self.in_proj(x).chunk(3, -1))
        q, k = (t / self.lengths(t) for t in (q, k))
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        context = F.scaled_dot_product_attention(q, k, v, scale=8.0)
        return self.out_proj(context.transpose(1, 2).flatten(-2))


class CosineOverHeads(Cosine):
    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.num_heads, -1)) for t in self.in_proj(x).chunk(3, -1))
        q, k = (t * t.square().sum(2, keepdim=True).rsqrt() for t in (q, k))  # wrong: AS603 lengths_over_heads
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        context = F.scaled_dot_product_attention(q, k, v, scale=8.0)
        return self.out_proj(context.transpose(1, 2).flatten(-2))


def wrong_lengths_over_heads(B, H, L, Dk):
    return _module(CosineOverHeads, B, H, L, Dk)


def right_lengths_over_heads(B, H, L, Dk):
    return _module(Cosine, B, H, L, Dk)


def reference_lengths_over_heads(module, x):
    q, k, v = (split(t, module.num_heads) for t in module.in_proj(x).chunk(3, dim=-1))
    q, k = (t / t.norm(dim=-1, keepdim=True) for t in (q, k))
    return module.out_proj(join(attention(q, k, v, scale=8.0)))

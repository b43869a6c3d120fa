"""AS109: queries and keys are divided by their length over all heads together, before the split."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.plain import attention, join, split

SIZES = ({"B": 2, "H": 4, "L": 6, "Dk": 5}, {"B": 5, "H": 2, "L": 8, "Dk": 4}, {"B": 4, "H": 3, "L": 9, "Dk": 7})
CROSS = (
    {"B": 2, "H": 4, "Lq": 5, "Lk": 7, "Dk": 6},
    {"B": 3, "H": 2, "Lq": 9, "Lk": 11, "Dk": 5},
    {"B": 5, "H": 3, "Lq": 7, "Lk": 8, "Dk": 4},
)
PAIRS = [
    ("AS109", "keys_of_all_heads", *CROSS),
    ("AS109", "lengths_before_the_split", *SIZES),
    ("AS109", "whole_width_by_einsum", *SIZES),
]


class Cosine(nn.Module):
    """Queries and keys of each head have length one; a temperature is learned."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.temperature = heads, nn.Parameter(torch.rand(heads, 1, 1) + 1)
        self.to_q, self.to_kv = nn.Linear(width, width), nn.Linear(width, 2 * width)

    def split(self, t):
        return t.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x, memory):
        k, v = self.to_kv(memory).chunk(2, dim=-1)
        q = F.normalize(self.split(self.to_q(x)), dim=-1) * self.temperature
        k = F.normalize(self.split(k), dim=-1)
        return ((q @ k.mT).softmax(dim=-1) @ self.split(v)).transpose(1, 2).flatten(2)


class CosineOfKeys(Cosine):
    def forward(self, x, memory):
        k, v = self.to_kv(memory).chunk(2, dim=-1)
        q = F.normalize(self.split(self.to_q(x)), dim=-1) * self.temperature
        k = self.split(F.normalize(k, dim=-1))  # wrong: AS109 keys_of_all_heads
        return ((q @ k.mT).softmax(dim=-1) @ self.split(v)).transpose(1, 2).flatten(2)


def _unit(t):
    return t / t.square().sum(-1, keepdim=True).sqrt()


def _cosine(cls, B, H, Lq, Lk, Dk):
    return cls(H * Dk, H), (torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk)), {}


def wrong_keys_of_all_heads(B, H, Lq, Lk, Dk):
    return _cosine(CosineOfKeys, B, H, Lq, Lk, Dk)


def right_keys_of_all_heads(B, H, Lq, Lk, Dk):
    return _cosine(Cosine, B, H, Lq, Lk, Dk)


def reference_keys_of_all_heads(module, x, memory):
    q, k, v = (split(t, module.heads) for t in (module.to_q(x), *module.to_kv(memory).chunk(2, dim=-1)))
    return join(attention(_unit(q) * module.temperature, _unit(k), v, scale=1.0))


class Fused(nn.Module):
    """PyTorch's attention of vectors that are divided by hand."""

    def __init__(self, d_model, n_head):
        super().__init__()
        self.n_head = n_head
        self.q, self.k, self.v = (nn.Linear(d_model, d_model, bias=False) for _ in range(3))

    def vectors(self, t):
        t = t.view(*t.shape[:2], self.n_head, -1)
        return t / t.norm(dim=-1, keepdim=True)

    def forward(self, x):
        q, k = self.vectors(self.q(x)), self.vectors(self.k(x))
        v = self.v(x).view(q.shape)
        q, k, v = (t.permute(0, 2, 1, 3) for t in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, scale=8.0).permute(0, 2, 1, 3).flatten(2)


class FusedOverWidth(Fused):
    def vectors(self, t):
        t = t / t.norm(dim=-1, keepdim=True)  # wrong: AS109 lengths_before_the_split
        return t.view(*t.shape[:2], self.n_head, -1)


def wrong_lengths_before_the_split(B, H, L, Dk):
    return FusedOverWidth(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def right_lengths_before_the_split(B, H, L, Dk):
    return Fused(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def reference_lengths_before_the_split(module, x):
    q, k, v = (split(one(x), module.n_head) for one in (module.q, module.k, module.v))
    return join(attention(_unit(q), _unit(k), v, scale=8.0))


def by_einsum(q, k, v, *, n_heads):
    """Attend in (B, L, H*Dk), ten times the cosines of each head."""
    q, k, v = (t.unflatten(2, (n_heads, -1)) for t in (q, k, v))
    q, k = (t * torch.einsum("blhd,blhd->blh", t, t).rsqrt().unsqueeze(-1) for t in (q, k))
    weights = torch.softmax(10 * torch.einsum("bihd,bjhd->bhij", q, k), dim=3)
    return torch.einsum("bhij,bjhd->bihd", weights, v).flatten(2)


def by_einsum_over_width(q, k, v, *, n_heads):
    q, k = (t * torch.rsqrt((t * t).sum(-1, keepdim=True)) for t in (q, k))  # wrong: AS109 whole_width_by_einsum
    q, k, v = (t.unflatten(2, (n_heads, -1)) for t in (q, k, v))
    weights = torch.softmax(10 * torch.einsum("bihd,bjhd->bhij", q, k), dim=3)
    return torch.einsum("bhij,bjhd->bihd", weights, v).flatten(2)


def _wide(function, B, H, L, Dk):
    return function, tuple(torch.randn(3, B, L, H * Dk)), {"n_heads": H}


def wrong_whole_width_by_einsum(B, H, L, Dk):
    return _wide(by_einsum_over_width, B, H, L, Dk)


def right_whole_width_by_einsum(B, H, L, Dk):
    return _wide(by_einsum, B, H, L, Dk)


def reference_whole_width_by_einsum(function, q, k, v, *, n_heads):
    q, k, v = (split(t, n_heads) for t in (q, k, v))
    return join(attention(_unit(q), _unit(k), v, scale=10.0))

"""AS307: the weights go through softmax twice; a dropout of weights that were dropped differs in training only."""

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
PAIRS = [
    ("AS307", "module_and_function", *SIZES),
    ("AS307", "einsum_with_casts", *CROSS),
    ("AS307", "folded_with_dropout", *CROSS),
]


class Attention(nn.Module):
    """The softmax is a module."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.in_proj = nn.Linear(embed_dim, 3 * embed_dim)
        self.normalize = nn.Softmax(dim=-1)

    def weigh(self, scores):
        return self.normalize(scores)

    def forward(self, x):
        q, k, v = (split(t, self.num_heads) for t in self.in_proj(x).chunk(3, dim=-1))
        scores = q @ k.transpose(2, 3) * q.shape[-1] ** -0.5
        return join(self.weigh(scores) @ v)


class TwiceAttention(Attention):
    def weigh(self, scores):
        weights = F.softmax(scores, dim=-1)
        return self.normalize(weights)  # wrong: AS307 module_and_function


def wrong_module_and_function(B, H, L, Dk):
    return TwiceAttention(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def right_module_and_function(B, H, L, Dk):
    return Attention(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def reference_module_and_function(module, x):
    q, k, v = (split(t, module.num_heads) for t in module.in_proj(x).chunk(3, dim=-1))
    return join(attention(q, k, v))


def cast(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend with (B, L, H, Dk); the softmax is computed in another precision."""
    scores = torch.einsum("bihd,bjhd->bhij", q, k) / q.shape[-1] ** 0.5
    weights = torch.softmax(scores.double(), dim=3).to(v.dtype)
    return torch.einsum("bhij,bjhd->bihd", weights, v)


def cast_twice(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend with (B, L, H, Dk); the softmax is computed in another precision."""
    scores = torch.einsum("bihd,bjhd->bhij", q, k) / q.shape[-1] ** 0.5
    weights = torch.softmax(scores.double(), dim=3).to(v.dtype)
    weights = weights.clone().softmax(3)  # wrong: AS307 einsum_with_casts
    return torch.einsum("bhij,bjhd->bihd", weights, v)


def _by_token(B, H, Lq, Lk, Dk):
    return (torch.randn(B, Lq, H, Dk), torch.randn(B, Lk, H, Dk), torch.randn(B, Lk, H, Dk)), {}


def wrong_einsum_with_casts(B, H, Lq, Lk, Dk):
    return cast_twice, *_by_token(B, H, Lq, Lk, Dk)


def right_einsum_with_casts(B, H, Lq, Lk, Dk):
    return cast, *_by_token(B, H, Lq, Lk, Dk)


def reference_einsum_with_casts(function, q, k, v):
    return attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)).transpose(1, 2)


class Folded(nn.Module):
    """Attends in (B*H, L, Dk), with the dropout before the product with the values."""

    def __init__(self, rate):
        super().__init__()
        self.dropout = nn.Dropout(rate)

    def forward(self, q, k, v):
        weights = F.softmax(torch.bmm(q, k.transpose(1, 2)).div(q.size(-1) ** 0.5), dim=2)
        return torch.bmm(self.dropout(weights), v)


class FoldedTwice(Folded):
    def forward(self, q, k, v):
        scores = torch.bmm(q, k.transpose(1, 2)).div(q.size(-1) ** 0.5)
        for _ in range(2):
            scores = F.softmax(scores, dim=2)  # wrong: AS307 folded_with_dropout
        return torch.bmm(self.dropout(scores), v)


def _folded(B, H, Lq, Lk, Dk):
    return torch.randn(B * H, Lq, Dk), torch.randn(B * H, Lk, Dk), torch.randn(B * H, Lk, Dk)


def wrong_folded_with_dropout(B, H, Lq, Lk, Dk):
    return FoldedTwice(0.1), _folded(B, H, Lq, Lk, Dk), {}


def right_folded_with_dropout(B, H, Lq, Lk, Dk):
    return Folded(0.1), _folded(B, H, Lq, Lk, Dk), {}


def reference_folded_with_dropout(module, q, k, v):
    return attention(q, k, v)

"""AS309: the results are finite, and gradients aren't, since NaN is replaced only after the softmax."""

import torch
from torch import Tensor, nn

from tests.mutants.pairs.as4_reference import attend, heads, merge

CROSS = (
    {"B": 4, "H": 5, "Lq": 7, "Lk": 9, "Dk": 6},
    {"B": 5, "H": 4, "Lq": 11, "Lk": 7, "Dk": 8},
    {"B": 6, "H": 7, "Lq": 5, "Lk": 8, "Dk": 4},
)
CLAIMS = ["mask=keep", "zero-masked-rows"]
PAIRS = [
    ("AS309", "added_infinity", *CROSS),
    ("AS309", "logarithm_of_the_mask", *CROSS),
    ("AS309", "zero_over_zero", *CROSS),
    ("AS309", "only_where_nan", *CROSS),
]


def _mask(B, Lk):
    mask = torch.rand(B, Lk) < 0.6
    mask[:, 0] = True
    mask[1] = False
    return mask


class Cross(nn.Module):
    """Cross-attention to a memory that may be empty."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def weights(self, scores, keep):
        return scores.masked_fill(~keep, -torch.inf).softmax(-1).masked_fill(~keep, 0.0)

    def forward(self, x, memory, mask):
        q = self.q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = (one(memory).unflatten(-1, (self.heads, -1)).transpose(1, 2) for one in (self.k, self.v))
        weights = self.weights(q @ k.mT * q.shape[-1] ** -0.5, mask[:, None, None, :])
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class CrossWithInfinity(Cross):
    def weights(self, scores, keep):
        scores = scores + torch.zeros_like(scores).masked_fill(~keep, -torch.inf)
        weights = scores.softmax(-1)  # wrong: AS309 added_infinity
        return weights.nan_to_num(0.0)


class CrossReplacingNan(Cross):
    def weights(self, scores, keep):
        scores = scores + torch.where(keep, 0.0, -torch.inf)
        weights = torch.softmax(scores, dim=3)  # wrong: AS309 only_where_nan
        return torch.where(weights.isnan(), torch.zeros_like(weights), weights)


def _cross(kind, B, H, Lq, Lk, Dk):
    inputs = torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk), _mask(B, Lk)
    return kind(H * Dk, H), inputs, {}, CLAIMS


def wrong_added_infinity(B, H, Lq, Lk, Dk):
    return _cross(CrossWithInfinity, B, H, Lq, Lk, Dk)


def right_added_infinity(B, H, Lq, Lk, Dk):
    return _cross(Cross, B, H, Lq, Lk, Dk)


def wrong_only_where_nan(B, H, Lq, Lk, Dk):
    return _cross(CrossReplacingNan, B, H, Lq, Lk, Dk)


right_only_where_nan = right_added_infinity


def reference_added_infinity(module, x, memory, mask):
    q = heads(x, module.q, module.heads)
    k, v = heads(memory, module.k, module.heads), heads(memory, module.v, module.heads)
    return merge(attend(q, k, v, keep=mask[:, None, None, :]), module.out)


reference_only_where_nan = reference_added_infinity


def logarithmic(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Attend with (B, L, H, Dk); the mask (B, Lk) is 1 for the keys to keep."""
    scores = torch.einsum("bihd,bjhd->bhij", q, k) / q.shape[-1] ** 0.5
    keep = mask[:, None, None]
    bias = torch.log(keep)
    weights = torch.softmax(scores + bias, dim=-1)  # wrong: AS309 logarithm_of_the_mask
    return torch.einsum("bhij,bjhd->bihd", torch.where(keep > 0, weights, 0), v)


def bounded(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Attend with (B, L, H, Dk); the mask (B, Lk) is 1 for the keys to keep."""
    scores = torch.einsum("bihd,bjhd->bhij", q, k) / q.shape[-1] ** 0.5
    keep = mask[:, None, None]
    bias = torch.zeros_like(keep).masked_fill(keep == 0, torch.finfo(q.dtype).min)
    weights = torch.softmax(scores + bias, dim=-1)
    return torch.einsum("bhij,bjhd->bihd", torch.where(keep > 0, weights, 0), v)


def _by_token(function, B, H, Lq, Lk, Dk):
    q, k, v = torch.randn(B, Lq, H, Dk), torch.randn(B, Lk, H, Dk), torch.randn(B, Lk, H, Dk)
    return function, (q, k, v, _mask(B, Lk).float())


def wrong_logarithm_of_the_mask(B, H, Lq, Lk, Dk):
    return _by_token(logarithmic, B, H, Lq, Lk, Dk)


def right_logarithm_of_the_mask(B, H, Lq, Lk, Dk):
    return _by_token(bounded, B, H, Lq, Lk, Dk)


def reference_logarithm_of_the_mask(function, q, k, v, mask):
    return attend(*(one.transpose(1, 2) for one in (q, k, v)), keep=mask[:, None, None]).transpose(1, 2)


class Spelled(nn.Module):
    """The softmax is spelled out, with the mask before the sum, in (B, H, L, Dk)."""

    def normalize(self, exponentials):
        return exponentials / exponentials.sum(-1, keepdim=True).clamp(min=1e-30)

    def forward(self, q, k, v, mask):
        scores = torch.matmul(q, k.transpose(-2, -1)) * q.size(-1) ** -0.5
        exponentials = torch.exp(scores - scores.amax(dim=-1, keepdim=True))
        return torch.matmul(self.normalize(exponentials * mask[:, None, None]), v)


class SpelledWithNan(Spelled):
    def normalize(self, exponentials):
        weights = exponentials / exponentials.sum(-1, keepdim=True)  # wrong: AS309 zero_over_zero
        return torch.nan_to_num(weights)


def _spelled(kind, B, H, Lq, Lk, Dk):
    q, k, v = torch.randn(B, H, Lq, Dk), torch.randn(B, H, Lk, Dk), torch.randn(B, H, Lk, Dk)
    return kind(), (q, k, v, _mask(B, Lk)), {}, CLAIMS


def wrong_zero_over_zero(B, H, Lq, Lk, Dk):
    return _spelled(SpelledWithNan, B, H, Lq, Lk, Dk)


def right_zero_over_zero(B, H, Lq, Lk, Dk):
    return _spelled(Spelled, B, H, Lq, Lk, Dk)


def reference_zero_over_zero(module, q, k, v, mask):
    return attend(q, k, v, keep=mask[:, None, None])

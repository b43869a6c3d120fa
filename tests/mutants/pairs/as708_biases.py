"""AS708: a bias that is given, and never reaches the scores."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.plain import attention, multihead, split

CROSS = (
    {"B": 2, "H": 3, "Lq": 6, "Lk": 7, "Dk": 5},
    {"B": 5, "H": 2, "Lq": 8, "Lk": 9, "Dk": 7},
    {"B": 4, "H": 3, "Lq": 5, "Lk": 6, "Dk": 8},
)
SELF = ({"B": 2, "H": 3, "L": 7, "Dk": 5}, {"B": 5, "H": 2, "L": 9, "Dk": 7}, {"B": 3, "H": 4, "L": 6, "Dk": 8})
PAIRS = [
    ("AS708", "factor_of_zero", *CROSS),
    ("AS708", "never_passed_on", *SELF),
    ("AS708", "zeros_like_it", *SELF),
]


def _scored(q, k, v, bias, beta):
    q, k, v = (one.flatten(0, 1) for one in (q, k, v))
    whole = bias.repeat(q.shape[0] // bias.shape[0], 1, 1)
    scores = torch.baddbmm(whole, q, k.mT, beta=beta, alpha=q.shape[-1] ** -0.5)  # wrong: AS708 factor_of_zero
    return torch.bmm(scores.softmax(dim=-1), v)


def factor_of_one(q, k, v, bias):
    return _scored(q, k, v, bias, 1).view_as(q)


def factor_of_zero(q, k, v, bias):
    return _scored(q, k, v, bias, 0).view_as(q)


def _cross(function, B, H, Lq, Lk, Dk):
    given = torch.randn(B, H, Lq, Dk), torch.randn(B, H, Lk, Dk), torch.randn(B, H, Lk, Dk), torch.randn(H, Lq, Lk)
    return function, given, {}, ["bias=bias"]


def wrong_factor_of_zero(B, H, Lq, Lk, Dk):
    return _cross(factor_of_zero, B, H, Lq, Lk, Dk)


def right_factor_of_zero(B, H, Lq, Lk, Dk):
    return _cross(factor_of_one, B, H, Lq, Lk, Dk)


def reference_factor_of_zero(function, q, k, v, bias):
    return attention(q, k, v, bias=bias)


class Biased(nn.Module):
    """Passes the bias on as torch's additive mask."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def attend(self, q, k, v, bias):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)

    def forward(self, x, bias):
        q, k, v = (split(w(x), self.heads) for w in (self.q, self.k, self.v))
        return self.o(self.attend(q, k, v, bias).transpose(1, 2).flatten(2))


class BiasedInName(Biased):
    def attend(self, q, k, v, bias):
        return F.scaled_dot_product_attention(q, k, v)  # wrong: AS708 never_passed_on


class BiasedByHand(Biased):
    """Adds the bias itself, in the type of the scores."""

    def added(self, bias, scores):
        return bias.to(scores.dtype)

    def attend(self, q, k, v, bias):
        scores = torch.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5
        return (scores + self.added(bias, scores)).softmax(-1) @ v


class BiasedByZeros(BiasedByHand):
    def added(self, bias, scores):
        return torch.zeros_like(bias, dtype=scores.dtype)  # wrong: AS708 zeros_like_it


def _self(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), torch.randn(1, H, L, L)), {}, ["bias=bias"]


def wrong_never_passed_on(B, H, L, Dk):
    return _self(BiasedInName, B, H, L, Dk)


def right_never_passed_on(B, H, L, Dk):
    return _self(Biased, B, H, L, Dk)


def wrong_zeros_like_it(B, H, L, Dk):
    return _self(BiasedByZeros, B, H, L, Dk)


def right_zeros_like_it(B, H, L, Dk):
    return _self(BiasedByHand, B, H, L, Dk)


def reference_never_passed_on(module, x, bias):
    return module.o(multihead(module.q(x), module.k(x), module.v(x), module.heads, bias=bias))


reference_zeros_like_it = reference_never_passed_on

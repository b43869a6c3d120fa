"""AS708: the slopes of linear biases are compounded from head to head, and form no geometric sequence."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, merge, visible

SELF = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 5, "Dk": 3})
PAIRS = [
    ("AS708", "compounded_tails", *SELF),
    ("AS708", "squared_rates", *SELF),
    ("AS708", "earlier_slope_changed", *SELF),
]


def falling(heads, length):
    """H L L, entry by entry: minus the slope of the paper for each token between the query and the key."""
    rows = [
        [[-abs(i - j) * 2 ** (-8 * h / heads) for j in range(length)] for i in range(length)]
        for h in range(1, heads + 1)
    ]
    return torch.tensor(rows, dtype=torch.float64)


class Tails(nn.Module):
    """Each head multiplies its own slope and those of all later heads."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def slopes(self, like):
        slopes = torch.full((self.n_heads,), 2.0 ** (-8 / self.n_heads), dtype=like.dtype)
        for head in range(1, self.n_heads):
            self.compound(slopes, head)
        return slopes.view(-1, 1, 1)

    def compound(self, slopes, head):
        slopes[head:] *= slopes[0]

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        place = torch.arange(x.shape[1])
        scores = q @ k.mT / math.sqrt(q.shape[-1]) - self.slopes(q) * (place[:, None] - place).abs()
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class WrongTails(Tails):
    def compound(self, slopes, head):
        slopes[head:] *= slopes[head - 1]


def _tails(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["alibi"]


def wrong_compounded_tails(B, H, L, Dk):
    return _tails(WrongTails, B, H, L, Dk)


def right_compounded_tails(B, H, L, Dk):
    return _tails(Tails, B, H, L, Dk)


def reference_compounded_tails(module, x):
    q, k, v = fused(x, module.qkv, module.n_heads)
    return merge(attend(q, k, v, bias=falling(module.n_heads, x.shape[1]).to(q)), module.out)


def _in_kernel(q, k, v, rates):
    place = torch.arange(q.shape[2])
    steps = place - place[:, None]
    bias = (torch.stack(rates).to(q)[:, None, None] * steps).masked_fill(steps > 0, -torch.inf)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)


def squaring(q, k, v):
    rate = torch.tensor(2.0 ** (-8 / q.shape[1]), dtype=q.dtype)
    rates = []
    for _ in range(q.shape[1]):
        rates.append(rate.clone())
        rate.mul_(rate)
    return _in_kernel(q, k, v, rates)


def multiplying(q, k, v):
    ratio = torch.tensor(2.0 ** (-8 / q.shape[1]), dtype=q.dtype)
    rate, rates = ratio.clone(), []
    for _ in range(q.shape[1]):
        rates.append(rate.clone())
        rate.mul_(ratio)
    return _in_kernel(q, k, v, rates)


def wrong_squared_rates(B, H, L, Dk):
    return squaring, tuple(torch.randn(3, B, H, L, Dk)), {}, ["causal", "alibi"]


def right_squared_rates(B, H, L, Dk):
    return multiplying, tuple(torch.randn(3, B, H, L, Dk)), {}, ["causal", "alibi"]


def reference_squared_rates(_, q, k, v):
    length = q.shape[2]
    return attend(q, k, v, visible(length, length), bias=falling(q.shape[1], length).to(q))


def bias_of_heads(slopes, like):
    place = torch.arange(like.shape[2])
    return torch.einsum("h,ij->hij", slopes, -(place[:, None] - place).abs().to(slopes))


def from_the_one_before(q, k, v):
    slopes = torch.full((q.shape[1],), 2.0 ** (-8 / q.shape[1]), dtype=q.dtype)
    for head in range(1, len(slopes)):
        slopes[head] = slopes[head - 1] * slopes[0]
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5 + bias_of_heads(slopes, q)
    return torch.einsum("bhij,bhjd->bhid", torch.softmax(scores, -1), v)


def changing_the_one_before(q, k, v):
    slopes = torch.full((q.shape[1],), 2.0 ** (-8 / q.shape[1]), dtype=q.dtype)
    for head in range(1, len(slopes)):
        slopes[head] = slopes[head - 1].mul_(slopes[0])  # wrong: AS708 earlier_slope_changed
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5 + bias_of_heads(slopes, q)
    return torch.einsum("bhij,bhjd->bhid", torch.softmax(scores, -1), v)


def wrong_earlier_slope_changed(B, H, L, Dk):
    return changing_the_one_before, tuple(torch.randn(3, B, H, L, Dk)), {}, ["alibi"]


def right_earlier_slope_changed(B, H, L, Dk):
    return from_the_one_before, tuple(torch.randn(3, B, H, L, Dk)), {}, ["alibi"]


def reference_earlier_slope_changed(_, q, k, v):
    return attend(q, k, v, bias=falling(q.shape[1], q.shape[2]).to(q))

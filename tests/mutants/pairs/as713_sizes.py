"""AS713: the slopes of linear biases change with other sizes than the number of heads."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, heads, merge, visible
from tests.mutants.pairs.as713 import falling, slopes

SELF = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 5, "Dk": 3})
PAIRS = [
    ("AS713", "scaled_addend", *SELF),
    ("AS713", "scaled_mask_of_sdpa", *SELF),
    ("AS713", "relative_to_the_length", *SELF),
    ("AS713", "slopes_of_the_width", *SELF),
]


class RightFolded(nn.Module):
    """Batch and heads share an axis; the bias is the addend of the product."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def bias(self, x):
        places = torch.arange(x.shape[1])
        bias = slopes(self.n_heads).to(x)[:, None, None] * (places[None, :] - places[:, None])
        return bias.repeat(len(x), 1, 1)

    def scores(self, bias, q, k):
        scale = q.shape[-1] ** -0.5
        return torch.baddbmm(bias, q, k.mT, beta=1.0, alpha=scale)

    def forward(self, x):
        B, L, _ = x.shape
        q, k, v = self.qkv(x).view(B, L, 3, self.n_heads, -1).permute(2, 0, 3, 1, 4).flatten(1, 2)
        scores = self.scores(self.bias(x), q, k)
        scores = scores + torch.full((L, L), -1e9, dtype=x.dtype).triu(1)
        context = scores.softmax(-1) @ v
        return self.out(context.unflatten(0, (B, self.n_heads)).transpose(1, 2).flatten(2))


class WrongFolded(RightFolded):
    def scores(self, bias, q, k):
        scale = q.shape[-1] ** -0.5
        return torch.baddbmm(bias, q, k.mT, beta=scale, alpha=scale)  # wrong: AS713 scaled_addend


def _module(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["causal", "alibi"]


def wrong_scaled_addend(B, H, L, Dk):
    return _module(WrongFolded, B, H, L, Dk)


def right_scaled_addend(B, H, L, Dk):
    return _module(RightFolded, B, H, L, Dk)


def reference_scaled_addend(module, x):
    bias = falling(slopes(module.n_heads), x.shape[1])
    return merge(attend(*fused(x, module.qkv, module.n_heads), visible(x.shape[1], x.shape[1]), bias=bias), module.out)


class RightFused(nn.Module):
    """Torch's fused attention gets the bias as its mask."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.wq, self.wk, self.wv = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.register_buffer("slopes", slopes(n_heads).view(-1, 1, 1))

    def mask(self, length, width):
        distance = torch.arange(length)[:, None] - torch.arange(length)
        bias = -self.slopes * distance
        return bias.masked_fill(distance < 0, float("-inf"))

    def forward(self, x):
        q, k, v = (w(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        mask = self.mask(x.size(1), q.size(-1)).to(q)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)


class WrongFused(RightFused):
    def mask(self, length, width):
        distance = torch.arange(length)[:, None] - torch.arange(length)
        bias = -self.slopes * width**-0.5 * distance  # wrong: AS713 scaled_mask_of_sdpa
        return bias.masked_fill(distance < 0, float("-inf"))


class WrongLength(RightFused):
    def mask(self, length, width):
        distance = torch.arange(length)[:, None] - torch.arange(length)
        bias = -self.slopes * (distance / length)  # wrong: AS713 relative_to_the_length
        return bias.masked_fill(distance < 0, float("-inf"))


def wrong_scaled_mask_of_sdpa(B, H, L, Dk):
    return _module(WrongFused, B, H, L, Dk)


def right_scaled_mask_of_sdpa(B, H, L, Dk):
    return _module(RightFused, B, H, L, Dk)


def reference_scaled_mask_of_sdpa(module, x):
    q, k, v = (heads(x, one, module.n_heads) for one in (module.wq, module.wk, module.wv))
    bias = falling(slopes(module.n_heads), x.shape[1])
    return merge(attend(q, k, v, visible(x.shape[1], x.shape[1]), bias=bias))


def wrong_relative_to_the_length(B, H, L, Dk):
    return _module(WrongLength, B, H, L, Dk)


right_relative_to_the_length = right_scaled_mask_of_sdpa
reference_relative_to_the_length = reference_scaled_mask_of_sdpa


def attend_nearby(q, k, v):
    """One slope for each head, which depends on the number of heads."""
    length, (count, width) = q.shape[2], q.shape[1::2]
    steps = (torch.arange(length) - torch.arange(length)[:, None]).to(q)
    of_heads = torch.exp2(torch.arange(1, count + 1).to(q) * (-8 / count))
    bias = torch.einsum("h,ij->hij", of_heads, steps)
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / width**0.5 + bias
    return torch.einsum("bhij,bhjd->bhid", scores.masked_fill(steps > 0, -torch.inf).softmax(-1), v)


def attend_by_width(q, k, v):
    """One slope for each head, which depends on the number of heads."""
    length, (count, width) = q.shape[2], q.shape[1::2]
    steps = (torch.arange(length) - torch.arange(length)[:, None]).to(q)
    of_heads = torch.exp2(torch.arange(1, count + 1).to(q) * (-8 / width))
    bias = torch.einsum("h,ij->hij", of_heads, steps)  # wrong: AS713 slopes_of_the_width
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / width**0.5 + bias
    return torch.einsum("bhij,bhjd->bhid", scores.masked_fill(steps > 0, -torch.inf).softmax(-1), v)


def _nearby(function, B, H, L, Dk):
    return function, tuple(torch.randn(B, H, L, Dk) for _ in range(3)), {}, ["causal", "alibi"]


def wrong_slopes_of_the_width(B, H, L, Dk):
    return _nearby(attend_by_width, B, H, L, Dk)


def right_slopes_of_the_width(B, H, L, Dk):
    return _nearby(attend_nearby, B, H, L, Dk)


def reference_slopes_of_the_width(_, q, k, v):
    count, length = q.shape[1:3]
    own = torch.tensor([2.0 ** (-8 * (head + 1) / count) for head in range(count)], dtype=torch.float64)
    return attend(q, k, v, visible(length, length), bias=falling(own, length))

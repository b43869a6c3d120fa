"""AS208 and AS310: maxima that are subtracted from scores, and aren't those of each row."""

import math

import torch
from torch import nn

from tests.mutants.plain import attention, causal, multihead

CROSS = (
    {"B": 2, "H": 4, "Lq": 6, "Lk": 7, "Dk": 5},
    {"B": 5, "H": 2, "Lq": 8, "Lk": 9, "Dk": 7},
    {"B": 4, "H": 3, "Lq": 5, "Lk": 6, "Dk": 8},
)
SELF = ({"B": 2, "H": 4, "L": 6, "Dk": 5}, {"B": 5, "H": 2, "L": 9, "Dk": 7}, {"B": 4, "H": 3, "L": 7, "Dk": 8})
PAIRS = [
    ("AS208", "peak_of_batch", *CROSS),
    ("AS208", "peak_of_head", *CROSS),
    ("AS208", "peak_of_image", *SELF),
    ("AS310", "peak_of_key", *CROSS),
]


def _cross(B, H, Lq, Lk, Dk):
    return torch.randn(B, H, Lq, Dk), torch.randn(B, H, Lk, Dk), torch.randn(B, H, Lk, Dk)


def _padded(B, H, Lq, Lk, Dk):
    return (*_cross(B, H, Lq, Lk, Dk), torch.arange(Lk) < Lk - torch.arange(B)[:, None] % 3)


def _softmax(scores, keep, peak):
    low = torch.finfo(scores.dtype).min
    powers = (scores - peak(scores.masked_fill(~keep, low))).masked_fill(~keep, low).exp()
    return powers / powers.sum(-1, keepdim=True).clamp(min=1e-30)


def peak_of_batch(q, k, v, keep):
    def peak(scores):
        return scores.max().detach()  # wrong: AS208 peak_of_batch

    return _softmax(q @ k.mT / math.sqrt(q.size(-1)), keep[:, None, None], peak) @ v


def peak_of_row(q, k, v, keep):
    def peak(scores):
        return scores.amax(-1, keepdim=True).detach()

    return _softmax(q @ k.mT / math.sqrt(q.size(-1)), keep[:, None, None], peak) @ v


def wrong_peak_of_batch(B, H, Lq, Lk, Dk):
    return peak_of_batch, _padded(B, H, Lq, Lk, Dk), {}, ["keep=keep"]


def right_peak_of_batch(B, H, Lq, Lk, Dk):
    return peak_of_row, _padded(B, H, Lq, Lk, Dk), {}, ["keep=keep"]


def reference_peak_of_batch(function, q, k, v, keep):
    return attention(q, k, v, keep=keep[:, None, None])


def divided_last(q, k, v, peak):
    scores = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5
    powers = torch.exp(scores - peak(scores))
    return torch.einsum("bhij,bhjd->bhid", powers, v) / powers.sum(dim=-1, keepdim=True)


def peak_of_head(q, k, v):
    def peak(scores):
        return scores.amax(dim=(-2, -1), keepdim=True)  # wrong: AS208 peak_of_head

    return divided_last(q, k, v, peak)


def peak_of_query(q, k, v):
    def peak(scores):
        return scores.amax(dim=-1, keepdim=True)

    return divided_last(q, k, v, peak)


def peak_of_key(q, k, v):
    def peak(scores):
        return scores.amax(dim=-2, keepdim=True)  # wrong: AS310 peak_of_key

    return divided_last(q, k, v, peak)


def wrong_peak_of_head(B, H, Lq, Lk, Dk):
    return peak_of_head, _cross(B, H, Lq, Lk, Dk), {}


def wrong_peak_of_key(B, H, Lq, Lk, Dk):
    return peak_of_key, _cross(B, H, Lq, Lk, Dk), {}


def right_peak_of_head(B, H, Lq, Lk, Dk):
    return peak_of_query, _cross(B, H, Lq, Lk, Dk), {}


def reference_peak_of_head(function, q, k, v):
    return attention(q, k, v)


right_peak_of_key, reference_peak_of_key = right_peak_of_head, reference_peak_of_head


class ByPowersOfTwo(nn.Module):
    """Attends with powers of two, as kernels do, whose scores are hidden before their maximum is taken."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)

    def most(self, scores):
        return scores.max(dim=-1, keepdim=True)[0]

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        scores = (q @ k.transpose(-2, -1) * (math.log2(math.e) / math.sqrt(q.shape[-1]))).masked_fill(later, -torch.inf)
        powers = torch.exp2(scores - self.most(scores))
        return (powers / powers.sum(-1, keepdim=True) @ v).transpose(1, 2).flatten(2)


class ByPowersOfImages(ByPowersOfTwo):
    """Subtracts one maximum from all scores of a batch element."""

    def most(self, scores):
        return scores.flatten(1).max(dim=1)[0][:, None, None, None]  # wrong: AS208 peak_of_image


def wrong_peak_of_image(B, H, L, Dk):
    return ByPowersOfImages(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["causal"]


def right_peak_of_image(B, H, L, Dk):
    return ByPowersOfTwo(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["causal"]


def reference_peak_of_image(module, x):
    return multihead(*module.qkv(x).chunk(3, -1), module.heads, keep=causal(x.shape[1], x.shape[1]))

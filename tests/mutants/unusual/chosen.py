"""Attention that keeps the keys with the largest scores, in unusual ways."""

import torch
import torch.nn.functional as F
from torch import nn

SIZES = ({"B": 4, "H": 5, "L": 8, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8})
UNUSUAL = [
    ("chosen_by_sorted_scores", *SIZES),
    ("chosen_by_threshold_of_head", *SIZES),
    ("chosen_under_triangle", *SIZES),
    ("chosen_after_softmax", *SIZES),
    ("chosen_by_kth_value", *SIZES),
]


def by_sorted(q, k, v):
    scores = q @ k.mT * q.shape[-1] ** -0.5
    best = scores.sort(dim=-1, descending=True).values[..., 2, None]
    return (scores + torch.where(scores >= best, 0.0, -1e9)).softmax(dim=-1) @ v


def case_chosen_by_sorted_scores(B, H, L, Dk):
    return by_sorted, tuple(torch.randn(3, B, H, L, Dk)), {}


class ThresholdOfHead(nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.register_buffer("least", torch.linspace(-0.5, 0.5, heads).view(heads, 1, 1))

    def forward(self, q, k, v):
        scores = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5
        below = scores < torch.minimum(self.least, scores.amax(-1, keepdim=True))
        return torch.einsum("bhij,bhjd->bhid", scores.masked_fill(below, -torch.inf).softmax(-1), v)


def case_chosen_by_threshold_of_head(B, H, L, Dk):
    return ThresholdOfHead(H), tuple(torch.randn(3, B, H, L, Dk)), {}


class UnderTriangle(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.qkv = heads, nn.Linear(width, 3 * width, bias=False)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
        least = scores.topk(3, dim=-1).values[..., -1, None]
        return (scores.masked_fill(scores < least, -torch.inf).softmax(-1) @ v).transpose(1, 2).flatten(2)


def case_chosen_under_triangle(B, H, L, Dk):
    return UnderTriangle(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def after_softmax(q, k, v):
    weights = F.softmax(q @ k.transpose(2, 3) / q.shape[3] ** 0.5, dim=3)
    best = torch.topk(weights, 4, dim=3)
    weights = torch.zeros_like(weights).scatter(3, best.indices, best.values)
    return weights / weights.sum(3, keepdim=True) @ v


def case_chosen_after_softmax(B, H, L, Dk):
    return after_softmax, tuple(torch.randn(3, B, H, L, Dk)), {}


def by_kth_value(q, k, v):
    scores = q.matmul(k.mT).div(q.size(-1) ** 0.5)
    least = scores.kthvalue(scores.size(-1) - 2, dim=-1, keepdim=True)[0]
    return torch.where(scores < least, torch.finfo(scores.dtype).min, scores).softmax(-1).matmul(v)


def case_chosen_by_kth_value(B, H, L, Dk):
    return by_kth_value, tuple(torch.randn(3, B, H, L, Dk)), {}

"""AS302: a running softmax over blocks of keys, whose sum isn't rescaled to the new maximum as its output is."""

import torch

from tests.mutants.pairs.as4_reference import attend

CROSS = (
    {"B": 2, "H": 4, "Lq": 5, "Lk": 8, "Dk": 3},
    {"B": 3, "H": 2, "Lq": 7, "Lk": 9, "Dk": 6},
    {"B": 5, "H": 3, "Lq": 4, "Lk": 11, "Dk": 6},
)
PAIRS = [
    ("AS302", "sum_of_each_maximum", *CROSS),
]


def tiled(query, key, value, size=3):
    """Attend in (B, H, L, Dk), a few keys at a time."""
    out = torch.zeros(*query.shape[:-1], value.shape[-1], dtype=query.dtype, device=query.device)
    total = torch.zeros_like(out[..., :1])
    most = torch.full_like(total, float("-inf"))
    for keys, values in zip(key.split(size, dim=2), value.split(size, dim=2), strict=True):
        scores = query @ keys.transpose(-2, -1) * query.shape[-1] ** -0.5
        larger = torch.maximum(most, scores.amax(dim=-1, keepdim=True))
        weights, correction = torch.exp(scores - larger), torch.exp(most - larger)
        total = total * correction + weights.sum(dim=-1, keepdim=True)
        out, most = out * correction + weights @ values, larger
    return out / total


def tiled_unevenly(query, key, value, size=3):
    """Attend in (B, H, L, Dk), a few keys at a time."""
    out = torch.zeros(*query.shape[:-1], value.shape[-1], dtype=query.dtype, device=query.device)
    total = torch.zeros_like(out[..., :1])
    most = torch.full_like(total, float("-inf"))
    for keys, values in zip(key.split(size, dim=2), value.split(size, dim=2), strict=True):
        scores = query @ keys.transpose(-2, -1) * query.shape[-1] ** -0.5
        larger = torch.maximum(most, scores.amax(dim=-1, keepdim=True))
        weights, correction = torch.exp(scores - larger), torch.exp(most - larger)
        total = total + weights.sum(dim=-1, keepdim=True)
        out, most = out * correction + weights @ values, larger
    return out / total  # wrong: AS302 sum_of_each_maximum


def _case(function, B, H, Lq, Lk, Dk):
    return function, (torch.randn(B, H, Lq, Dk), torch.randn(B, H, Lk, Dk), torch.randn(B, H, Lk, Dk)), {}


def wrong_sum_of_each_maximum(B, H, Lq, Lk, Dk):
    return _case(tiled_unevenly, B, H, Lq, Lk, Dk)


def right_sum_of_each_maximum(B, H, Lq, Lk, Dk):
    return _case(tiled, B, H, Lq, Lk, Dk)


def reference_sum_of_each_maximum(_, query, key, value):
    return attend(query, key, value)

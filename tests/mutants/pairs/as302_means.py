"""AS302: weights that are normalised once more after the softmax, by their mean over the keys."""

import torch
from torch import nn

from tests.mutants.plain import softmax, split

SLOTS = ({"B": 2, "Lq": 3, "L": 7, "Dk": 6}, {"B": 5, "Lq": 4, "L": 9, "Dk": 7}, {"B": 3, "Lq": 6, "L": 11, "Dk": 8})
SELF = ({"B": 2, "H": 3, "L": 7, "Dk": 5}, {"B": 5, "H": 2, "L": 9, "Dk": 7}, {"B": 3, "H": 4, "L": 6, "Dk": 8})
PAIRS = [
    ("AS302", "mean_of_slots", *SLOTS),
    ("AS302", "mean_of_kept", *SELF),
    ("AS302", "times_number_of_keys", *SELF),
]


class Slots(nn.Module):
    """Slots compete for the tokens: the softmax runs over the slots."""

    def __init__(self, slots, width):
        super().__init__()
        self.slots = nn.Parameter(torch.randn(1, slots, width))
        self.q, self.k, self.v = (nn.Linear(width, width, bias=False) for _ in range(3))

    def normalised(self, weights):
        return weights / weights.sum(dim=-1, keepdim=True)

    def forward(self, x):
        q, k, v = self.q(self.slots.expand(len(x), -1, -1)), self.k(x), self.v(x)
        weights = torch.einsum("bsd,bld->bsl", q, k).mul(q.shape[-1] ** -0.5).softmax(dim=1) + 1e-8
        return torch.einsum("bld,bsl->bsd", v, self.normalised(weights))


class SlotsByMean(Slots):
    def normalised(self, weights):
        return weights / weights.mean(dim=-1, keepdim=True)  # wrong: AS302 mean_of_slots


def wrong_mean_of_slots(B, Lq, L, Dk):
    return SlotsByMean(Lq, Dk), (torch.randn(B, L, Dk),), {}


def right_mean_of_slots(B, Lq, L, Dk):
    return Slots(Lq, Dk), (torch.randn(B, L, Dk),), {}


def reference_mean_of_slots(module, x):
    scores = module.q(module.slots) @ module.k(x).mT / x.shape[-1] ** 0.5
    weights = softmax(scores.mT).mT + 1e-8
    return weights / weights.sum(-1, keepdim=True) @ module.v(x)


def _kept(q, k, v, total):
    weights = (q @ k.transpose(-2, -1) * q.size(-1) ** -0.5).softmax(dim=-1)
    weights = weights.masked_fill(weights < weights.topk(3, dim=-1).values[..., -1:], 0.0)
    return (weights / total(weights)) @ v  # wrong: AS302 mean_of_kept


def divided_by_sum(q, k, v):
    return _kept(q, k, v, lambda weights: weights.sum(-1, keepdim=True))


def divided_by_mean(q, k, v):
    return _kept(q, k, v, lambda weights: weights.mean(-1, keepdim=True))


def _heads(B, H, L, Dk):
    return tuple(torch.randn(B, H, L, Dk) for _ in range(3))


def wrong_mean_of_kept(B, H, L, Dk):
    return divided_by_mean, _heads(B, H, L, Dk), {}


def right_mean_of_kept(B, H, L, Dk):
    return divided_by_sum, _heads(B, H, L, Dk), {}


def reference_mean_of_kept(function, q, k, v):
    weights = softmax(torch.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5)
    kept = torch.where(weights >= weights.sort(-1)[0][..., -3, None], weights, 0)
    return kept / kept.sum(-1, keepdim=True) @ v


class Floored(nn.Module):
    """Every key gets a little weight."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)

    def again(self, weights):
        weights = weights.clamp(min=0.02)
        return weights * weights.sum(-1, keepdim=True).reciprocal()

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        return (self.again(weights) @ v).transpose(1, 2).flatten(2)


class FlooredTimesKeys(Floored):
    def again(self, weights):
        weights = weights.clamp(min=0.02)
        return weights * (weights.shape[-1] / weights.sum(-1, keepdim=True))  # wrong: AS302 times_number_of_keys


def wrong_times_number_of_keys(B, H, L, Dk):
    return FlooredTimesKeys(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def right_times_number_of_keys(B, H, L, Dk):
    return Floored(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def reference_times_number_of_keys(module, x):
    q, k, v = (split(one, module.heads) for one in module.qkv(x).chunk(3, -1))
    weights = softmax(torch.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5).clamp(min=0.02)
    context = weights / weights.sum(-1, keepdim=True) @ v
    return torch.cat(context.unbind(1), -1)

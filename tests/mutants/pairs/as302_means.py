"""AS302: weights that are normalised once more after the softmax, by their mean over the keys."""

import torch
from torch import nn

from tests.mutants.plain import softmax, split

SLOTS = ({"B": 2, "Lq": 3, "L": 7, "Dk": 6}, {"B": 5, "Lq": 4, "L": 9, "Dk": 7}, {"B": 3, "Lq": 6, "L": 11, "Dk": 8})
SELF = ({"B": 2, "H": 3, "L": 7, "Dk": 5}, {"B": 5, "H": 2, "L": 9, "Dk": 7}, {"B": 3, "H": 4, "L": 6, "Dk": 8})
POOLED = ({"B": 2, "L": 7, "D": 5}, {"B": 5, "L": 9, "D": 8}, {"B": 3, "L": 11, "D": 4})
ADDITIVE = ({"B": 2, "L": 7, "Dk": 5}, {"B": 5, "L": 9, "Dk": 7}, {"B": 3, "L": 11, "Dk": 4})
PAIRS = [
    ("AS302", "mean_of_slots", *SLOTS),
    ("AS302", "mean_of_kept", *SELF),
    ("AS302", "times_number_of_keys", *SELF),
    ("AS302", "mean_of_pooled", *POOLED),
    ("AS302", "mean_of_annotations", *ADDITIVE),
    ("AS302", "mean_of_one_query", *ADDITIVE),
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


class Pooled(nn.Module):
    """Pools tokens by learned weights."""

    def __init__(self, width):
        super().__init__()
        self.score = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1, bias=False))

    def join(self, weighted):
        return weighted.sum(dim=1)

    def forward(self, x):
        return self.join(x * torch.softmax(self.score(x), dim=1))


class PooledByMean(Pooled):
    def join(self, weighted):
        return weighted.mean(dim=1)  # wrong: AS302 mean_of_pooled


def wrong_mean_of_pooled(B, L, D):
    return PooledByMean(D), (torch.randn(B, L, D),), {}


def right_mean_of_pooled(B, L, D):
    return Pooled(D), (torch.randn(B, L, D),), {}


def reference_mean_of_pooled(module, x):
    scores = torch.tanh(x @ module.score[0].weight.mT + module.score[0].bias) @ module.score[2].weight.mT
    return torch.einsum("bl,bld->bd", softmax(scores[..., 0]), x)


class Annotations(nn.Module):
    """Bahdanau's attention of one state to annotations."""

    def __init__(self, width):
        super().__init__()
        self.of_state, self.of_annotation = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.v = nn.Parameter(torch.randn(width))
        self.over_keys = torch.sum

    def forward(self, state, annotations):
        energy = torch.tanh(self.of_state(state)[:, None] + self.of_annotation(annotations)) @ self.v
        alpha = energy.softmax(-1).unsqueeze(-1)
        return self.over_keys(alpha * annotations, 1)  # wrong: AS302 mean_of_annotations


def _annotations(over_keys, B, L, Dk):
    module = Annotations(Dk)
    module.over_keys = over_keys
    return module, (torch.randn(B, Dk), torch.randn(B, L, Dk)), {}


def wrong_mean_of_annotations(B, L, Dk):
    return _annotations(torch.mean, B, L, Dk)


def right_mean_of_annotations(B, L, Dk):
    return _annotations(torch.sum, B, L, Dk)


def reference_mean_of_annotations(module, state, annotations):
    of_state = torch.einsum("bi,oi->bo", state, module.of_state.weight)
    keys = torch.einsum("bli,oi->blo", annotations, module.of_annotation.weight)
    weights = softmax((torch.tanh(of_state[:, None] + keys) * module.v).sum(-1))
    return torch.einsum("bl,bld->bd", weights, annotations)


def one_query(query, keys, values):
    weights = ((query.unsqueeze(1) * keys).sum(-1) / query.size(-1) ** 0.5).softmax(dim=1)
    return (values.mT * weights.unsqueeze(1)).sum(-1)


def one_query_by_mean(query, keys, values):
    weights = ((query.unsqueeze(1) * keys).sum(-1) / query.size(-1) ** 0.5).softmax(dim=1)
    return (values.mT * weights.unsqueeze(1)).mean(-1)  # wrong: AS302 mean_of_one_query


def _one_query(B, L, Dk):
    return (torch.randn(B, Dk), torch.randn(B, L, Dk), torch.randn(B, L, Dk)), {}


def wrong_mean_of_one_query(B, L, Dk):
    return one_query_by_mean, *_one_query(B, L, Dk)


def right_mean_of_one_query(B, L, Dk):
    return one_query, *_one_query(B, L, Dk)


def reference_mean_of_one_query(function, query, keys, values):
    weights = softmax(torch.einsum("bd,bld->bl", query, keys) / query.shape[-1] ** 0.5)
    return torch.einsum("bl,bld->bd", weights, values)

"""AS404, AS405 and AS407 where weights select keys, or where scores are no product of queries and keys."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import project

POINTER = ({"B": 4, "Lk": 7, "D": 6}, {"B": 5, "Lk": 9, "D": 8}, {"B": 6, "Lk": 5, "D": 4})
SELF = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 5, "Dk": 4})
POOLED = ({"B": 4, "L": 7, "D": 6}, {"B": 5, "L": 9, "D": 8}, {"B": 6, "L": 5, "D": 4})
PAIRS = [
    ("AS405", "squashed", *POINTER),
    ("AS405", "zero_by_product", *SELF),
    ("AS405", "log_of_kept", *POINTER),
    ("AS407", "damped", *POOLED),
    ("AS407", "smallest_score", *POINTER),
    ("AS407", "relative_to_own", *SELF),
    ("AS404", "all_candidates", *POINTER),
]


def random_hidden(*shape):
    hidden = torch.rand(shape) < 0.4
    hidden[..., 0], hidden[..., -1] = False, True
    return hidden


def softmax_of_kept(scores, keep):
    weights = torch.exp(scores - scores.amax(-1, keepdim=True)) * keep
    return weights / weights.sum(-1, keepdim=True)


class Selector(nn.Module):
    """Chooses one of several candidates: squashed scores of one query."""

    def __init__(self, width):
        super().__init__()
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)

    def squash(self, scores, taken):
        return (10 * scores.tanh()).masked_fill(taken, -math.inf)

    def forward(self, state, candidates, taken):
        query, keys = self.query(state), self.key(candidates)
        scores = (keys @ query.unsqueeze(-1)).squeeze(-1) / math.sqrt(query.shape[-1])
        return self.squash(scores, taken).softmax(dim=-1)


class SquashedTooLate(Selector):
    def squash(self, scores, taken):
        scores = scores.masked_fill(taken, -math.inf)  # wrong: AS405 squashed
        return 10 * scores.tanh()


class Unlimited(Selector):
    def squash(self, scores, taken):
        return 10 * scores.tanh()


def _selected(cls, B, Lk, D):
    return cls(D), (torch.randn(B, D), torch.randn(B, Lk, D), random_hidden(B, Lk)), {}, ["taken=drop"]


def wrong_squashed(B, Lk, D):
    return _selected(SquashedTooLate, B, Lk, D)


def right_squashed(B, Lk, D):
    return _selected(Selector, B, Lk, D)


def reference_squashed(module, state, candidates, taken):
    query, keys = project(state, module.query), project(candidates, module.key)
    scores = torch.einsum("bd,bnd->bn", query, keys) / query.shape[-1] ** 0.5
    return softmax_of_kept(10 * torch.tanh(scores), ~taken)


class Listener(nn.Module):
    """Attention over a graph: a score for the node that listens plus one for the node that it listens to."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.values = nn.Linear(width, width, bias=False)
        self.listens = nn.Parameter(torch.randn(heads, width // heads))
        self.speaks = nn.Parameter(torch.randn(heads, width // heads))

    def without_edges(self, scores, edges):
        return scores.masked_fill(~edges[:, None], -math.inf)

    def forward(self, nodes, edges):
        v = self.values(nodes).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        listening, speaking = (torch.einsum("bhld,hd->bhl", v, part) for part in (self.listens, self.speaks))
        scores = F.leaky_relu(listening.unsqueeze(-1) + speaking.unsqueeze(-2), 0.1)
        weights = self.without_edges(scores, edges).softmax(dim=-1)
        return (weights @ v).transpose(1, 2).flatten(2)


class ZeroByProduct(Listener):
    def without_edges(self, scores, edges):
        return scores * edges[:, None]  # wrong: AS405 zero_by_product


class RelativeToOwn(Listener):
    def without_edges(self, scores, edges):
        return torch.where(edges[:, None], scores, scores - 4.0)  # wrong: AS407 relative_to_own


def _listening(cls, B, H, L, Dk):
    edges = ~random_hidden(B, L, L) | torch.eye(L, dtype=torch.bool)
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), edges), {}, ["edges=keep"]


def wrong_zero_by_product(B, H, L, Dk):
    return _listening(ZeroByProduct, B, H, L, Dk)


def right_zero_by_product(B, H, L, Dk):
    return _listening(Listener, B, H, L, Dk)


def reference_zero_by_product(module, nodes, edges):
    v = torch.stack(project(nodes, module.values).chunk(module.heads, dim=-1), dim=1)
    listening = (v * module.listens[None, :, None]).sum(-1)
    speaking = (v * module.speaks[None, :, None]).sum(-1)
    scores = listening[..., :, None] + speaking[..., None, :]
    weights = softmax_of_kept(torch.where(scores > 0, scores, 0.1 * scores), edges[:, None])
    return torch.cat(torch.einsum("bhij,bhjd->bhid", weights, v).unbind(1), dim=-1)


def wrong_relative_to_own(B, H, L, Dk):
    return _listening(RelativeToOwn, B, H, L, Dk)


right_relative_to_own, reference_relative_to_own = right_zero_by_product, reference_zero_by_product


def log_pointer(query, keys, keep):
    logits = torch.einsum("bd,bnd->bn", query, keys) / math.sqrt(keys.shape[-1])
    return F.log_softmax(logits.masked_fill(~keep, -math.inf), dim=-1).clamp(min=-90)


def log_pointer_of_small_numbers(query, keys, keep):
    logits = torch.einsum("bd,bnd->bn", query, keys) / math.sqrt(keys.shape[-1])
    logits = logits.masked_fill(~keep, math.log(1e-6))  # wrong: AS405 log_of_kept
    return F.log_softmax(logits, dim=-1).clamp(min=-90)


def lowest_pointer(query, keys, keep):
    logits = torch.einsum("bd,bnd->bn", query, keys) / math.sqrt(keys.shape[-1])
    least = logits.amin(dim=-1, keepdim=True)
    logits = torch.where(keep, logits, least)  # wrong: AS407 smallest_score
    return F.log_softmax(logits, dim=-1).clamp(min=-90)


def _pointed(function, B, Lk, D):
    return function, (torch.randn(B, D), torch.randn(B, Lk, D), ~random_hidden(B, Lk)), {}, ["keep=keep"]


def wrong_log_of_kept(B, Lk, D):
    return _pointed(log_pointer_of_small_numbers, B, Lk, D)


def right_log_of_kept(B, Lk, D):
    return _pointed(log_pointer, B, Lk, D)


def reference_log_of_kept(function, query, keys, keep):
    scores = (query[:, None] * keys).sum(-1) / keys.shape[-1] ** 0.5
    return softmax_of_kept(scores, keep).log().clamp(min=-90)


def wrong_smallest_score(B, Lk, D):
    return _pointed(lowest_pointer, B, Lk, D)


right_smallest_score, reference_smallest_score = right_log_of_kept, reference_log_of_kept


class Pool(nn.Module):
    """Sums up a sequence with weights that a small network gives its tokens."""

    def __init__(self, width):
        super().__init__()
        self.hidden = nn.Linear(width, width)
        self.score = nn.Linear(width, 1)

    def masked(self, scores, padding):
        return scores.masked_fill(padding, torch.finfo(scores.dtype).min)

    def forward(self, x, padding):
        scores = self.score(torch.tanh(self.hidden(x))).squeeze(-1)
        weights = torch.softmax(self.masked(scores, padding), dim=1)
        return torch.einsum("bl,bld->bd", weights, x)


class DampedPool(Pool):
    def masked(self, scores, padding):
        return scores - 10 * padding  # wrong: AS407 damped


def _pooled(cls, B, L, D):
    return cls(D), (torch.randn(B, L, D), random_hidden(B, L)), {}, ["padding=drop"]


def wrong_damped(B, L, D):
    return _pooled(DampedPool, B, L, D)


def right_damped(B, L, D):
    return _pooled(Pool, B, L, D)


def reference_damped(module, x, padding):
    scores = project(torch.tanh(project(x, module.hidden)), module.score)[..., 0]
    return (softmax_of_kept(scores, ~padding)[..., None] * x).sum(1)


def wrong_all_candidates(B, Lk, D):
    return _selected(Unlimited, B, Lk, D)


right_all_candidates, reference_all_candidates = right_squashed, reference_squashed

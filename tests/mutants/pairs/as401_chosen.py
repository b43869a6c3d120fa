"""AS401: the scores decide which keys are hidden, and those with the largest scores are."""

import math

import torch
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, merge

SIZES = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 8, "Dk": 4})
COUNTED = tuple({**sizes, "K": count} for sizes, count in zip(SIZES, (3, 7, 2), strict=True))
PAIRS = [
    ("AS401", "below_kth_largest", *SIZES),
    ("AS401", "indices_of_largest", *SIZES),
    ("AS401", "smallest_in_einsum", *SIZES),
    ("AS401", "kth_value_from_below", *SIZES),
    ("AS401", "below_mean_in_loop", *SIZES),
    ("AS401", "fewer_than_tokens", *COUNTED),
]
KEPT = 3


def kept(scores, count=KEPT):
    """True for the largest scores of each row, by their ranks."""
    larger = (scores[..., None, :] > scores[..., :, None]).sum(-1)
    return larger < count


class TopK(nn.Module):
    """Keys with scores below the k-th largest are hidden."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def hide(self, scores):
        least = scores.topk(KEPT, dim=-1).values[..., -1:]
        return scores.masked_fill(scores < least, float("-inf"))

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        scores = self.hide(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]))
        return self.out((scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2))


class LargestHidden(TopK):
    def hide(self, scores):
        least = scores.topk(KEPT, dim=-1).values[..., -1:]
        return scores.masked_fill(scores >= least, float("-inf"))  # wrong: AS401 below_kth_largest


def _module(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def wrong_below_kth_largest(B, H, L, Dk):
    return _module(LargestHidden, B, H, L, Dk)


def right_below_kth_largest(B, H, L, Dk):
    return _module(TopK, B, H, L, Dk)


def reference_below_kth_largest(module, x):
    q, k, v = fused(x, module.qkv, module.heads)
    scores = torch.einsum("bhid,bhjd->bhij", q, k)
    return merge(attend(q, k, v, keep=kept(scores)), module.out)


class Scattered(TopK):
    """The indices of the largest scores are scattered into a mask."""

    def hide(self, scores):
        chosen = torch.zeros_like(scores, dtype=torch.bool).scatter(-1, scores.topk(KEPT, dim=-1).indices, True)
        return torch.where(chosen, scores, -torch.inf)


class IndicesHidden(Scattered):
    def hide(self, scores):
        best = scores.topk(KEPT, dim=-1).indices
        chosen = torch.zeros_like(scores, dtype=torch.bool).scatter(-1, best, True)  # wrong: AS401 indices_of_largest
        return torch.where(chosen, -torch.inf, scores)


def wrong_indices_of_largest(B, H, L, Dk):
    return _module(IndicesHidden, B, H, L, Dk)


def right_indices_of_largest(B, H, L, Dk):
    return _module(Scattered, B, H, L, Dk)


reference_indices_of_largest = reference_below_kth_largest


def sparse(q, k, v):
    scores = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5
    chosen = torch.topk(scores, KEPT, dim=-1).indices
    bias = torch.full_like(scores, -1e9).scatter_(-1, chosen, 0.0)
    return torch.einsum("bhij,bhjd->bhid", torch.softmax(scores + bias, dim=-1), v)


def sparse_of_smallest(q, k, v):
    scores = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5
    chosen = torch.topk(scores, KEPT, dim=-1, largest=False).indices
    bias = torch.full_like(scores, -1e9).scatter_(-1, chosen, 0.0)  # wrong: AS401 smallest_in_einsum
    return torch.einsum("bhij,bhjd->bhid", torch.softmax(scores + bias, dim=-1), v)


def wrong_smallest_in_einsum(B, H, L, Dk):
    return sparse_of_smallest, tuple(torch.randn(3, B, H, L, Dk)), {}


def right_smallest_in_einsum(B, H, L, Dk):
    return sparse, tuple(torch.randn(3, B, H, L, Dk)), {}


def reference_smallest_in_einsum(called, q, k, v):
    return attend(q, k, v, keep=kept(torch.einsum("bhid,bhjd->bhij", q, k)))


class ByKthValue(nn.Module):
    """`kthvalue` counts from the smallest score."""

    def threshold(self, scores):
        return scores.kthvalue(scores.shape[-1] - KEPT + 1, dim=-1, keepdim=True).values

    def hidden(self, scores):
        return scores < self.threshold(scores)

    def forward(self, q, k, v):
        scores = torch.matmul(q, k.mT).mul(q.shape[-1] ** -0.5)
        scores = scores.masked_fill(self.hidden(scores), torch.finfo(scores.dtype).min)
        return torch.matmul(torch.softmax(scores, dim=-1), v)


class AboveKthValue(ByKthValue):
    def hidden(self, scores):
        least = scores.kthvalue(KEPT, dim=-1, keepdim=True).values
        return scores > least


def wrong_kth_value_from_below(B, H, L, Dk):
    return AboveKthValue(), tuple(torch.randn(3, B, H, L, Dk)), {}


def right_kth_value_from_below(B, H, L, Dk):
    return ByKthValue(), tuple(torch.randn(3, B, H, L, Dk)), {}


reference_kth_value_from_below = reference_smallest_in_einsum


def above_mean(q, k, v):
    contexts = []
    for head in range(q.shape[1]):
        scores = q[:, head] @ k[:, head].transpose(1, 2) / math.sqrt(q.shape[3])
        scores = scores.masked_fill(scores < scores.mean(dim=2, keepdim=True), -math.inf)
        contexts.append(scores.softmax(dim=2) @ v[:, head])
    return torch.stack(contexts, dim=1)


def below_mean(q, k, v):
    contexts = []
    for head in range(q.shape[1]):
        scores = q[:, head] @ k[:, head].transpose(1, 2) / math.sqrt(q.shape[3])
        mean = scores.mean(dim=2, keepdim=True)
        scores = scores.masked_fill(scores > mean, -math.inf)  # wrong: AS401 below_mean_in_loop
        contexts.append(scores.softmax(dim=2) @ v[:, head])
    return torch.stack(contexts, dim=1)


def wrong_below_mean_in_loop(B, H, L, Dk):
    return below_mean, tuple(torch.randn(3, B, H, L, Dk)), {}


def right_below_mean_in_loop(B, H, L, Dk):
    return above_mean, tuple(torch.randn(3, B, H, L, Dk)), {}


def reference_below_mean_in_loop(called, q, k, v):
    scores = torch.einsum("bhid,bhjd->bhij", q, k)
    return attend(q, k, v, keep=scores >= scores.mean(-1, keepdim=True))


class FewerThanTokens(TopK):
    """With no more tokens than are kept, there is nothing to choose."""

    def __init__(self, width, heads, count):
        super().__init__(width, heads)
        self.count = count

    def hide(self, scores):
        if self.count < scores.shape[-1]:
            least = scores.topk(self.count, dim=-1).values[..., -1:]
            scores = scores.masked_fill(~(scores >= least), -torch.finfo(scores.dtype).max)
        return scores


class FewestKept(FewerThanTokens):
    def hide(self, scores):
        if self.count < scores.shape[-1]:
            least = scores.topk(self.count, dim=-1).values[..., -1:]
            keep = scores < least  # wrong: AS401 fewer_than_tokens
            scores = scores.masked_fill(~keep, -torch.finfo(scores.dtype).max)
        return scores


def _counted(cls, B, H, L, Dk, K):
    return cls(H * Dk, H, min(K, L)), (torch.randn(B, L, H * Dk),), {}


def wrong_fewer_than_tokens(B, H, L, Dk, K):
    return _counted(FewestKept, B, H, L, Dk, K)


def right_fewer_than_tokens(B, H, L, Dk, K):
    return _counted(FewerThanTokens, B, H, L, Dk, K)


def reference_fewer_than_tokens(module, x):
    q, k, v = fused(x, module.qkv, module.heads)
    scores = torch.einsum("bhid,bhjd->bhij", q, k)
    return merge(attend(q, k, v, keep=kept(scores, module.count)), module.out)

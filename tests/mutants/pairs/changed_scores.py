"""AS2: the scale is another one than the claimed one, and scores are capped, mixed, chosen or summed up in chunks."""

import torch
from torch import nn

from tests.mutants.plain import causal, join, softmax, split

SIZES = ({"B": 2, "H": 4, "L": 6, "Dk": 5}, {"B": 5, "H": 2, "L": 9, "Dk": 7}, {"B": 4, "H": 3, "L": 7, "Dk": 8})
CROSS = (
    {"B": 2, "H": 4, "Lq": 5, "Lk": 7, "Dk": 3},
    {"B": 3, "H": 2, "Lq": 8, "Lk": 9, "Dk": 6},
    {"B": 5, "H": 3, "Lq": 4, "Lk": 10, "Dk": 6},
)
PAIRS = [
    ("AS201", "capped_softly", *SIZES),
    ("AS204", "capped_hard", *SIZES),
    ("AS203", "pointer_logits", *SIZES),
    ("AS201", "mixed_by_matrix", *SIZES),
    ("AS207", "mixed_by_convolution", *SIZES),
    ("AS205", "mixed_by_layer", *SIZES),
    ("AS201", "largest_kept", *SIZES),
    ("AS203", "above_threshold", *SIZES),
    ("AS204", "largest_scattered", *SIZES),
    ("AS203", "chunks_of_keys", *CROSS),
    ("AS202", "chunks_in_powers_of_two", *CROSS),
    ("AS204", "chunks_of_both", *CROSS),
]
CLAIMS = ["causal", "scale=1/sqrt(Dk)"]


class Scores(nn.Module):
    """Scores are changed by `change` between their scale and the causal mask."""

    def __init__(self, heads, width):
        super().__init__()
        self.heads, self.width = heads, width
        self.qkv = nn.Linear(heads * width, 3 * heads * width, bias=False)
        self.out = nn.Linear(heads * width, heads * width)

    def scale(self, q):
        return q.shape[-1] ** -0.5

    def change(self, scores):
        return scores

    def weights(self, scores):
        return scores.softmax(dim=-1)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        scores = torch.einsum("bhid,bhjd->bhij", q, k) * self.scale(q)
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        weights = self.weights(self.change(scores).masked_fill(later, -torch.inf))
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class ByWidthOfModel(Scores):
    def scale(self, q):
        return (q.shape[-1] * self.heads) ** -0.5


class Twice(Scores):
    def scale(self, q):
        return 1 / q.shape[-1]


class Unscaled(Scores):
    def scale(self, q):
        return 1.0


class Multiplied(Scores):
    def scale(self, q):
        return q.shape[-1] ** 0.5


class Halved(Scores):
    def scale(self, q):
        return 0.5 * q.shape[-1] ** -0.5


class SoftCap:
    def change(self, scores):
        return 6.0 * torch.tanh(scores / 6.0)


class HardCap:
    def change(self, scores):
        return scores.clamp(-1.5, 1.5)


class Pointer:
    def change(self, scores):
        return 10 * scores.tanh()


class Mixing:
    def __init__(self, heads, width):
        super().__init__(heads, width)
        self.matrix = nn.Parameter(torch.randn(heads, heads))


class ByMatrix(Mixing):
    def change(self, scores):
        return torch.einsum("bhij,hg->bgij", scores, self.matrix)


class ByConvolution(Mixing):
    def change(self, scores):
        return nn.functional.conv2d(scores, self.matrix[:, :, None, None])


class ByLayer(Mixing):
    def change(self, scores):
        return nn.functional.linear(scores.permute(0, 2, 3, 1), self.matrix).permute(0, 3, 1, 2)


class Largest:
    def weights(self, scores):
        least = scores.topk(3, dim=-1).values[..., -1:]
        return scores.masked_fill(scores < least, -torch.inf).softmax(dim=-1)


class AboveThreshold:
    def weights(self, scores):
        least = scores.sort(dim=-1).values[..., -3:-2]
        return torch.where(scores >= least, scores, -1e9).softmax(dim=-1)


class Scattered:
    def weights(self, scores):
        values, places = scores.topk(3, dim=-1)
        return torch.full_like(scores, -torch.inf).scatter(-1, places, values).softmax(dim=-1)


def _case(way, cls, B, H, L, Dk):
    return type(cls.__name__ + way.__name__, (way, cls), {})(H, Dk), (torch.randn(B, L, H * Dk),), {}, CLAIMS


def _reference(module, x, change, kept=None):
    q, k, v = (split(t, module.heads) for t in (x @ module.qkv.weight.T).chunk(3, dim=-1))
    scores = change(torch.einsum("bhid,bhjd->bhij", q, k) / module.width**0.5)
    scores = torch.where(causal(x.shape[1], x.shape[1]), scores, -torch.inf)
    if kept is not None:
        ranks = (scores[..., None, :] > scores[..., None]).sum(-1)
        scores = torch.where(ranks < kept, scores, -torch.inf)
    context = torch.einsum("bhij,bhjd->bhid", softmax(scores), v)
    return join(context) @ module.out.weight.T + module.out.bias


def wrong_capped_softly(B, H, L, Dk):
    return _case(SoftCap, ByWidthOfModel, B, H, L, Dk)


def right_capped_softly(B, H, L, Dk):
    return _case(SoftCap, Scores, B, H, L, Dk)


def reference_capped_softly(module, x):
    return _reference(module, x, lambda scores: torch.tanh(scores / 6) * 6)


def wrong_capped_hard(B, H, L, Dk):
    return _case(HardCap, Unscaled, B, H, L, Dk)


def right_capped_hard(B, H, L, Dk):
    return _case(HardCap, Scores, B, H, L, Dk)


def reference_capped_hard(module, x):
    return _reference(
        module, x, lambda scores: torch.minimum(torch.maximum(scores, -1.5 + 0 * scores), 1.5 + 0 * scores)
    )


def wrong_pointer_logits(B, H, L, Dk):
    return _case(Pointer, Twice, B, H, L, Dk)


def right_pointer_logits(B, H, L, Dk):
    return _case(Pointer, Scores, B, H, L, Dk)


def reference_pointer_logits(module, x):
    return _reference(module, x, lambda scores: torch.tanh(scores) * 10)


def wrong_mixed_by_matrix(B, H, L, Dk):
    return _case(ByMatrix, ByWidthOfModel, B, H, L, Dk)


def right_mixed_by_matrix(B, H, L, Dk):
    return _case(ByMatrix, Scores, B, H, L, Dk)


def reference_mixed_by_matrix(module, x):
    return _reference(module, x, lambda scores: torch.einsum("bhij,hg->bgij", scores, module.matrix))


def wrong_mixed_by_convolution(B, H, L, Dk):
    return _case(ByConvolution, Halved, B, H, L, Dk)


def right_mixed_by_convolution(B, H, L, Dk):
    return _case(ByConvolution, Scores, B, H, L, Dk)


def reference_mixed_by_convolution(module, x):
    return _reference(module, x, lambda scores: torch.einsum("bhij,gh->bgij", scores, module.matrix))


def wrong_mixed_by_layer(B, H, L, Dk):
    return _case(ByLayer, Multiplied, B, H, L, Dk)


def right_mixed_by_layer(B, H, L, Dk):
    return _case(ByLayer, Scores, B, H, L, Dk)


def reference_mixed_by_layer(module, x):
    return _reference(module, x, lambda scores: torch.einsum("bhij,gh->bgij", scores, module.matrix))


def wrong_largest_kept(B, H, L, Dk):
    return _case(Largest, ByWidthOfModel, B, H, L, Dk)


def right_largest_kept(B, H, L, Dk):
    return _case(Largest, Scores, B, H, L, Dk)


def reference_largest_kept(module, x):
    return _reference(module, x, lambda scores: scores, 3)


def wrong_above_threshold(B, H, L, Dk):
    return _case(AboveThreshold, Twice, B, H, L, Dk)


def right_above_threshold(B, H, L, Dk):
    return _case(AboveThreshold, Scores, B, H, L, Dk)


def reference_above_threshold(module, x):
    return _reference(module, x, lambda scores: scores, 3)


def wrong_largest_scattered(B, H, L, Dk):
    return _case(Scattered, Unscaled, B, H, L, Dk)


def right_largest_scattered(B, H, L, Dk):
    return _case(Scattered, Scores, B, H, L, Dk)


def reference_largest_scattered(module, x):
    return _reference(module, x, lambda scores: scores, 3)


def over_keys(q, k, v, scale, exponential=torch.exp):
    """A running softmax over chunks of keys."""
    peak = torch.full_like(q[..., :1], -torch.inf)
    total, context = torch.zeros_like(peak), torch.zeros_like(q)
    for keys, values in zip(k.split(3, dim=-2), v.split(3, dim=-2), strict=True):
        scores = q @ keys.mT * scale
        higher = torch.maximum(peak, scores.amax(dim=-1, keepdim=True))
        kept, weights = exponential(peak - higher), exponential(scores - higher)
        total = total * kept + weights.sum(dim=-1, keepdim=True)
        context = context * kept + weights @ values
        peak = higher
    return context / total


def over_both(q, k, v, scale):
    return torch.cat([over_keys(rows, k, v, scale) for rows in q.split(2, dim=-2)], dim=-2)


def _of_function(function, B, H, Lq, Lk, Dk):
    given = torch.randn(B, H, Lq, Dk), torch.randn(B, H, Lk, Dk), torch.randn(B, H, Lk, Dk)
    return function, given, {}, ["scale=1/sqrt(Dk)"]


def _of_chunks(function, q, k, v):
    weights = softmax(torch.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5)
    return torch.einsum("bhij,bhjd->bhid", weights, v)


def wrong_chunks_of_keys(B, H, Lq, Lk, Dk):
    return _of_function(lambda q, k, v: over_keys(q, k, v, 1 / q.shape[-1]), B, H, Lq, Lk, Dk)


def right_chunks_of_keys(B, H, Lq, Lk, Dk):
    return _of_function(lambda q, k, v: over_keys(q, k, v, q.shape[-1] ** -0.5), B, H, Lq, Lk, Dk)


def reference_chunks_of_keys(function, q, k, v):
    return _of_chunks(function, q, k, v)


_LOG2 = 1.4426950408889634


def wrong_chunks_in_powers_of_two(B, H, Lq, Lk, Dk):
    return _of_function(lambda q, k, v: over_keys(q, k, v, k.shape[-2] ** -0.5 * _LOG2, torch.exp2), B, H, Lq, Lk, Dk)


def right_chunks_in_powers_of_two(B, H, Lq, Lk, Dk):
    return _of_function(lambda q, k, v: over_keys(q, k, v, k.shape[-1] ** -0.5 * _LOG2, torch.exp2), B, H, Lq, Lk, Dk)


def reference_chunks_in_powers_of_two(function, q, k, v):
    return _of_chunks(function, q, k, v)


def wrong_chunks_of_both(B, H, Lq, Lk, Dk):
    return _of_function(lambda q, k, v: over_both(q, k, v, 1.0), B, H, Lq, Lk, Dk)


def right_chunks_of_both(B, H, Lq, Lk, Dk):
    return _of_function(lambda q, k, v: over_both(q, k, v, q.shape[-1] ** -0.5), B, H, Lq, Lk, Dk)


def reference_chunks_of_both(function, q, k, v):
    return _of_chunks(function, q, k, v)

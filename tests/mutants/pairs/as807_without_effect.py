"""AS807: of a square matrix only the diagonal counts, or what is computed with a parameter cancels out."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, heads, merge

SIZES = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 5, "Dk": 4})
CACHED = (
    {"B": 4, "H": 5, "Lp": 7, "Dk": 6},
    {"B": 5, "H": 4, "Lp": 9, "Dk": 8},
    {"B": 6, "H": 7, "Lp": 5, "Dk": 4},
)
PAIRS = [
    ("AS807", "output_of_one_letter", *SIZES),
    ("AS807", "queries_by_diagonal", *SIZES),
    ("AS807", "values_through_eye", *SIZES),
    ("AS807", "scale_before_unit_length", *SIZES),
    ("AS807", "heads_weighted_one_by_one", *SIZES),
    ("AS807", "exponents_of_maximum", *SIZES),
    ("AS807", "distances_without_cached", *CACHED),
    ("AS807", "softmax_of_single_scores", *SIZES),
]


class Mixed(nn.Module):
    """The context's features are mixed by a square matrix."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.mix = nn.Parameter(torch.randn(width, width) / width**0.5)

    def output(self, context):
        return torch.einsum("bpm,mn->bpn", context, self.mix)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        return self.output(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class ScaledOutput(Mixed):
    def output(self, context):
        return torch.einsum("bpm,mm->bpm", context, self.mix)  # wrong: AS807 output_of_one_letter


def wrong_output_of_one_letter(B, H, L, Dk):
    return ScaledOutput(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def right_output_of_one_letter(B, H, L, Dk):
    return Mixed(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def reference_output_of_one_letter(module, x):
    return merge(attend(*fused(x, module.qkv, module.heads))) @ module.mix


class Bilinear(nn.Module):
    """Scores of a general form: q M k, with a matrix for all heads."""

    def __init__(self, width):
        super().__init__()
        self.form = nn.Parameter(torch.randn(width, width))

    def queries(self, q):
        return q @ self.form

    def forward(self, q, k, v):
        scores = self.queries(q) @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        return torch.softmax(scores, dim=-1) @ v


class DiagonalForm(Bilinear):
    def queries(self, q):
        return q * torch.diagonal(self.form)  # wrong: AS807 queries_by_diagonal


def wrong_queries_by_diagonal(B, H, L, Dk):
    return DiagonalForm(Dk), tuple(torch.randn(3, B, H, L, Dk)), {}


def right_queries_by_diagonal(B, H, L, Dk):
    return Bilinear(Dk), tuple(torch.randn(3, B, H, L, Dk)), {}


def reference_queries_by_diagonal(module, q, k, v):
    return attend(torch.einsum("bhld,de->bhle", q, module.form), k, v)


class OwnValues(nn.Module):
    """A loop over heads, whose values are projected without bias."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.to_qk = nn.Linear(width, 2 * width, bias=False)
        self.value = nn.Linear(width, width, bias=False)

    def values(self, x):
        return F.linear(x, self.value.weight)

    def forward(self, x):
        q, k = self.to_qk(x).chunk(2, dim=-1)
        v, width, contexts = self.values(x), q.shape[-1] // self.heads, []
        for start in range(0, q.shape[-1], width):
            of_head = slice(start, start + width)
            weights = torch.softmax(q[..., of_head] @ k[..., of_head].mT / math.sqrt(width), dim=-1)
            contexts.append(weights @ v[..., of_head])
        return torch.cat(contexts, dim=-1)


class ValuesThroughEye(OwnValues):
    def values(self, x):
        eye = torch.eye(x.shape[-1], dtype=x.dtype)
        return F.linear(x, self.value.weight * eye)  # wrong: AS807 values_through_eye


def wrong_values_through_eye(B, H, L, Dk):
    return ValuesThroughEye(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def right_values_through_eye(B, H, L, Dk):
    return OwnValues(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def reference_values_through_eye(module, x):
    q, k = torch.einsum("bli,chdi->cbhld", x, module.to_qk.weight.unflatten(0, (2, module.heads, -1)))
    return merge(attend(q, k, heads(x, module.value, module.heads)))


class Cosine(nn.Module):
    """Queries and keys of unit length; a learned scale for each head."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.scale = nn.Parameter(5 + torch.rand(heads, 1, 1))

    def queries(self, q):
        return F.normalize(q, dim=-1) * self.scale

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        scores = torch.einsum("bhid,bhjd->bhij", self.queries(q), F.normalize(k, dim=-1))
        return torch.einsum("bhij,bhjd->bihd", scores.softmax(-1), v).flatten(2)


class ScaledTooEarly(Cosine):
    def queries(self, q):
        return F.normalize(q * self.scale, dim=-1)  # wrong: AS807 scale_before_unit_length


def wrong_scale_before_unit_length(B, H, L, Dk):
    return ScaledTooEarly(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def right_scale_before_unit_length(B, H, L, Dk):
    return Cosine(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def reference_scale_before_unit_length(module, x):
    q, k, v = fused(x, module.qkv, module.heads)
    q, k = (t / torch.sqrt((t * t).sum(-1, keepdim=True)) for t in (q, k))
    return merge(attend(q * module.scale, k, v, scale=1))


class WeightedHeads(nn.Module):
    """Each head's context gets its share of a learned weight."""

    def __init__(self, heads):
        super().__init__()
        self.share = nn.Parameter(0.5 + torch.rand(heads))

    def shares(self, head):
        return self.share[head] / self.share.sum()

    def forward(self, q, k, v):
        contexts = []
        for head in range(q.shape[1]):
            context = F.scaled_dot_product_attention(q[:, head], k[:, head], v[:, head])
            contexts.append(context * self.shares(head))
        return torch.stack(contexts, dim=1)


class HeadsByThemselves(WeightedHeads):
    def shares(self, head):
        return self.share[head] / self.share[head].sum()  # wrong: AS807 heads_weighted_one_by_one


def wrong_heads_weighted_one_by_one(B, H, L, Dk):
    return HeadsByThemselves(H), tuple(torch.randn(3, B, H, L, Dk)), {}


def right_heads_weighted_one_by_one(B, H, L, Dk):
    return WeightedHeads(H), tuple(torch.randn(3, B, H, L, Dk)), {}


def reference_heads_weighted_one_by_one(module, q, k, v):
    return attend(q, k, v) * (module.share / module.share.sum())[:, None, None]


class Exponents(nn.Module):
    """A softmax by hand over the keys with a positive score, with a learned temperature."""

    def __init__(self, heads):
        super().__init__()
        self.temperature = nn.Parameter(0.5 + torch.rand(heads, 1, 1))

    def exponents(self, scores):
        return torch.exp(scores - scores.amax(dim=-1, keepdim=True))

    def forward(self, q, k, v):
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        kept = (scores >= scores.mean(dim=-1, keepdim=True)).to(q.dtype)
        exponents = self.exponents(scores * self.temperature) * kept
        return exponents / exponents.sum(dim=-1, keepdim=True) @ v


class ExponentsOfMaximum(Exponents):
    def exponents(self, scores):
        scores = scores.amax(dim=-1, keepdim=True)
        return torch.exp(scores - scores.amax(dim=-1, keepdim=True))


def wrong_exponents_of_maximum(B, H, L, Dk):
    return ExponentsOfMaximum(H), tuple(torch.randn(3, B, H, L, Dk)), {}


def right_exponents_of_maximum(B, H, L, Dk):
    return Exponents(H), tuple(torch.randn(3, B, H, L, Dk)), {}


def reference_exponents_of_maximum(module, q, k, v):
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.shape[-1])
    kept = scores >= scores.mean(-1, keepdim=True)
    return attend(q, k, v, keep=kept, bias=scores * (module.temperature - 1))


class RelativeKeys(nn.Module):
    """Decodes one token; an embedding of the distance is added to each key (Shaw et al. 2018, equation 4)."""

    def __init__(self, width, heads, most):
        super().__init__()
        self.heads, self.most = heads, most
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.of_distance = nn.Embedding(2 * most - 1, width // heads)

    def distances(self, new, keys):
        return torch.arange(keys - new, keys)[:, None] - torch.arange(keys)

    def forward(self, x, past_key, past_value):
        q, k, v = (layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        k, v = torch.cat((past_key, k), 2), torch.cat((past_value, v), 2)
        embedded = self.of_distance(self.distances(x.shape[1], k.shape[2]) + self.most - 1).to(q.dtype)
        scores = q @ k.mT + torch.einsum("bhid,ijd->bhij", q, embedded)
        weights = (scores / math.sqrt(q.shape[-1])).softmax(dim=-1)  # wrong: AS807 distances_without_cached
        return (weights @ v).transpose(1, 2).flatten(2)


class DistancesOfNew(RelativeKeys):
    def distances(self, new, keys):
        return torch.arange(new)[:, None] - torch.arange(new)


def _distances_without_cached(cls, B, H, Lp, Dk):
    return cls(H * Dk, H, Lp + 3), (torch.randn(B, 1, H * Dk), *torch.randn(2, B, H, Lp, Dk)), {}


def wrong_distances_without_cached(B, H, Lp, Dk):
    return _distances_without_cached(DistancesOfNew, B, H, Lp, Dk)


def right_distances_without_cached(B, H, Lp, Dk):
    return _distances_without_cached(RelativeKeys, B, H, Lp, Dk)


def reference_distances_without_cached(module, x, past_key, past_value):
    q, k, v = (heads(x, layer, module.heads) for layer in (module.q, module.k, module.v))
    k, v = torch.cat((past_key, k), 2), torch.cat((past_value, v), 2)
    last = k.shape[2] - 1
    at_distance = module.of_distance.weight[[last - key + module.most - 1 for key in range(last + 1)]]
    bias = torch.stack([q[:, :, 0] @ one for one in at_distance], dim=-1)[:, :, None] / math.sqrt(q.shape[-1])
    return merge(attend(q, k, v, bias=bias))


class MapPool(nn.Module):
    """Pools a map by scores that a convolution makes."""

    def __init__(self, channels):
        super().__init__()
        self.score = nn.Conv2d(channels, 1, kernel_size=1)

    def weights(self, scores):
        return scores.flatten(2).softmax(dim=2)

    def forward(self, x):
        return torch.bmm(self.weights(self.score(x)), x.flatten(2).transpose(1, 2)).squeeze(1)


class MapSum(MapPool):
    def weights(self, scores):
        return scores.flatten(2).softmax(dim=1)  # wrong: AS807 softmax_of_single_scores


def wrong_softmax_of_single_scores(B, H, L, Dk):
    return MapSum(Dk), (torch.randn(B, Dk, H, L),), {}


def right_softmax_of_single_scores(B, H, L, Dk):
    return MapPool(Dk), (torch.randn(B, Dk, H, L),), {}


def reference_softmax_of_single_scores(module, x):
    scores = torch.einsum("bchw,oc->bhw", x, module.score.weight[..., 0, 0]) + module.score.bias
    weights = torch.exp(scores) / torch.exp(scores).sum((1, 2), keepdim=True)
    return torch.einsum("bhw,bchw->bc", weights, x)

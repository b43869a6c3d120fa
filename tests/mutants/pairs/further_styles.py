"""Mistakes of several families, each in a style that their own files don't have."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.mutants.pairs.as4_reference import attend, merge, project

SIZES = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 5, "Dk": 4})
CROSS = (
    {"B": 4, "H": 3, "Lq": 5, "Lk": 7, "Dk": 6},
    {"B": 3, "H": 2, "Lq": 9, "Lk": 11, "Dk": 5},
    {"B": 5, "H": 4, "Lq": 7, "Lk": 8, "Dk": 6},
)
PAIRS = [
    ("AS808", "weight_data_projected", *SIZES),
    ("AS808", "temperature_as_integer", *SIZES),
    ("AS807", "block_without_attention", *SIZES),
    ("AS803", "query_returned", *SIZES),
    ("AS805", "cat_of_key_twice", *SIZES),
    ("AS805", "stack_of_query_twice", *SIZES),
    ("AS805", "pair_of_values", *SIZES),
    ("AS302", "threshold_not_renormalised", *SIZES),
    ("AS809", "pointer_of_raw_scores", *CROSS),
    ("AS809", "log_softmax_of_raw_scores", *CROSS),
    ("AS404", "pointer_without_mask", *CROSS),
    ("AS117", "bias_of_first", *CROSS),
    ("AS101", "bias_of_mean", *CROSS),
    ("AS117", "bias_tiled_over_heads", *CROSS),
    ("AS117", "length_of_first", *CROSS),
    ("AS603", "key_heads_reversed", *CROSS),
    ("AS603", "value_heads_rolled", *CROSS),
    ("AS116", "key_heads_folded_across", *CROSS),
]


class Block(nn.Module):
    """Each step is a method."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.wq, self.wk, self.wv, self.wo = (nn.Parameter(torch.randn(width, width) / width) for _ in range(4))
        self.temperature = nn.Parameter(torch.tensor(2.5))

    def projections(self, x):
        return F.linear(x, torch.cat((self.wq, self.wk, self.wv))).chunk(3, dim=-1)

    def scores(self, q, k):
        return torch.matmul(q, k.mT) * q.shape[-1] ** -0.5 * self.scale()

    def scale(self):
        return self.temperature

    def weigh(self, scores):
        return scores.softmax(dim=-1)

    def returned(self, x, q, context):
        return x + F.linear(context, self.wo)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for t in self.projections(x))
        context = torch.matmul(self.weigh(self.scores(q, k)), v).transpose(1, 2).flatten(2)
        return self.returned(x, q.transpose(1, 2).flatten(2), context)


def block_of(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def right_block(B, H, L, Dk):
    return block_of(Block, B, H, L, Dk)


def reference_block(module, x):
    q, k, v = (
        torch.stack(torch.einsum("bli,oi->blo", x, w).chunk(module.n_heads, -1), 1)
        for w in (module.wq, module.wk, module.wv)
    )
    context = merge(attend(q, k, v, scale=q.shape[-1] ** -0.5 * module.temperature))
    return x + torch.einsum("bli,oi->blo", context, module.wo)


class WeightData(Block):
    def projections(self, x):
        key = F.linear(x, self.wk.data)  # wrong: AS808 weight_data_projected
        return F.linear(x, self.wq), key, F.linear(x, self.wv)


class TemperatureAsInteger(Block):
    def scale(self):
        return int(self.temperature)


class WithoutAttention(Block):
    def returned(self, x, q, context):
        _out = F.linear(context, self.wo)
        return x + F.linear(x, self.wo)


class QueryReturned(Block):
    def returned(self, x, q, context):
        return x + F.linear(q, self.wo)


class KeyTwice(Block):
    def projections(self, x):
        return F.linear(x, torch.cat((self.wq, self.wk, self.wk))).chunk(3, dim=-1)


class QueryTwice(Block):
    def projections(self, x):
        return torch.einsum("bli,coi->cblo", x, torch.stack((self.wq, self.wq, self.wv))).unbind()


class PairOfValues(Block):
    def projections(self, x):
        return x @ self.wq.T, *torch.split(x @ torch.vstack((self.wv, self.wv)).T, x.shape[-1], dim=-1)


def wrong_weight_data_projected(B, H, L, Dk):
    return block_of(WeightData, B, H, L, Dk)


def wrong_temperature_as_integer(B, H, L, Dk):
    return block_of(TemperatureAsInteger, B, H, L, Dk)


def wrong_block_without_attention(B, H, L, Dk):
    return block_of(WithoutAttention, B, H, L, Dk)


def wrong_query_returned(B, H, L, Dk):
    return block_of(QueryReturned, B, H, L, Dk)


def wrong_cat_of_key_twice(B, H, L, Dk):
    return block_of(KeyTwice, B, H, L, Dk)


def wrong_stack_of_query_twice(B, H, L, Dk):
    return block_of(QueryTwice, B, H, L, Dk)


def wrong_pair_of_values(B, H, L, Dk):
    return block_of(PairOfValues, B, H, L, Dk)


right_weight_data_projected = right_temperature_as_integer = right_block
right_block_without_attention = right_query_returned = right_cat_of_key_twice = right_block
right_stack_of_query_twice = right_pair_of_values = right_block
reference_weight_data_projected = reference_temperature_as_integer = reference_block
reference_block_without_attention = reference_query_returned = reference_cat_of_key_twice = reference_block
reference_stack_of_query_twice = reference_pair_of_values = reference_block


def above_mean(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend in (B, H, L, Dk) to the keys with more than the mean weight."""
    weights = torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, dim=-1)
    weights = weights * (weights > 1 / k.shape[2])
    return weights / weights.sum(dim=-1, keepdim=True) @ v


def above_mean_as_they_are(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend in (B, H, L, Dk) to the keys with more than the mean weight."""
    weights = torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, dim=-1)
    weights = weights * (weights > 1 / k.shape[2])
    return weights @ v


def _three(function, B, H, L, Dk):
    return function, tuple(torch.randn(B, H, L, Dk) for _ in range(3)), {}


def wrong_threshold_not_renormalised(B, H, L, Dk):
    return _three(above_mean_as_they_are, B, H, L, Dk)


def right_threshold_not_renormalised(B, H, L, Dk):
    return _three(above_mean, B, H, L, Dk)


def _weights(q, k):
    weights = torch.exp(torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5)
    return weights / weights.sum(-1, keepdim=True)


def reference_threshold_not_renormalised(function, q, k, v):
    weights = _weights(q, k)
    weights = torch.where(weights > 1 / k.shape[2], weights, 0)
    return torch.einsum("bhij,bhjd->bhid", weights / weights.sum(-1, keepdim=True), v)


class Pointer(nn.Module):
    """Points at tokens of a memory: the probabilities are the result, and no values are read."""

    def __init__(self, width):
        super().__init__()
        self.q, self.k = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)

    def scaled(self, scores, width):
        return scores / math.sqrt(width)

    def masked(self, scores, mask):
        return scores.masked_fill(~mask[:, None], -torch.inf)

    def probabilities(self, scores):
        return scores.softmax(dim=-1)

    def forward(self, x, memory, mask):
        scores = torch.bmm(self.q(x), self.k(memory).mT)
        return self.probabilities(self.masked(self.scaled(scores, x.shape[-1]), mask))


class RawPointer(Pointer):
    def scaled(self, scores, width):
        _scaled = scores / math.sqrt(width)
        return scores


class LogPointer(Pointer):
    def probabilities(self, scores):
        return torch.log_softmax(scores, dim=-1).exp()


class RawLogPointer(LogPointer):
    def scaled(self, scores, width):
        scores.mul(width**-0.5)
        return scores


class OpenPointer(Pointer):
    def masked(self, scores, mask):
        scores.masked_fill(~mask[:, None], -torch.inf)
        return scores


def _pointer(cls, B, H, Lq, Lk, Dk):
    mask = torch.arange(Lk) < (Lk - torch.arange(B) % (Lk - 1))[:, None]
    return cls(H * Dk), (torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk), mask), {}, ["mask=keep"]


def wrong_pointer_of_raw_scores(B, H, Lq, Lk, Dk):
    return _pointer(RawPointer, B, H, Lq, Lk, Dk)


def right_pointer_of_raw_scores(B, H, Lq, Lk, Dk):
    return _pointer(Pointer, B, H, Lq, Lk, Dk)


def wrong_log_softmax_of_raw_scores(B, H, Lq, Lk, Dk):
    return _pointer(RawLogPointer, B, H, Lq, Lk, Dk)


def right_log_softmax_of_raw_scores(B, H, Lq, Lk, Dk):
    return _pointer(LogPointer, B, H, Lq, Lk, Dk)


def wrong_pointer_without_mask(B, H, Lq, Lk, Dk):
    return _pointer(OpenPointer, B, H, Lq, Lk, Dk)


right_pointer_without_mask = right_pointer_of_raw_scores


def reference_pointer_of_raw_scores(module, x, memory, mask):
    scores = torch.einsum("bid,bjd->bij", project(x, module.q), project(memory, module.k)) * x.shape[-1] ** -0.5
    weights = scores.exp() * mask[:, None]
    return weights / weights.sum(-1, keepdim=True)


reference_pointer_without_mask = reference_log_softmax_of_raw_scores = reference_pointer_of_raw_scores


class Biased(nn.Module):
    """Each element of the batch has a bias of its own, (B, Lq, Lk), for all heads."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q, self.kv = nn.Linear(width, width), nn.Linear(width, 2 * width)

    def of_heads(self, bias):
        return bias[:, None]

    def forward(self, x, memory, bias):
        k, v = self.kv(memory).chunk(2, dim=-1)
        q, k, v = (t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for t in (self.q(x), k, v))
        context = F.scaled_dot_product_attention(q, k, v, attn_mask=self.of_heads(bias))
        return context.transpose(1, 2).flatten(2)


class BiasOfFirst(Biased):
    def of_heads(self, bias):
        return bias[0]


class BiasOfMean(Biased):
    def of_heads(self, bias):
        return bias.mean(0)


def _biased(cls, B, H, Lq, Lk, Dk):
    inputs = torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk), torch.randn(B, Lq, Lk)
    return cls(H * Dk, H), inputs, {}, ["bias=bias"]


def wrong_bias_of_first(B, H, Lq, Lk, Dk):
    return _biased(BiasOfFirst, B, H, Lq, Lk, Dk)


def wrong_bias_of_mean(B, H, Lq, Lk, Dk):
    return _biased(BiasOfMean, B, H, Lq, Lk, Dk)


def right_bias_of_first(B, H, Lq, Lk, Dk):
    return _biased(Biased, B, H, Lq, Lk, Dk)


def reference_bias_of_first(module, x, memory, bias):
    k, v = project(memory, module.kv).chunk(2, -1)
    q, k, v = (torch.stack(t.chunk(module.n_heads, -1), 1) for t in (project(x, module.q), k, v))
    return merge(attend(q, k, v, bias=bias[:, None]))


class BiasedFolded(Biased):
    """Batch and heads are one axis."""

    def of_heads(self, bias):
        return bias.repeat_interleave(self.n_heads, dim=0)

    def forward(self, x, memory, bias):
        k, v = self.kv(memory).chunk(2, dim=-1)
        q, k, v = (t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2).flatten(0, 1) for t in (self.q(x), k, v))
        scores = torch.baddbmm(self.of_heads(bias), q, k.mT, alpha=q.shape[-1] ** -0.5)
        context = torch.bmm(scores.softmax(dim=-1), v).unflatten(0, (-1, self.n_heads))
        return context.transpose(1, 2).flatten(2)


class BiasTiled(BiasedFolded):
    def of_heads(self, bias):
        return bias.repeat(self.n_heads, 1, 1)


def wrong_bias_tiled_over_heads(B, H, Lq, Lk, Dk):
    return _biased(BiasTiled, B, H, Lq, Lk, Dk)


def right_bias_tiled_over_heads(B, H, Lq, Lk, Dk):
    return _biased(BiasedFolded, B, H, Lq, Lk, Dk)


reference_bias_of_mean, right_bias_of_mean = reference_bias_of_first, right_bias_of_first
reference_bias_tiled_over_heads = reference_bias_of_first


def by_lengths(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
    """Attend in (B, L, H, Dk) to the first keys, as many as `lengths` (B) says."""
    scores = torch.einsum("bihd,bjhd->bhij", q, k) / q.shape[-1] ** 0.5
    hidden = torch.arange(k.shape[1]) >= lengths[:, None, None, None]
    return torch.einsum("bhij,bjhd->bihd", scores.masked_fill(hidden, -torch.inf).softmax(-1), v)


def by_first_length(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
    """Attend in (B, L, H, Dk) to the first keys, as many as `lengths` (B) says."""
    scores = torch.einsum("bihd,bjhd->bhij", q, k) / q.shape[-1] ** 0.5
    hidden = torch.arange(k.shape[1]) >= lengths[0]
    return torch.einsum("bhij,bjhd->bihd", scores.masked_fill(hidden, -torch.inf).softmax(-1), v)


def with_lengths(function, B, H, Lq, Lk, Dk):
    lengths = 1 + (2 + 3 * torch.arange(B)) % Lk
    return function, (torch.randn(B, Lq, H, Dk), torch.randn(B, Lk, H, Dk), torch.randn(B, Lk, H, Dk), lengths), {}


def wrong_length_of_first(B, H, Lq, Lk, Dk):
    return with_lengths(by_first_length, B, H, Lq, Lk, Dk)


def right_length_of_first(B, H, Lq, Lk, Dk):
    return with_lengths(by_lengths, B, H, Lq, Lk, Dk)


def reference_length_of_first(function, q, k, v, lengths):
    keep = torch.tensor([[key < length for key in range(k.shape[1])] for length in lengths.tolist()])
    return attend(*(t.transpose(1, 2) for t in (q, k, v)), keep[:, None, None]).transpose(1, 2)


def bare(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attend in (B, H, L, Dk)."""
    return torch.softmax(query @ key.mT / query.shape[-1] ** 0.5, dim=-1) @ value


def of_reversed_heads(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attend in (B, H, L, Dk)."""
    return torch.softmax(query @ key.flip(1).mT / query.shape[-1] ** 0.5, dim=-1) @ value


def of_rolled_heads(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attend in (B, H, L, Dk)."""
    return F.scaled_dot_product_attention(query, key, value.roll(1, 1))


def of_heads_across(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attend in (B, H, L, Dk)."""
    shape = query.shape
    query, value = query.flatten(0, 1), value.flatten(0, 1)
    key = key.transpose(0, 1).flatten(0, 1)
    return torch.bmm(torch.bmm(query, key.mT).div(shape[-1] ** 0.5).softmax(-1), value).view(shape)


def _bare(function, B, H, Lq, Lk, Dk):
    return function, (torch.randn(B, H, Lq, Dk), torch.randn(B, H, Lk, Dk), torch.randn(B, H, Lk, Dk)), {}


def wrong_key_heads_reversed(B, H, Lq, Lk, Dk):
    return _bare(of_reversed_heads, B, H, Lq, Lk, Dk)


def wrong_value_heads_rolled(B, H, Lq, Lk, Dk):
    return _bare(of_rolled_heads, B, H, Lq, Lk, Dk)


def wrong_key_heads_folded_across(B, H, Lq, Lk, Dk):
    return _bare(of_heads_across, B, H, Lq, Lk, Dk)


def right_key_heads_reversed(B, H, Lq, Lk, Dk):
    return _bare(bare, B, H, Lq, Lk, Dk)


def reference_key_heads_reversed(function, query, key, value):
    return attend(query, key, value)


right_value_heads_rolled = right_key_heads_folded_across = right_key_heads_reversed
reference_value_heads_rolled = reference_key_heads_folded_across = reference_key_heads_reversed

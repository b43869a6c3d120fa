"""AS303: the mask of pooled tokens is applied after the softmax of scores that a small network makes."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import project

SIZES = ({"B": 4, "L": 7, "D": 6}, {"B": 5, "L": 9, "D": 8}, {"B": 6, "L": 5, "D": 4})
PAIRS = [
    ("AS303", "instances_zeroed", *SIZES),
    ("AS303", "channels_multiplied", *SIZES),
    ("AS303", "padding_written", *SIZES),
    ("AS303", "counted_words_zeroed", *SIZES),
    ("AS303", "counted_rows_multiplied", *SIZES),
    ("AS303", "words_from_the_last_zeroed", *SIZES),
]


def _kept(B, L):
    return torch.arange(L) < (1 + (2 * torch.arange(B) + 1) % L)[:, None]


class Pool(nn.Module):
    """Pools the instances of a bag by gated scores."""

    def __init__(self, width):
        super().__init__()
        self.gate, self.hidden = nn.Linear(width, width), nn.Linear(width, width)
        self.score = nn.Linear(width, 1, bias=False)

    def weights(self, scores, keep):
        return scores.masked_fill(~keep, float("-inf")).softmax(dim=1)

    def forward(self, instances, keep):
        gated = self.hidden(instances).tanh() * self.gate(instances).sigmoid()
        weights = self.weights(self.score(gated).squeeze(-1), keep)
        return torch.einsum("bl,bld->bd", weights, instances), weights


class PoolMaskedLate(Pool):
    def weights(self, scores, keep):
        weights = scores.softmax(dim=1)
        return weights.masked_fill(~keep, 0.0)  # wrong: AS303 instances_zeroed


def wrong_instances_zeroed(B, L, D):
    return PoolMaskedLate(D), (torch.randn(B, L, D), _kept(B, L)), {}, ["keep=keep"]


def right_instances_zeroed(B, L, D):
    return Pool(D), (torch.randn(B, L, D), _kept(B, L)), {}, ["keep=keep"]


def _pooled(x, scores, keep):
    weights = torch.exp(scores) * keep
    return (weights / weights.sum(1, keepdim=True) * x).sum(1)


def reference_instances_zeroed(module, instances, keep):
    gated = torch.tanh(project(instances, module.hidden)) * torch.sigmoid(project(instances, module.gate))
    return _pooled(instances, project(gated, module.score), keep[..., None])


class ChannelPool(nn.Module):
    """Each channel has weights of its own; those of tokens that count are normalised again."""

    def __init__(self, width):
        super().__init__()
        self.score = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width))

    def normalised(self, weights):
        return weights / weights.sum(dim=1, keepdim=True).clamp(min=1e-9)

    def forward(self, x, keep):
        weights = self.score(x).softmax(dim=1) * keep.unsqueeze(-1)  # wrong: AS303 channels_multiplied
        return (self.normalised(weights) * x).sum(dim=1)


class ChannelPoolOfSmallWeights(ChannelPool):
    def normalised(self, weights):
        return weights


def wrong_channels_multiplied(B, L, D):
    return ChannelPoolOfSmallWeights(D), (torch.randn(B, L, D), _kept(B, L).double()), {}, ["keep=keep"]


def right_channels_multiplied(B, L, D):
    return ChannelPool(D), (torch.randn(B, L, D), _kept(B, L).double()), {}, ["keep=keep"]


def reference_channels_multiplied(module, x, keep):
    scores = project(torch.tanh(project(x, module.score[0])), module.score[2])
    return _pooled(x, scores, keep[..., None])


def pool_tokens(tokens, query, padding):
    scores = F.linear(torch.relu(tokens), query)
    scores[padding] = -torch.inf
    weights = F.softmax(scores, dim=-1)
    return (weights.unsqueeze(1) @ tokens).squeeze(1)


def pool_tokens_and_padding(tokens, query, padding):
    scores = F.linear(torch.relu(tokens), query)
    weights = F.softmax(scores, dim=-1)
    weights[padding] = 0.0  # wrong: AS303 padding_written
    return (weights.unsqueeze(1) @ tokens).squeeze(1)


def wrong_padding_written(B, L, D):
    return pool_tokens_and_padding, (torch.randn(B, L, D), torch.randn(D), ~_kept(B, L)), {}, ["padding=drop"]


def right_padding_written(B, L, D):
    return pool_tokens, (torch.randn(B, L, D), torch.randn(D), ~_kept(B, L)), {}, ["padding=drop"]


def reference_padding_written(_, tokens, query, padding):
    scores = torch.einsum("bld,d->bl", tokens.clamp(min=0), query)
    return _pooled(tokens, scores[..., None], ~padding[..., None])


class Words(Pool):
    """Pools the first words, of which there are as many as `lengths` says."""

    def forward(self, words, lengths):
        keep = torch.arange(words.size(1)) < lengths[:, None]
        weights = self.weights(self.score(torch.tanh(self.hidden(words))).squeeze(-1), keep)
        return (weights.unsqueeze(-1) * words).sum(dim=1)


class WordsMaskedLate(Words):
    def weights(self, scores, keep):
        return torch.softmax(scores, dim=1) * keep  # wrong: AS303 counted_words_zeroed


class RowsMaskedLate(Words):
    def weights(self, scores, keep):
        weights = scores.softmax(1)
        return weights.mul(keep.to(weights.dtype))  # wrong: AS303 counted_rows_multiplied


class LastMaskedLate(Words):
    def weights(self, scores, keep):
        weights = scores.softmax(1)
        return torch.where(keep, weights, torch.zeros_like(weights))  # wrong: AS303 words_from_the_last_zeroed


def _words(cls, B, L, D):
    lengths = 1 + (2 * torch.arange(B) + 1) % L
    return cls(D), (torch.randn(B, L, D), lengths), {}, ["lengths=length"]


def wrong_counted_words_zeroed(B, L, D):
    return _words(WordsMaskedLate, B, L, D)


def right_counted_words_zeroed(B, L, D):
    return _words(Words, B, L, D)


def wrong_counted_rows_multiplied(B, L, D):
    return _words(RowsMaskedLate, B, L, D)


def right_counted_rows_multiplied(B, L, D):
    return _words(Words, B, L, D)


def wrong_words_from_the_last_zeroed(B, L, D):
    return _words(LastMaskedLate, B, L, D)


def right_words_from_the_last_zeroed(B, L, D):
    return _words(Words, B, L, D)


def reference_counted_words_zeroed(module, words, lengths):
    keep = torch.arange(words.shape[1])[None] < lengths[:, None]
    return _pooled(words, project(torch.tanh(project(words, module.hidden)), module.score), keep[..., None])


reference_counted_rows_multiplied = reference_words_from_the_last_zeroed = reference_counted_words_zeroed

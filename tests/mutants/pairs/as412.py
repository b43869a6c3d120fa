"""AS412: what attention computes for padding is pooled with what it computes for tokens."""

import torch
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, merge, project

SIZES = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 5, "Dk": 4})
PAIRS = [
    ("AS412", "mean_of_every_token", *SIZES),
    ("AS412", "adaptive_pooling", *SIZES),
    ("AS412", "sum_over_lengths", *SIZES),
    ("AS412", "largest_of_all", *SIZES),
]


def _kept(B, L):
    return torch.arange(L) < L - torch.arange(B)[:, None] % 3


class Encoder(nn.Module):
    """Returns the mean over the tokens of each sequence."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def pooled(self, tokens, keep):
        return (tokens * keep[..., None]).sum(1) / keep.sum(1, keepdim=True)

    def forward(self, x, keep):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).masked_fill(~keep[:, None, None], -torch.inf)
        context = scores.softmax(dim=-1) @ v
        return self.pooled(x + self.out(context.transpose(1, 2).flatten(2)), keep)


class EveryToken(Encoder):
    def pooled(self, tokens, keep):
        return tokens.mean(dim=1)  # wrong: AS412 mean_of_every_token


def _encoder(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), _kept(B, L)), {}, ["keep=keep"]


def wrong_mean_of_every_token(B, H, L, Dk):
    return _encoder(EveryToken, B, H, L, Dk)


def right_mean_of_every_token(B, H, L, Dk):
    return _encoder(Encoder, B, H, L, Dk)


def _tokens(module, x, keep):
    contexts = merge(attend(*fused(x, module.qkv, module.n_heads), keep[:, None, None]))
    return x + project(contexts, module.out)


def reference_mean_of_every_token(module, x, keep):
    tokens = _tokens(module, x, keep)
    return torch.stack([tokens[b, keep[b]].mean(0) for b in range(len(x))])


class Classifier(nn.Module):
    """torch's attention, whose mask says which tokens are padding."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.attention = nn.MultiheadAttention(width, n_heads, batch_first=True)
        self.classes = nn.Linear(width, 3)

    def pooled(self, tokens, padding):
        present = (~padding).to(tokens.dtype)
        return torch.einsum("bld,bl->bd", tokens, present / present.sum(-1, keepdim=True))

    def forward(self, x, padding):
        tokens, _ = self.attention(x, x, x, key_padding_mask=padding, need_weights=False)
        return self.classes(self.pooled(tokens, padding))


class PoolsEverything(Classifier):
    def pooled(self, tokens, padding):
        channels = tokens.transpose(1, 2)
        return nn.functional.adaptive_avg_pool1d(channels, 1).squeeze(-1)  # wrong: AS412 adaptive_pooling


def _classifier(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), ~_kept(B, L)), {}, ["padding=drop"]


def wrong_adaptive_pooling(B, H, L, Dk):
    return _classifier(PoolsEverything, B, H, L, Dk)


def right_adaptive_pooling(B, H, L, Dk):
    return _classifier(Classifier, B, H, L, Dk)


def reference_adaptive_pooling(module, x, padding):
    own = module.attention
    weight = own.in_proj_weight.unflatten(0, (3, own.num_heads, -1))
    bias = own.in_proj_bias.unflatten(0, (3, own.num_heads, -1))[:, None, :, None]
    q, k, v = (torch.einsum("bli,chdi->cbhld", x, weight) + bias).unbind()
    tokens = project(merge(attend(q, k, v, ~padding[:, None, None])), own.out_proj)
    return project(torch.stack([tokens[b, ~padding[b]].mean(0) for b in range(len(x))]), module.classes)


class ByLength(Encoder):
    """Takes the number of tokens of each sequence, and returns the sum of their results."""

    def pooled(self, tokens, keep):
        return torch.where(keep[..., None], tokens, 0).sum(dim=-2)

    def forward(self, x, lengths):
        return super().forward(x, torch.arange(x.shape[1]) < lengths[:, None])


class BeyondLength(ByLength):
    def pooled(self, tokens, keep):
        return tokens.sum(dim=-2)  # wrong: AS412 sum_over_lengths


def _lengths(cls, B, H, L, Dk):
    args = torch.randn(B, L, H * Dk), _kept(B, L).sum(-1)
    return cls(H * Dk, H), args, {}, ["lengths=length"]


def wrong_sum_over_lengths(B, H, L, Dk):
    return _lengths(BeyondLength, B, H, L, Dk)


def right_sum_over_lengths(B, H, L, Dk):
    return _lengths(ByLength, B, H, L, Dk)


def reference_sum_over_lengths(module, x, lengths):
    tokens = _tokens(module, x, torch.arange(x.shape[1]) < lengths[:, None])
    return torch.stack([tokens[b, : int(lengths[b])].sum(0) for b in range(len(x))])


class Largest(Encoder):
    """Gets sequence-first tokens, of which `bias` adds -inf to the scores of those that are padding."""

    def pooled(self, tokens, keep):
        return tokens.masked_fill(~keep[..., None], -torch.inf).movedim(1, 0).amax(dim=0)

    def forward(self, x, bias):
        return super().forward(x.movedim(0, 1), bias[:, 0] == 0)


class LargestOfAll(Largest):
    def pooled(self, tokens, keep):
        return tokens.movedim(1, 0).amax(dim=0)  # wrong: AS412 largest_of_all


def _largest(cls, B, H, L, Dk):
    bias = torch.where(_kept(B, L), 0.0, -torch.inf)[:, None]
    return cls(H * Dk, H), (torch.randn(L, B, H * Dk), bias), {}, ["bias=add", "seq-first"]


def wrong_largest_of_all(B, H, L, Dk):
    return _largest(LargestOfAll, B, H, L, Dk)


def right_largest_of_all(B, H, L, Dk):
    return _largest(Largest, B, H, L, Dk)


def reference_largest_of_all(module, x, bias):
    tokens = _tokens(module, x.transpose(0, 1), bias[:, 0] == 0)
    return torch.stack([tokens[b, bias[b, 0] == 0].amax(0) for b in range(x.shape[1])])

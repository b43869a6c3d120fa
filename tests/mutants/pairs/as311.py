"""AS311, and AS302: blocks of keys are merged to other weights than those of one softmax over all of them."""

import math

import torch
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, merge, visible

SELF = ({"B": 4, "H": 5, "L": 10, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 11, "Dk": 3})
PAST = (
    {"B": 4, "H": 5, "L": 7, "Lp": 9, "Dk": 6},
    {"B": 5, "H": 4, "L": 9, "Lp": 6, "Dk": 8},
    {"B": 6, "H": 7, "L": 5, "Lp": 8, "Dk": 3},
)
PAIRS = [
    ("AS311", "maxima_without_rescaling", *SELF),
    ("AS311", "tiles_in_powers_of_two", *SELF),
    ("AS311", "own_maximum_of_each_block", *SELF),
    ("AS311", "past_weighed_by_maxima", *PAST),
    ("AS311", "last_log_sum_kept", *SELF),
    ("AS311", "padded_parts_by_maxima", *SELF),
    ("AS311", "splits_by_maxima", *SELF),
    ("AS302", "softmax_of_each_block", *SELF),
    ("AS302", "context_not_rescaled", *SELF),
]
BLOCK = 4


def _three(function, B, H, L, Dk):
    return function, tuple(torch.randn(3, B, H, L, Dk)), {}


def reference_whole(_, q, k, v):
    return attend(q, k, v)


def running(q, k, v):
    peak = q.new_full((*q.shape[:-1], 1), -math.inf)
    total, context = torch.zeros_like(peak), torch.zeros_like(q)
    for keys, values in zip(k.split(BLOCK, 2), v.split(BLOCK, 2), strict=True):
        scores = q @ keys.mT / math.sqrt(q.shape[-1])
        before, peak = peak, torch.maximum(peak, scores.amax(-1, keepdim=True))
        parts, factor = (scores - peak).exp(), (before - peak).exp()
        total = total * factor + parts.sum(-1, keepdim=True)
        context = context * factor + parts @ values
    return context / total


def running_without_factor(q, k, v):
    peak = q.new_full((*q.shape[:-1], 1), -math.inf)
    total, context = torch.zeros_like(peak), torch.zeros_like(q)
    for keys, values in zip(k.split(BLOCK, 2), v.split(BLOCK, 2), strict=True):
        scores = q @ keys.mT / math.sqrt(q.shape[-1])
        peak = torch.maximum(peak, scores.amax(-1, keepdim=True))
        parts = (scores - peak).exp()
        total = total + parts.sum(-1, keepdim=True)
        context = context + parts @ values  # wrong: AS311 maxima_without_rescaling
    return context / total


def wrong_maxima_without_rescaling(B, H, L, Dk):
    return _three(running_without_factor, B, H, L, Dk)


def right_maxima_without_rescaling(B, H, L, Dk):
    return _three(running, B, H, L, Dk)


reference_maxima_without_rescaling = reference_whole


class Tiles(nn.Module):
    """Causal attention of tiles of queries to tiles of keys, with powers of two."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def factor(self, before, after):
        return torch.exp2(before - after)

    def tile(self, q, k, v, first):
        peak, total = q.new_full(q.shape[:-1], -1e30), q.new_zeros(q.shape[:-1])
        context = torch.zeros_like(q)
        own = torch.arange(first, first + q.shape[2])[:, None]
        for start in range(0, first + q.shape[2], BLOCK):
            keys, values = k[:, :, start : start + BLOCK], v[:, :, start : start + BLOCK]
            scores = torch.einsum("bhid,bhjd->bhij", q, keys) * (q.shape[-1] ** -0.5 / math.log(2))
            scores = scores.masked_fill(start + torch.arange(keys.shape[2]) > own, -1e30)
            new = torch.maximum(peak, scores.max(-1).values)
            parts, factor = torch.exp2(scores - new[..., None]), self.factor(peak, new)
            total = total * factor + parts.sum(-1)
            context = context * factor[..., None] + torch.einsum("bhij,bhjd->bhid", parts, values)
            peak = new
        return context / total[..., None]

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        context = torch.empty_like(q)
        for start in range(0, q.shape[2], BLOCK):
            context[:, :, start : start + BLOCK] = self.tile(q[:, :, start : start + BLOCK], k, v, start)
        return self.out(context.transpose(1, 2).flatten(2))


class WrongTiles(Tiles):
    def factor(self, before, after):
        return torch.ones_like(after)


def _tiles(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["causal"]


def wrong_tiles_in_powers_of_two(B, H, L, Dk):
    return _tiles(WrongTiles, B, H, L, Dk)


def right_tiles_in_powers_of_two(B, H, L, Dk):
    return _tiles(Tiles, B, H, L, Dk)


def reference_tiles_in_powers_of_two(module, x):
    q, k, v = fused(x, module.qkv, module.n_heads)
    return merge(attend(q, k, v, visible(x.shape[1], x.shape[1])), module.out)


def blocks_of_one_maximum(q, k, v):
    scores = [q @ keys.mT * q.shape[-1] ** -0.5 for keys in k.split(BLOCK, 2)]
    peak = torch.cat(scores, -1).amax(-1, keepdim=True)
    parts = [(one - peak).exp() for one in scores]
    context = sum(one @ values for one, values in zip(parts, v.split(BLOCK, 2), strict=True))
    return context / sum(one.sum(-1, keepdim=True) for one in parts)


def blocks_of_their_own(q, k, v):
    scores = [q @ keys.mT * q.shape[-1] ** -0.5 for keys in k.split(BLOCK, 2)]
    parts = [(one - one.amax(-1, keepdim=True)).exp() for one in scores]
    context = sum(one @ values for one, values in zip(parts, v.split(BLOCK, 2), strict=True))
    return context / sum(one.sum(-1, keepdim=True) for one in parts)


def wrong_own_maximum_of_each_block(B, H, L, Dk):
    return _three(blocks_of_their_own, B, H, L, Dk)


def right_own_maximum_of_each_block(B, H, L, Dk):
    return _three(blocks_of_one_maximum, B, H, L, Dk)


reference_own_maximum_of_each_block = reference_whole


class PastAndNew(nn.Module):
    """Attends to past keys and to new ones by themselves, and weighs the contexts."""

    def size(self, scores):
        return scores.logsumexp(-1, keepdim=True)

    def forward(self, q, k, v, past_k, past_v):
        past, new = q @ past_k.mT / q.shape[-1] ** 0.5, q @ k.mT / q.shape[-1] ** 0.5
        share = (self.size(past) - self.size(new)).sigmoid()
        return share * (past.softmax(-1) @ past_v) + (1 - share) * (new.softmax(-1) @ v)


class ByMaxima(PastAndNew):
    def size(self, scores):
        return scores.amax(-1, keepdim=True)


def _past(cls, B, H, L, Lp, Dk):
    past = torch.randn(2, B, H, Lp, Dk)
    return cls(), (*torch.randn(3, B, H, L, Dk), *past), {}


def wrong_past_weighed_by_maxima(B, H, L, Lp, Dk):
    return _past(ByMaxima, B, H, L, Lp, Dk)


def right_past_weighed_by_maxima(B, H, L, Lp, Dk):
    return _past(PastAndNew, B, H, L, Lp, Dk)


def reference_past_weighed_by_maxima(_, q, k, v, past_k, past_v):
    return attend(q, torch.cat((past_k, k), 2), torch.cat((past_v, v), 2))


def merged_pairs(q, k, v, kept):
    context = size = None
    for keys, values in zip(k.split(BLOCK, 2), v.split(BLOCK, 2), strict=True):
        scores = torch.matmul(q, keys.transpose(-2, -1)).mul(q.shape[-1] ** -0.5)
        own, own_size = torch.softmax(scores, -1) @ values, torch.logsumexp(scores, -1, keepdim=True)
        if context is None:
            context, size = own, own_size
            continue
        both = torch.logaddexp(size, own_size)
        context = context * (size - both).exp() + own * (own_size - both).exp()
        size = kept(both, own_size)
    return context


def merged_by_log_sums(q, k, v):
    return merged_pairs(q, k, v, lambda both, own: both)


def merged_by_last_log_sum(q, k, v):
    return merged_pairs(q, k, v, lambda both, own: own)


def wrong_last_log_sum_kept(B, H, L, Dk):
    return _three(merged_by_last_log_sum, B, H, L, Dk)


def right_last_log_sum_kept(B, H, L, Dk):
    return _three(merged_by_log_sums, B, H, L, Dk)


reference_last_log_sum_kept = reference_whole


def parts_of_blocks(q, k, v):
    for keys, values in zip(k.split(BLOCK, 2), v.split(BLOCK, 2), strict=True):
        scores = q @ keys.mT / math.sqrt(q.shape[-1])
        yield scores.softmax(-1) @ values, scores.logsumexp(-1, keepdim=True)


def shares_of_blocks(q, k, v):
    contexts, sizes = zip(*parts_of_blocks(q, k, v), strict=True)
    return (torch.stack(contexts) * torch.stack(sizes).softmax(0)).sum(0)


def sum_of_blocks(q, k, v):
    contexts, _ = zip(*parts_of_blocks(q, k, v), strict=True)
    return torch.stack(contexts).sum(0)  # wrong: AS302 softmax_of_each_block


def wrong_softmax_of_each_block(B, H, L, Dk):
    return _three(sum_of_blocks, B, H, L, Dk)


def right_softmax_of_each_block(B, H, L, Dk):
    return _three(shares_of_blocks, B, H, L, Dk)


reference_softmax_of_each_block = reference_whole


class Running(nn.Module):
    """A running softmax of projected tokens."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def add(self, context, more, factor):
        return context * factor + more

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        peak = q.new_full((*q.shape[:-1], 1), -math.inf)
        total, context = torch.zeros_like(peak), torch.zeros_like(q)
        for start in range(0, k.shape[2], BLOCK):
            scores = q @ k.narrow(2, start, min(BLOCK, k.shape[2] - start)).mT / math.sqrt(q.shape[-1])
            new = torch.maximum(peak, scores.amax(-1, keepdim=True))
            parts, factor, peak = (scores - new).exp(), (peak - new).exp(), new
            total = total * factor + parts.sum(-1, keepdim=True)
            context = self.add(context, parts @ v[:, :, start : start + BLOCK], factor)
        context = context / total  # wrong: AS302 context_not_rescaled
        return self.out(context.transpose(1, 2).flatten(2))


class WrongRunning(Running):
    def add(self, context, more, factor):
        return context + more


def _running(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def wrong_context_not_rescaled(B, H, L, Dk):
    return _running(WrongRunning, B, H, L, Dk)


def right_context_not_rescaled(B, H, L, Dk):
    return _running(Running, B, H, L, Dk)


def reference_context_not_rescaled(module, x):
    return merge(attend(*fused(x, module.qkv, module.n_heads)), module.out)


def padded_parts(q, k, v, padding, with_sums):
    """Normalised contexts of parts of the keys, merged by the log-sum-exp of their scores."""
    contexts, logs = [], []
    for part in torch.arange(k.shape[2]).split(BLOCK):
        scores = (q @ k[:, :, part].mT * q.shape[-1] ** -0.5).masked_fill(padding[:, None, None, part], -1e30)
        most = scores.amax(dim=-1, keepdim=True)
        exponentials = torch.exp(scores - most)
        total = exponentials.sum(dim=-1, keepdim=True)
        contexts.append(exponentials / total @ v[:, :, part])
        logs.append(most + total.log() if with_sums else most)
    return (torch.stack(logs).softmax(dim=0) * torch.stack(contexts)).sum(dim=0)


def _padded_parts_by_maxima(with_sums, B, H, L, Dk):
    padding = torch.arange(L) >= torch.randint(2, L + 1, (B, 1))
    return padded_parts, (*torch.randn(3, B, H, L, Dk), padding, with_sums), {}, ["padding=drop"]


def wrong_padded_parts_by_maxima(B, H, L, Dk):
    return _padded_parts_by_maxima(False, B, H, L, Dk)


def right_padded_parts_by_maxima(B, H, L, Dk):
    return _padded_parts_by_maxima(True, B, H, L, Dk)


def reference_padded_parts_by_maxima(function, q, k, v, padding, with_sums):
    return attend(q, k, v, keep=~padding[:, None, None])


def splits(q, k, v, size_of):
    """Contexts of splits of the keys, each divided by its own sum, and merged by what `size_of` says of a split."""
    contexts, sizes = [], []
    for keys, values in zip(k.split(BLOCK, 2), v.split(BLOCK, 2), strict=True):
        scores = torch.einsum("bhid,bhjd->bhij", q, keys) / math.sqrt(q.shape[-1])
        top = scores.max(dim=-1).values
        parts = torch.exp(scores - top[..., None])
        total = parts.sum(dim=-1)
        contexts.append(torch.einsum("bhij,bhjd->bhid", parts, values) / total[..., None])
        sizes.append(size_of(top, total))
    together = torch.stack(contexts, dim=0)  # wrong: AS311 splits_by_maxima
    return (torch.softmax(torch.stack(sizes, dim=0), dim=0)[..., None] * together).sum(dim=0)


def splits_by_log_sums(q, k, v):
    return splits(q, k, v, lambda top, total: top + total.log())


def splits_by_maxima(q, k, v):
    return splits(q, k, v, lambda top, total: top)


def wrong_splits_by_maxima(B, H, L, Dk):
    return _three(splits_by_maxima, B, H, L, Dk)


def right_splits_by_maxima(B, H, L, Dk):
    return _three(splits_by_log_sums, B, H, L, Dk)


reference_splits_by_maxima = reference_whole

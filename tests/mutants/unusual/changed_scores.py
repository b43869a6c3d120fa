"""Claimed scales of scores that are capped, mixed, chosen by their size, or summed up in chunks."""

import torch
from torch import nn

from tests.mutants.plain import attention, causal

SIZES = ({"B": 2, "H": 4, "L": 6, "Dk": 5}, {"B": 5, "H": 2, "L": 9, "Dk": 7})
UNUSUAL = [
    ("capped_by_a_quotient", *SIZES),
    ("capped_and_chosen", *SIZES),
    ("scaled_after_mixing", *SIZES),
    ("mixed_in_linear_layer", *SIZES),
    ("largest_by_kth_value", *SIZES),
    ("largest_of_index", *SIZES),
    ("largest_mask_added", *SIZES),
    ("causal_chunks", *SIZES),
    ("rows_divided_last", *SIZES),
    ("chunks_of_scaled_queries", *SIZES),
]
CLAIM = ["scale=1/sqrt(Dk)"]


class QuotientCap(nn.Module):
    def forward(self, q, k, v):
        scores = q @ k.mT / q.shape[-1] ** 0.5
        return (scores / (1 + scores.abs() / 4)).softmax(dim=-1) @ v


class CappedAndChosen(nn.Module):
    def forward(self, q, k, v):
        scores = 7 * torch.tanh(q @ k.mT / q.shape[-1] ** 0.5 / 7)
        return scores.masked_fill(scores < scores.topk(3).values[..., -1:], -torch.inf).softmax(dim=-1) @ v


class MixThenScale(nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.mix = nn.Parameter(torch.randn(heads, heads))

    def forward(self, q, k, v):
        mixed = torch.tensordot(q @ k.mT, self.mix, dims=([1], [0])).movedim(-1, 1)
        return (mixed / q.shape[-1] ** 0.5).softmax(dim=-1) @ v


class MixingLayer(nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.mix = nn.Linear(heads, heads, bias=False)

    def forward(self, q, k, v):
        scores = (q * q.shape[-1] ** -0.5) @ k.mT
        return self.mix(scores.movedim(1, -1)).movedim(-1, 1).softmax(dim=-1) @ v


class KthValue(nn.Module):
    def forward(self, q, k, v):
        scores = q @ k.mT / q.shape[-1] ** 0.5
        least = scores.kthvalue(scores.shape[-1] - 2, dim=-1, keepdim=True).values
        return torch.where(scores >= least, scores, -torch.inf).softmax(dim=-1) @ v


class OfIndex(nn.Module):
    def forward(self, q, k, v):
        scores = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5
        places = scores.argsort(dim=-1, descending=True)[..., :3]
        kept = torch.zeros_like(scores, dtype=torch.bool).scatter(-1, places, True)
        return scores.masked_fill(~kept, -torch.inf).softmax(dim=-1) @ v


class MaskAdded(nn.Module):
    def forward(self, q, k, v):
        scores = (q / q.shape[-1] ** 0.5) @ k.mT
        hidden = torch.where(scores < scores.topk(3, dim=-1).values[..., 2:], -1e9, 0.0)
        return (scores + hidden.to(scores.dtype)).softmax(dim=-1) @ v


def causal_chunks(q, k, v):
    """A running softmax with a mask."""
    count = q.shape[-2]
    peak, total, context = torch.full_like(q[..., :1], -1e30), torch.zeros_like(q[..., :1]), torch.zeros_like(q)
    for start in range(0, count, 4):
        keys, values = k[..., start : start + 4, :], v[..., start : start + 4, :]
        later = torch.arange(start, start + keys.shape[-2]) > torch.arange(count)[:, None]
        scores = (q @ keys.mT / q.shape[-1] ** 0.5).masked_fill(later, -torch.inf)
        higher = torch.maximum(peak, scores.amax(dim=-1, keepdim=True))
        kept, weights = (peak - higher).exp(), (scores - higher).exp()
        total, context, peak = total * kept + weights.sum(-1, keepdim=True), context * kept + weights @ values, higher
    return context / total


def rows_divided_last(q, k, v):
    pieces = []
    for rows in q.split(4, dim=-2):
        scores = torch.einsum("bhid,bhjd->bhij", rows, k) / q.shape[-1] ** 0.5
        weights = (scores - scores.amax(dim=-1, keepdim=True)).exp()
        pieces.append(torch.einsum("bhij,bhjd->bhid", weights, v) / weights.sum(dim=-1, keepdim=True))
    return torch.cat(pieces, dim=-2)


def chunks_of_scaled_queries(q, k, v):
    q = q * q.shape[-1] ** -0.5
    peak, total, context = torch.full_like(q[..., :1], -torch.inf), torch.zeros_like(q[..., :1]), torch.zeros_like(q)
    for keys, values in zip(k.chunk(3, dim=2), v.chunk(3, dim=2), strict=True):
        scores = torch.einsum("bhid,bhjd->bhij", q, keys)
        higher = torch.maximum(peak, scores.max(dim=-1, keepdim=True).values)
        weights = torch.exp(scores - higher)
        kept = torch.exp(peak - higher)
        total = total * kept + weights.sum(dim=-1, keepdim=True)
        context = context * kept + torch.einsum("bhij,bhjd->bhid", weights, values)
        peak = higher
    return context / total


def _given(target, claims, B, H, L, Dk):
    return target, tuple(torch.randn(B, H, L, Dk) for _ in range(3)), {}, claims


def case_capped_by_a_quotient(B, H, L, Dk):
    return _given(QuotientCap(), CLAIM, B, H, L, Dk)


def case_capped_and_chosen(B, H, L, Dk):
    return _given(CappedAndChosen(), CLAIM, B, H, L, Dk)


def case_scaled_after_mixing(B, H, L, Dk):
    return _given(MixThenScale(H), CLAIM, B, H, L, Dk)


def case_mixed_in_linear_layer(B, H, L, Dk):
    return _given(MixingLayer(H), CLAIM, B, H, L, Dk)


def case_largest_by_kth_value(B, H, L, Dk):
    return _given(KthValue(), CLAIM, B, H, L, Dk)


def case_largest_of_index(B, H, L, Dk):
    return _given(OfIndex(), CLAIM, B, H, L, Dk)


def case_largest_mask_added(B, H, L, Dk):
    return _given(MaskAdded(), CLAIM, B, H, L, Dk)


def case_causal_chunks(B, H, L, Dk):
    return _given(causal_chunks, [*CLAIM, "causal"], B, H, L, Dk)


def reference_causal_chunks(function, q, k, v):
    return attention(q, k, v, keep=causal(q.shape[-2], k.shape[-2]))


def case_rows_divided_last(B, H, L, Dk):
    return _given(rows_divided_last, CLAIM, B, H, L, Dk)


def reference_rows_divided_last(function, q, k, v):
    return attention(q, k, v)


def case_chunks_of_scaled_queries(B, H, L, Dk):
    return _given(chunks_of_scaled_queries, CLAIM, B, H, L, Dk)


def reference_chunks_of_scaled_queries(function, q, k, v):
    return attention(q, k, v)

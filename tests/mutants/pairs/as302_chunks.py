"""AS302: causal attention without a softmax, in chunks: the divisor lacks the keys of earlier chunks."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import fused, merge

SIZES = (
    {"B": 2, "H": 3, "L": 4, "Dk": 5},
    {"B": 3, "H": 2, "L": 5, "Dk": 7},
    {"B": 5, "H": 3, "L": 4, "Dk": 6},
)
SIZE = 3
"""The number of tokens in a chunk; there are L chunks."""
PAIRS = [
    ("AS302", "keys_of_own_chunk", *SIZES),
    ("AS302", "weights_of_own_chunk", *SIZES),
    ("AS302", "steps_without_earlier_keys", *SIZES),
]


def positive(t):
    return F.elu(t) + 1


def normalised(q, k, v):
    """B H L Dk, entry by entry: each query over all keys up to its own."""
    q, k = (torch.where(t > 0, t + 1, t.exp()) for t in (q, k))
    weights = torch.einsum("bhid,bhjd->bhij", q, k) * torch.ones(q.shape[2], q.shape[2], dtype=q.dtype).tril()
    return torch.einsum("bhij,bhjd->bhid", weights / weights.sum(-1, keepdim=True), v)


class Chunked(nn.Module):
    """All chunks at once: a running sum of keys and values over the chunks, and weights within each."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.to_qkv, self.to_out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)

    def normaliser(self, q, k):
        total = k.sum(dim=3)
        earlier = total.cumsum(dim=2) - total
        return (q * (k.cumsum(dim=3) + earlier.unsqueeze(3))).sum(dim=-1, keepdim=True)

    def forward(self, x):
        b, length, _ = x.shape
        q, k, v = (
            t.view(b, length // SIZE, SIZE, self.heads, -1).permute(0, 3, 1, 2, 4)
            for t in self.to_qkv(x).chunk(3, dim=-1)
        )
        q, k = positive(q), positive(k)
        states = torch.einsum("bhncd,bhnce->bhnde", k, v)
        from_earlier = torch.einsum("bhncd,bhnde->bhnce", q, states.cumsum(dim=2) - states)
        within = torch.einsum("bhnid,bhnjd->bhnij", q, k).tril() @ v
        out = (from_earlier + within) / (self.normaliser(q, k) + 1e-6)
        return self.to_out(out.permute(0, 2, 3, 1, 4).reshape(b, length, -1))


class ChunkedByOwnKeys(Chunked):
    def normaliser(self, q, k):
        return (q * k.cumsum(dim=3)).sum(dim=-1, keepdim=True)  # wrong: AS302 keys_of_own_chunk


def _chunked(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, SIZE * L, H * Dk),), {}


def wrong_keys_of_own_chunk(B, H, L, Dk):
    return _chunked(ChunkedByOwnKeys, B, H, L, Dk)


def right_keys_of_own_chunk(B, H, L, Dk):
    return _chunked(Chunked, B, H, L, Dk)


def reference_keys_of_own_chunk(module, x):
    q, k, v = fused(x, module.to_qkv, module.heads)
    weights = torch.einsum("bhid,bhjd->bhij", positive(q), positive(k)).tril()
    return merge(torch.einsum("bhij,bhjd->bhid", weights, v) / (weights.sum(-1, keepdim=True) + 1e-6), module.to_out)


def in_blocks(q, k, v, is_global=True):
    """Sums of earlier blocks are shifted by one block; the divisor adds up the weights."""
    q, k, v = (t.unflatten(2, (-1, SIZE)) for t in (positive(q), positive(k), v))
    weights = (q @ k.mT) * torch.ones(SIZE, SIZE, dtype=q.dtype).tril()
    states = F.pad((k.mT @ v).cumsum(2)[:, :, :-1], (0, 0, 0, 0, 1, 0))
    keys = F.pad(k.sum(3).cumsum(2)[:, :, :-1], (0, 0, 1, 0))
    total = weights.sum(-1, keepdim=True)  # wrong: AS302 weights_of_own_chunk
    if is_global:
        total = total + q @ keys.unsqueeze(-1)
    return ((weights @ v + q @ states) / total).flatten(2, 3)


def in_blocks_of_their_own(q, k, v):
    return in_blocks(q, k, v, is_global=False)


def _heads(called, B, H, L, Dk):
    return called, tuple(torch.randn(3, B, H, SIZE * L, Dk)), {}


def wrong_weights_of_own_chunk(B, H, L, Dk):
    return _heads(in_blocks_of_their_own, B, H, L, Dk)


def right_weights_of_own_chunk(B, H, L, Dk):
    return _heads(in_blocks, B, H, L, Dk)


def reference_weights_of_own_chunk(called, q, k, v):
    return normalised(q, k, v)


class Stepwise(nn.Module):
    """One chunk after the other, which may be shorter in the end, with the sums of those before."""

    def __init__(self, size):
        super().__init__()
        self.size = size

    def total(self, q, k, keys):
        return (q * (k.cumsum(dim=2) + keys)).sum(dim=-1, keepdim=True)

    def forward(self, q, k, v):
        q, k = positive(q), positive(k)
        state, keys = torch.zeros_like(k[:, :, :1].mT @ v[:, :, :1]), torch.zeros_like(k[:, :, :1])
        out = torch.empty_like(v)
        for start in range(0, q.shape[2], self.size):
            here = slice(start, start + self.size)
            own_q, own_k, own_v = q[:, :, here], k[:, :, here], v[:, :, here]
            scores = torch.einsum("bhid,bhjd->bhij", own_q, own_k)
            later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            context = scores.masked_fill(later, 0) @ own_v + own_q @ state
            out[:, :, here] = context / self.total(own_q, own_k, keys)
            state = state + own_k.mT @ own_v
            keys = keys + own_k.sum(dim=2, keepdim=True)
        return out


class StepwiseByOwnKeys(Stepwise):
    def total(self, q, k, keys):
        return (q * k.cumsum(dim=2)).sum(dim=-1, keepdim=True)  # wrong: AS302 steps_without_earlier_keys


def wrong_steps_without_earlier_keys(B, H, L, Dk):
    return _heads(StepwiseByOwnKeys(5), B, H, L, Dk)


def right_steps_without_earlier_keys(B, H, L, Dk):
    return _heads(Stepwise(5), B, H, L, Dk)


def reference_steps_without_earlier_keys(module, q, k, v):
    return normalised(q, k, v)

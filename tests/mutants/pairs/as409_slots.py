"""AS409: slots of a preallocated cache take part in the softmax before anything is written to them."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, merge, visible
from tests.mutants.pairs.caches import PAST

SELF = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 5, "Dk": 4})
PAIRS = [
    ("AS409", "buffer_up_to_its_length", *SELF),
    ("AS409", "cache_made_in_the_call", *PAST),
    ("AS409", "steps_of_the_whole_cache", *SELF),
]


class Buffered(nn.Module):
    """Writes the first tokens to a cache with more slots than these, and returns it too."""

    def __init__(self, width, n_heads, batch, slots):
        super().__init__()
        self.n_heads, self.qkv = n_heads, nn.Linear(width, 3 * width)
        self.register_buffer("empty", torch.zeros(2, batch, slots, n_heads, width // n_heads), persistent=False)

    def written(self, cache, end):
        return cache[:, :, :end]

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.n_heads, -1)).unbind(2)
        cache = self.empty.clone()
        cache[0, :, : x.shape[1]] = k
        cache[1, :, : x.shape[1]] = v
        keys, values = self.written(cache, x.shape[1])
        scores = torch.einsum("bihd,bjhd->bhij", q, keys) * q.shape[-1] ** -0.5
        weights = scores.softmax(dim=-1)  # wrong: AS409 buffer_up_to_its_length
        return torch.einsum("bhij,bjhd->bihd", weights, values).flatten(2), cache


class WholeBuffer(Buffered):
    def written(self, cache, end):
        return cache


def _buffered(cls, B, H, L, Dk):
    return cls(H * Dk, H, B, L + 6), (torch.randn(B, L, H * Dk),), {}


def wrong_buffer_up_to_its_length(B, H, L, Dk):
    return _buffered(WholeBuffer, B, H, L, Dk)


def right_buffer_up_to_its_length(B, H, L, Dk):
    return _buffered(Buffered, B, H, L, Dk)


def reference_buffer_up_to_its_length(module, x):
    return merge(attend(*fused(x, module.qkv, module.n_heads)))


def extended(q, k, v, past_key, past_value):
    """Attend to the past and to the new tokens, which one tensor with room for 64 tokens holds."""
    past, end = past_key.shape[2], past_key.shape[2] + k.shape[2]
    keys, values = (t.new_zeros(*t.shape[:2], 64, t.shape[-1]) for t in (k, v))
    for cache, old, new in ((keys, past_key, k), (values, past_value, v)):
        cache[:, :, :past].copy_(old)
        cache[:, :, past:end].copy_(new)
    return F.scaled_dot_product_attention(q, keys[:, :, :end], values[:, :, :end])


def extended_by_room(q, k, v, past_key, past_value):
    past, end = past_key.shape[2], past_key.shape[2] + k.shape[2]
    keys, values = (t.new_zeros(*t.shape[:2], 64, t.shape[-1]) for t in (k, v))
    for cache, old, new in ((keys, past_key, k), (values, past_value, v)):
        cache[:, :, :past].copy_(old)
        cache[:, :, past:end].copy_(new)
    return F.scaled_dot_product_attention(q, keys, values)  # wrong: AS409 cache_made_in_the_call


def _extended(function, B, H, L, Lp, Dk):
    return function, (*torch.randn(3, B, H, L, Dk), *torch.randn(2, B, H, Lp, Dk)), {}


def wrong_cache_made_in_the_call(B, H, L, Lp, Dk):
    return _extended(extended_by_room, B, H, L, Lp, Dk)


def right_cache_made_in_the_call(B, H, L, Lp, Dk):
    return _extended(extended, B, H, L, Lp, Dk)


def reference_cache_made_in_the_call(function, q, k, v, past_key, past_value):
    return attend(q, torch.cat((past_key, k), 2), torch.cat((past_value, v), 2))


class Steps(nn.Module):
    """Decodes token by token."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads, self.qkv = n_heads, nn.Linear(width, 3 * width)

    def filled(self, cache, count):
        return cache[:, :count].clone()

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.n_heads, -1)).unbind(2)
        keys, values = torch.zeros_like(k), torch.zeros_like(v)
        contexts = []
        for step in range(x.shape[1]):
            keys[:, step], values[:, step] = k[:, step], v[:, step]
            own_keys, own_values = self.filled(keys, step + 1), self.filled(values, step + 1)
            scores = torch.einsum("bhd,bjhd->bhj", q[:, step], own_keys) / q.shape[-1] ** 0.5
            weights = scores.softmax(dim=-1)  # wrong: AS409 steps_of_the_whole_cache
            contexts.append(torch.einsum("bhj,bjhd->bhd", weights, own_values))
        return torch.stack(contexts, dim=1).flatten(2)


class WholeCache(Steps):
    def filled(self, cache, count):
        return cache.clone()


def _steps(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["causal"]


def wrong_steps_of_the_whole_cache(B, H, L, Dk):
    return _steps(WholeCache, B, H, L, Dk)


def right_steps_of_the_whole_cache(B, H, L, Dk):
    return _steps(Steps, B, H, L, Dk)


def reference_steps_of_the_whole_cache(module, x):
    return merge(attend(*fused(x, module.qkv, module.n_heads), visible(x.shape[1], x.shape[1])))

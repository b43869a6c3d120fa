"""AS905: a cache of the last Lp tokens is returned without the new ones; each target returns its cache first."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.mutants.plain import split

PAST = (
    {"B": 4, "H": 5, "L": 7, "Lp": 9, "Dk": 6},
    {"B": 5, "H": 4, "L": 3, "Lp": 6, "Dk": 8},
    {"B": 6, "H": 7, "L": 5, "Lp": 8, "Dk": 4},
)
WINDOW = (
    {"B": 4, "H": 5, "L": 9, "W": 6, "Dk": 8},
    {"B": 5, "H": 4, "L": 8, "W": 3, "Dk": 6},
    {"B": 6, "H": 7, "L": 9, "W": 5, "Dk": 4},
)
PAIRS = [
    ("AS905", "rolling_pair", *PAST),
    ("AS905", "stacked_cache", *PAST),
    ("AS905", "dictionary_of_keys", *PAST),
    ("AS905", "kept_from_the_front", *WINDOW),
]


class Rolling(nn.Module):
    """The cache is a pair of tensors (B, H, Lp, Dk)."""

    def __init__(self, d_model, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(d_model, 3 * d_model)

    def cache(self, past, joined):
        return tuple(new[:, :, -old.size(2) :] for old, new in zip(past, joined, strict=True))

    def forward(self, x, past):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        k = torch.cat((past[0], k), dim=2)  # wrong: AS905 rolling_pair
        v = torch.cat((past[1], v), dim=2)
        context = (q @ k.mT / q.size(-1) ** 0.5).softmax(-1) @ v
        return self.cache(past, (k, v)), context.transpose(1, 2).flatten(2)


class Standing(Rolling):
    def cache(self, past, joined):
        return past


def _rolling_pair(cls, B, H, L, Lp, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), (torch.randn(B, H, Lp, Dk), torch.randn(B, H, Lp, Dk))), {}


def wrong_rolling_pair(B, H, L, Lp, Dk):
    return _rolling_pair(Standing, B, H, L, Lp, Dk)


def right_rolling_pair(B, H, L, Lp, Dk):
    return _rolling_pair(Rolling, B, H, L, Lp, Dk)


def reference_rolling_pair(module, x, past):
    keys = split(module.qkv(x).chunk(3, dim=-1)[1], module.heads)
    return torch.cat((past[0], keys), dim=2)[:, :, keys.shape[2] :]


def stacked(q: Tensor, k: Tensor, v: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
    """Attend in (B, L, H, Dk); the cache is (2, B, Lp, H, Dk)."""
    cache_k, cache_v = cache
    keys = torch.cat([cache_k, k], 1)
    values = torch.cat([cache_v, v], 1)
    weights = torch.einsum("bihd,bjhd->bhij", q, keys).mul(q.shape[-1] ** -0.5).softmax(-1)
    new = torch.stack([keys, values])[:, :, k.shape[1] :]
    return new, torch.einsum("bhij,bjhd->bihd", weights, values)


def stacked_standing(q: Tensor, k: Tensor, v: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
    """Attend in (B, L, H, Dk); the cache is (2, B, Lp, H, Dk)."""
    cache_k, cache_v = cache
    keys = torch.cat([cache_k, k], 1)  # wrong: AS905 stacked_cache
    values = torch.cat([cache_v, v], 1)
    weights = torch.einsum("bihd,bjhd->bhij", q, keys).mul(q.shape[-1] ** -0.5).softmax(-1)
    return cache.clone(), torch.einsum("bhij,bjhd->bihd", weights, values)


def _stacked_cache(function, B, H, L, Lp, Dk):
    return function, (*(torch.randn(B, L, H, Dk) for _ in range(3)), torch.randn(2, B, Lp, H, Dk)), {}


def wrong_stacked_cache(B, H, L, Lp, Dk):
    return _stacked_cache(stacked_standing, B, H, L, Lp, Dk)


def right_stacked_cache(B, H, L, Lp, Dk):
    return _stacked_cache(stacked, B, H, L, Lp, Dk)


def reference_stacked_cache(function, q, k, v, cache):
    return torch.cat([cache, torch.stack([k, v])], dim=2)[:, :, k.shape[1] :]


class Decoder(nn.Module):
    """Fused attention; the cache is a dictionary."""

    def __init__(self, d_model, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(d_model, d_model) for _ in range(3))

    def updated(self, cache, k, v):
        length = k.shape[2] - cache["k"].shape[2]
        return {"k": k[:, :, length:], "v": v[:, :, length:]}

    def forward(self, x, cache):
        q, k, v = (one(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for one in (self.q, self.k, self.v))
        k = torch.cat((cache["k"], k), dim=2)  # wrong: AS905 dictionary_of_keys
        v = torch.cat((cache["v"], v), dim=2)
        context = F.scaled_dot_product_attention(q, k, v)
        return self.updated(cache, k, v), context.transpose(1, 2).flatten(2)


class ForgetfulDecoder(Decoder):
    def updated(self, cache, k, v):
        return dict(cache)


def _dictionary_of_keys(cls, B, H, L, Lp, Dk):
    cache = {"k": torch.randn(B, H, Lp, Dk), "v": torch.randn(B, H, Lp, Dk)}
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), cache), {}


def wrong_dictionary_of_keys(B, H, L, Lp, Dk):
    return _dictionary_of_keys(ForgetfulDecoder, B, H, L, Lp, Dk)


def right_dictionary_of_keys(B, H, L, Lp, Dk):
    return _dictionary_of_keys(Decoder, B, H, L, Lp, Dk)


def reference_dictionary_of_keys(module, x, cache):
    keys = split(module.k(x), module.heads)
    return torch.cat((cache["k"], keys), dim=2)[:, :, keys.shape[2] :]


class Streaming(nn.Module):
    """Keys and values are in one projection, (B, L, H, 2*Dk); the cache has the last W tokens."""

    def __init__(self, d_model, heads, window):
        super().__init__()
        self.heads, self.window = heads, window
        self.to_q, self.to_kv = nn.Linear(d_model, d_model), nn.Linear(d_model, 2 * d_model)

    def last(self, pairs):
        return pairs[:, -self.window :]

    def forward(self, chunk, heard):
        q, pairs = (part.unflatten(-1, (self.heads, -1)) for part in (self.to_q(chunk), self.to_kv(chunk)))
        pairs = torch.cat([heard, pairs], dim=1)
        k, v = pairs.chunk(2, dim=-1)
        weights = torch.einsum("bihd,bjhd->bhij", q, k).mul(q.shape[-1] ** -0.5).softmax(-1)
        return self.last(pairs), torch.einsum("bhij,bjhd->bihd", weights, v).flatten(2)


class StreamingFromTheFront(Streaming):
    def last(self, pairs):
        return pairs[:, : self.window]  # wrong: AS905 kept_from_the_front


def _kept_from_the_front(cls, B, H, L, W, Dk):
    return cls(H * Dk, H, W), (torch.randn(B, L, H * Dk), torch.randn(B, W, H, 2 * Dk)), {}


def wrong_kept_from_the_front(B, H, L, W, Dk):
    return _kept_from_the_front(StreamingFromTheFront, B, H, L, W, Dk)


def right_kept_from_the_front(B, H, L, W, Dk):
    return _kept_from_the_front(Streaming, B, H, L, W, Dk)


def reference_kept_from_the_front(module, chunk, heard):
    new = chunk @ module.to_kv.weight.T + module.to_kv.bias
    pairs = torch.stack(new.chunk(module.heads, dim=-1), dim=2)
    return torch.cat((heard, pairs), dim=1)[:, heard.shape[1] + chunk.shape[1] - module.window :]

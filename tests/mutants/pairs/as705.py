"""AS705: a cached key is rotated twice."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, heads, merge, turned, visible

SELF = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 5, "Dk": 4})
PAST = (
    {"B": 4, "H": 5, "L": 7, "Lp": 9, "Dk": 6},
    {"B": 5, "H": 4, "L": 9, "Lp": 6, "Dk": 8},
    {"B": 6, "H": 7, "L": 5, "Lp": 8, "Dk": 4},
)
PAIRS = [
    ("AS705", "prompt_as_argument", *PAST),
    ("AS705", "cache_in_the_module", *PAST),
    ("AS705", "decoded_in_chunks", *SELF),
]


def apply_rope(x, start=0):
    """Feature i is paired with feature i + Dk/2; the first token stands at start."""
    length, dim = x.shape[-2:]
    frequency = 10000.0 ** (-torch.arange(0, dim, 2, dtype=x.dtype, device=x.device) / dim)
    angle = torch.outer(torch.arange(start, start + length, dtype=x.dtype, device=x.device), frequency)
    cos, sin = angle.cos(), angle.sin()
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class RightDecoder(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.q_proj = nn.Linear(hidden, hidden, bias=False)
        self.k_proj = nn.Linear(hidden, hidden, bias=False)
        self.v_proj = nn.Linear(hidden, hidden, bias=False)
        self.o_proj = nn.Linear(hidden, hidden, bias=False)

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    @torch.no_grad()
    def prefill(self, prompt):
        return apply_rope(self.split(self.k_proj(prompt))), self.split(self.v_proj(prompt))

    def keys(self, past_key, k):
        return torch.cat((past_key, apply_rope(k, start=past_key.size(2))), dim=2)

    def forward(self, x, past_key, past_value):
        q = apply_rope(self.split(self.q_proj(x)), start=past_key.size(2))
        k = self.keys(past_key, self.split(self.k_proj(x)))
        v = torch.cat((past_value, self.split(self.v_proj(x))), dim=2)
        keep = torch.ones(q.size(2), k.size(2), dtype=torch.bool, device=x.device).tril(past_key.size(2))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=keep)
        return self.o_proj(out.transpose(1, 2).flatten(2)), k, v


class WrongDecoder(RightDecoder):
    def keys(self, past_key, k):
        return apply_rope(torch.cat((past_key, k), dim=2))  # wrong: AS705 prompt_as_argument


def _prompt_as_argument(cls, B, H, L, Lp, Dk):
    module = cls(H * Dk, H)
    past_key, past_value = module.prefill(torch.randn(B, Lp, H * Dk))
    kwargs = {"past_key": past_key, "past_value": past_value}
    return module, (torch.randn(B, L, H * Dk),), kwargs, ["causal", "rope=half"]


def wrong_prompt_as_argument(B, H, L, Lp, Dk):
    return _prompt_as_argument(WrongDecoder, B, H, L, Lp, Dk)


def right_prompt_as_argument(B, H, L, Lp, Dk):
    return _prompt_as_argument(RightDecoder, B, H, L, Lp, Dk)


def reference_prompt_as_argument(module, x, past_key, past_value):
    q, k, v = (heads(x, p, module.heads) for p in (module.q_proj, module.k_proj, module.v_proj))
    place = torch.arange(x.shape[1]) + past_key.shape[2]
    k, v = torch.cat((past_key, turned(k, place)), 2), torch.cat((past_value, v), 2)
    return merge(attend(turned(q, place), k, v, visible(q.shape[2], k.shape[2])), module.o_proj)


class KeyValueCache(nn.Module):
    """Rotated keys, and values, B Lp H Dk each."""

    def __init__(self):
        super().__init__()
        self.register_buffer("key", None)
        self.register_buffer("value", None)

    def fill(self, key, value):
        self.key, self.value = key.detach(), value.detach()


class RightCached(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.n_head = n_head
        self.norm = nn.LayerNorm(n_embd)
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)
        self.cache = KeyValueCache()

    def split(self, x):
        return tuple(t.unflatten(-1, (self.n_head, -1)).transpose(1, 2) for t in self.c_attn(x).chunk(3, dim=-1))

    def read_prompt(self, prompt):
        _, k, v = self.split(self.norm(prompt))
        self.cache.fill(apply_rope(k), v)
        return self

    def keys(self, k):
        return torch.cat((self.cache.key, apply_rope(k, self.cache.key.size(-2))), dim=-2)

    def forward(self, x):
        q, k, v = self.split(self.norm(x))
        q = apply_rope(q, self.cache.key.size(-2))
        k, v = self.keys(k), torch.cat((self.cache.value, v), dim=-2)
        att = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.size(-1))
        T, S = att.shape[-2:]
        att = att.masked_fill(torch.arange(S, device=x.device) > torch.arange(S - T, S, device=x.device)[:, None], -1e9)
        y = F.softmax(att, dim=-1) @ v
        return x + self.c_proj(y.transpose(1, 2).flatten(2)), (k, v)


class WrongCached(RightCached):
    def keys(self, k):
        k = torch.cat((self.cache.key, k), dim=-2)
        return apply_rope(k)  # wrong: AS705 cache_in_the_module


def _cache_in_the_module(cls, B, H, L, Lp, Dk):
    module = cls(H * Dk, H).read_prompt(torch.randn(B, Lp, H * Dk))
    return module, (torch.randn(B, L, H * Dk),), {}, ["causal", "rope=half"]


def wrong_cache_in_the_module(B, H, L, Lp, Dk):
    return _cache_in_the_module(WrongCached, B, H, L, Lp, Dk)


def right_cache_in_the_module(B, H, L, Lp, Dk):
    return _cache_in_the_module(RightCached, B, H, L, Lp, Dk)


def reference_cache_in_the_module(module, x):
    q, k, v = fused(module.norm(x), module.c_attn, module.n_head)
    place = torch.arange(x.shape[1]) + module.cache.key.shape[2]
    k, v = torch.cat((module.cache.key, turned(k, place)), 2), torch.cat((module.cache.value, v), 2)
    return x + merge(attend(turned(q, place), k, v, visible(q.shape[2], k.shape[2])), module.c_proj)


class RightChunked(nn.Module):
    """Two chunks of tokens, the second with the first one's keys in a cache."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim, bias=False)

    def keys(self, cached, k):
        if cached is None:
            return apply_rope(k)
        return torch.cat((cached, apply_rope(k, start=cached.size(2))), dim=2)

    def forward(self, x):
        key = value = None
        outputs = []
        for chunk in x.chunk(2, dim=1):
            q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.to_qkv(chunk).chunk(3, dim=-1))
            key = self.keys(key, k)
            value = v if value is None else torch.cat((value, v), dim=2)
            before = key.size(2) - q.size(2)
            sim = torch.einsum("bhid,bhjd->bhij", apply_rope(q, start=before), key) / math.sqrt(q.size(-1))
            hidden = torch.ones_like(sim, dtype=torch.bool).triu(before + 1)
            weights = sim.masked_fill(hidden, -math.inf).softmax(dim=-1)
            outputs.append(torch.einsum("bhij,bhjd->bihd", weights, value).flatten(2))
        return self.to_out(torch.cat(outputs, dim=1))


class WrongChunked(RightChunked):
    def keys(self, cached, k):
        if cached is not None:
            k = torch.cat((cached, k), dim=2)
        return apply_rope(k)  # wrong: AS705 decoded_in_chunks


def _decoded_in_chunks(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["causal", "rope=half"]


def wrong_decoded_in_chunks(B, H, L, Dk):
    return _decoded_in_chunks(WrongChunked, B, H, L, Dk)


def right_decoded_in_chunks(B, H, L, Dk):
    return _decoded_in_chunks(RightChunked, B, H, L, Dk)


def reference_decoded_in_chunks(module, x):
    place = torch.arange(x.shape[1])
    q, k, v = fused(x, module.to_qkv, module.heads)
    return merge(attend(turned(q, place), turned(k, place), v, visible(len(place), len(place))), module.to_out)

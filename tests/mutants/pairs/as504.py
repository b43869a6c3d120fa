"""AS504: the path with a cache has no causal mask."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, heads, merge, visible

PAST = (
    {"B": 4, "H": 5, "L": 7, "Lp": 9, "Dk": 6},
    {"B": 5, "H": 4, "L": 9, "Lp": 6, "Dk": 8},
    {"B": 6, "H": 7, "L": 5, "Lp": 8, "Dk": 4},
)
PAIRS = [
    ("AS504", "only_without_past", *PAST),
    ("AS504", "equal_lengths_only", *PAST),
    ("AS504", "cache_object", *PAST),
    ("AS504", "several_new_tokens", *PAST),
]


class RightOptionalPast(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.d_k = d_model // n_heads
        self.c_attn = nn.Linear(d_model, 3 * d_model)
        self.c_proj = nn.Linear(d_model, d_model)

    def mask(self, scores, layer_past):
        T, S = scores.shape[-2:]
        keep = torch.ones(T, S, dtype=torch.bool, device=scores.device).tril(S - T)
        return scores.masked_fill(~keep, -math.inf)

    def forward(self, x, layer_past=None):
        B, T, C = x.shape
        q, k, v = self.c_attn(x).view(B, T, 3, self.n_heads, self.d_k).permute(2, 0, 3, 1, 4)
        if layer_past is not None:
            past_key, past_value = layer_past
            k = torch.cat((past_key, k), dim=-2)
            v = torch.cat((past_value, v), dim=-2)
        scores = self.mask(q @ k.transpose(-1, -2) / math.sqrt(self.d_k), layer_past)
        y = scores.softmax(dim=-1) @ v
        return self.c_proj(y.transpose(1, 2).reshape(B, T, C))


class WrongOptionalPast(RightOptionalPast):
    def mask(self, scores, layer_past):
        if layer_past is not None:
            return scores
        T = scores.size(-1)
        return scores.masked_fill(~torch.ones(T, T, dtype=torch.bool, device=scores.device).tril(), -math.inf)


def _only_without_past(cls, B, H, L, Lp, Dk):
    x, past = torch.randn(B, L, H * Dk), (torch.randn(B, H, Lp, Dk), torch.randn(B, H, Lp, Dk))
    return cls(H * Dk, H), (x,), {"layer_past": past}, ["causal"]


def wrong_only_without_past(B, H, L, Lp, Dk):
    return _only_without_past(WrongOptionalPast, B, H, L, Lp, Dk)


def right_only_without_past(B, H, L, Lp, Dk):
    return _only_without_past(RightOptionalPast, B, H, L, Lp, Dk)


def reference_only_without_past(module, x, layer_past):
    q, k, v = fused(x, module.c_attn, module.n_heads)
    k, v = torch.cat((layer_past[0], k), 2), torch.cat((layer_past[1], v), 2)
    return merge(attend(q, k, v, visible(q.shape[2], k.shape[2])), module.c_proj)


class RightLlama(nn.Module):
    def __init__(self, hidden_size, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.q_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.k_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.v_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)

    def core(self, q, k, v):
        q_len, kv_len = q.size(-2), k.size(-2)
        if q_len == kv_len:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        position = torch.arange(kv_len, device=q.device)
        attn_mask = position[None, :] <= position[kv_len - q_len :, None]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask)

    def forward(self, hidden_states, past_key, past_value):
        bsz, q_len, _ = hidden_states.size()
        q = self.q_proj(hidden_states).view(bsz, q_len, self.num_heads, -1).transpose(1, 2)
        k = self.k_proj(hidden_states).view(bsz, q_len, self.num_heads, -1).transpose(1, 2)
        v = self.v_proj(hidden_states).view(bsz, q_len, self.num_heads, -1).transpose(1, 2)
        out = self.core(q, torch.cat([past_key, k], dim=2), torch.cat([past_value, v], dim=2))
        return self.o_proj(out.transpose(1, 2).reshape(bsz, q_len, -1))


class WrongLlama(RightLlama):
    def core(self, q, k, v):
        is_causal = q.size(-2) == k.size(-2)
        return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)  # wrong: AS504 equal_lengths_only


def _equal_lengths_only(cls, B, H, L, Lp, Dk):
    args = torch.randn(B, L, H * Dk), torch.randn(B, H, Lp, Dk), torch.randn(B, H, Lp, Dk)
    return cls(H * Dk, H), args, {}, ["causal"]


def wrong_equal_lengths_only(B, H, L, Lp, Dk):
    return _equal_lengths_only(WrongLlama, B, H, L, Lp, Dk)


def right_equal_lengths_only(B, H, L, Lp, Dk):
    return _equal_lengths_only(RightLlama, B, H, L, Lp, Dk)


def reference_equal_lengths_only(module, hidden_states, past_key, past_value):
    q, k, v = (heads(hidden_states, p, module.num_heads) for p in (module.q_proj, module.k_proj, module.v_proj))
    k, v = torch.cat((past_key, k), 2), torch.cat((past_value, v), 2)
    return merge(attend(q, k, v, visible(q.shape[2], k.shape[2])), module.o_proj)


class Cache(nn.Module):
    """Keys and values of a prompt, B Lp H Dk each."""

    def __init__(self, key, value):
        super().__init__()
        self.register_buffer("key", key)
        self.register_buffer("value", value)

    def joined(self, key, value):
        return torch.cat((self.key, key), dim=1), torch.cat((self.value, value), dim=1)


class RightWithCache(nn.Module):
    def __init__(self, dim, heads, prompt):
        super().__init__()
        self.heads = heads
        self.wq = nn.Linear(dim, dim)
        self.wk = nn.Linear(dim, dim)
        self.wv = nn.Linear(dim, dim)
        self.wo = nn.Linear(dim, dim)
        with torch.no_grad():
            self.cache = Cache(self.split(self.wk(prompt)), self.split(self.wv(prompt)))

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1))

    def decoder_mask(self, scores):
        n, m = scores.shape[-2:]
        return scores + torch.full((n, m), -math.inf, dtype=scores.dtype, device=scores.device).triu(1 + m - n)

    def forward(self, x):
        q, new_k, new_v = self.split(self.wq(x)), self.split(self.wk(x)), self.split(self.wv(x))
        k, v = self.cache.joined(new_k, new_v)
        scores = torch.einsum("bnhd,bmhd->bhnm", q, k) / math.sqrt(q.size(-1))
        weights = F.softmax(self.decoder_mask(scores), dim=-1)
        return self.wo(torch.einsum("bhnm,bmhd->bnhd", weights, v).flatten(-2))


class WrongWithCache(RightWithCache):
    def decoder_mask(self, scores):
        if self.cache.key.size(1) == 0:
            n, m = scores.shape[-2:]
            scores = scores + torch.full((n, m), -math.inf, dtype=scores.dtype, device=scores.device).triu(1)
        return scores


def _cache_object(cls, B, H, L, Lp, Dk):
    return cls(H * Dk, H, torch.randn(B, Lp, H * Dk)), (torch.randn(B, L, H * Dk),), {}, ["causal"]


def wrong_cache_object(B, H, L, Lp, Dk):
    return _cache_object(WrongWithCache, B, H, L, Lp, Dk)


def right_cache_object(B, H, L, Lp, Dk):
    return _cache_object(RightWithCache, B, H, L, Lp, Dk)


def reference_cache_object(module, x):
    q, k, v = (heads(x, p, module.heads) for p in (module.wq, module.wk, module.wv))
    k = torch.cat((module.cache.key.permute(0, 2, 1, 3), k), 2)
    v = torch.cat((module.cache.value.permute(0, 2, 1, 3), v), 2)
    return merge(attend(q, k, v, visible(q.shape[2], k.shape[2])), module.wo)


def decode_step(q, k, v, k_past, v_past):
    k, v = torch.cat((k_past, k), -2), torch.cat((v_past, v), -2)
    logits = (q * q.shape[-1] ** -0.5) @ k.mT
    return logits.softmax(-1) @ v


def decode_chunk(q, k, v, k_past, v_past):
    new = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool, device=q.device).tril()
    keep = F.pad(new, (k_past.shape[-2], 0), value=True)
    k, v = torch.cat((k_past, k), -2), torch.cat((v_past, v), -2)
    logits = (q * q.shape[-1] ** -0.5) @ k.mT
    return torch.where(keep, logits, -math.inf).softmax(-1) @ v


def _several_new_tokens(function, B, H, L, Lp, Dk):
    return function, (*torch.randn(3, B, H, L, Dk), *torch.randn(2, B, H, Lp, Dk)), {}, ["causal"]


def wrong_several_new_tokens(B, H, L, Lp, Dk):
    return _several_new_tokens(decode_step, B, H, L, Lp, Dk)


def right_several_new_tokens(B, H, L, Lp, Dk):
    return _several_new_tokens(decode_chunk, B, H, L, Lp, Dk)


def reference_several_new_tokens(function, q, k, v, k_past, v_past):
    k, v = torch.cat((k_past, k), 2), torch.cat((v_past, v), 2)
    return attend(q, k, v, visible(q.shape[2], k.shape[2]))

"""AS502: a query can't see its own position."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, heads, merge, visible

SELF = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 5, "Dk": 4})
PAST = (
    {"B": 4, "H": 5, "L": 7, "Lp": 9, "Dk": 6},
    {"B": 5, "H": 4, "L": 9, "Lp": 6, "Dk": 8},
    {"B": 6, "H": 7, "L": 5, "Lp": 8, "Dk": 4},
)
PAIRS = [
    ("AS502", "cached_strict", *PAST),
    ("AS502", "triu_zero", *SELF),
    ("AS502", "strictly_less", *SELF),
    ("AS502", "start_token_only", *SELF),
]


class RightCached(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.Wq = nn.Linear(width, width)
        self.Wk = nn.Linear(width, width)
        self.Wv = nn.Linear(width, width)
        self.Wo = nn.Linear(width, width)

    def visible(self, new, past, device):
        return torch.ones(new, past + new, dtype=torch.bool, device=device).tril(diagonal=past)

    def forward(self, x, past_key, past_value):
        q, k, v = (p(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in (self.Wq, self.Wk, self.Wv))
        k = torch.cat((past_key, k), dim=-2)
        v = torch.cat((past_value, v), dim=-2)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
        scores = scores.masked_fill(~self.visible(x.size(1), past_key.size(-2), x.device), -math.inf)
        return self.Wo((scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2))


class WrongCached(RightCached):
    def visible(self, new, past, device):
        everything = torch.ones(new, past + new, dtype=torch.bool, device=device)
        return everything.tril(diagonal=past - 1)  # wrong: AS502 cached_strict


def _cached_strict(cls, B, H, L, Lp, Dk):
    args = torch.randn(B, L, H * Dk), torch.randn(B, H, Lp, Dk), torch.randn(B, H, Lp, Dk)
    return cls(H * Dk, H), args, {}, ["causal"]


def wrong_cached_strict(B, H, L, Lp, Dk):
    return _cached_strict(WrongCached, B, H, L, Lp, Dk)


def right_cached_strict(B, H, L, Lp, Dk):
    return _cached_strict(RightCached, B, H, L, Lp, Dk)


def reference_cached_strict(module, x, past_key, past_value):
    q, k, v = (heads(x, p, module.heads) for p in (module.Wq, module.Wk, module.Wv))
    k, v = torch.cat((past_key, k), 2), torch.cat((past_value, v), 2)
    return merge(attend(q, k, v, visible(q.shape[2], k.shape[2])), module.Wo)


class RightTriu(nn.Module):
    """Rows without a key are set to zero afterwards."""

    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, dim * 3, bias=False)
        self.proj = nn.Linear(dim, dim)

    def hidden(self, N, device):
        return torch.triu(torch.ones(N, N, dtype=torch.bool, device=device), diagonal=1)

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        attn = (q * q.size(-1) ** -0.5) @ k.transpose(-2, -1)
        attn = attn.masked_fill(self.hidden(N, x.device), float("-inf")).softmax(dim=-1).nan_to_num(0.0)
        return self.proj((attn @ v).transpose(1, 2).reshape(B, N, C))


class WrongTriu(RightTriu):
    def hidden(self, N, device):
        return torch.triu(torch.ones(N, N, dtype=torch.bool, device=device))  # wrong: AS502 triu_zero


def _triu_zero(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["causal"]


def wrong_triu_zero(B, H, L, Dk):
    return _triu_zero(WrongTriu, B, H, L, Dk)


def right_triu_zero(B, H, L, Dk):
    return _triu_zero(RightTriu, B, H, L, Dk)


def reference_triu_zero(module, x):
    return merge(attend(*fused(x, module.qkv, module.num_heads), visible(x.shape[1], x.shape[1])), module.proj)


def before_or_at(q, k, v):
    i = torch.arange(q.shape[-2], device=q.device)[:, None]
    j = torch.arange(k.shape[-2], device=k.device)[None, :]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=j <= i)


def before(q, k, v):
    i = torch.arange(q.shape[-2], device=q.device)[:, None]
    j = torch.arange(k.shape[-2], device=k.device)[None, :]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=j < i)  # wrong: AS502 strictly_less


def _strictly_less(function, B, H, L, Dk):
    return function, tuple(torch.randn(B, H, L, Dk) for _ in range(3)), {}, ["causal"]


def wrong_strictly_less(B, H, L, Dk):
    return _strictly_less(before, B, H, L, Dk)


def right_strictly_less(B, H, L, Dk):
    return _strictly_less(before_or_at, B, H, L, Dk)


def reference_strictly_less(function, q, k, v):
    return attend(q, k, v, visible(q.shape[2], k.shape[2]))


class RightGenerator(nn.Module):
    """The buffer's mask is additive, and the first token always sees itself."""

    def __init__(self, n_state, n_head, n_ctx):
        super().__init__()
        self.n_head = n_head
        self.query = nn.Linear(n_state, n_state)
        self.key = nn.Linear(n_state, n_state, bias=False)
        self.value = nn.Linear(n_state, n_state)
        self.out = nn.Linear(n_state, n_state)
        self.n_ctx = n_ctx

    def mask(self, like):
        return torch.full((self.n_ctx, self.n_ctx), -math.inf, dtype=like.dtype, device=like.device).triu_(1)

    def forward(self, x):
        n_batch, n_ctx, n_state = x.shape
        scale = (n_state // self.n_head) ** -0.25
        q = self.query(x).view(n_batch, n_ctx, self.n_head, -1).permute(0, 2, 1, 3) * scale
        k = self.key(x).view(n_batch, n_ctx, self.n_head, -1).permute(0, 2, 3, 1) * scale
        v = self.value(x).view(n_batch, n_ctx, self.n_head, -1).permute(0, 2, 1, 3)
        qk = q @ k + self.mask(q)[:n_ctx, :n_ctx]
        w = F.softmax(qk, dim=-1)
        return self.out((w @ v).permute(0, 2, 1, 3).flatten(start_dim=2))


class WrongGenerator(RightGenerator):
    def mask(self, like):
        square = torch.full((self.n_ctx, self.n_ctx), -math.inf, dtype=like.dtype, device=like.device)
        square = square.triu_(0)  # wrong: AS502 start_token_only
        square[0, 0] = 0.0
        return square


def _start_token_only(cls, B, H, L, Dk):
    return cls(H * Dk, H, L + 3), (torch.randn(B, L, H * Dk),), {}, ["causal"]


def wrong_start_token_only(B, H, L, Dk):
    return _start_token_only(WrongGenerator, B, H, L, Dk)


def right_start_token_only(B, H, L, Dk):
    return _start_token_only(RightGenerator, B, H, L, Dk)


def reference_start_token_only(module, x):
    q, k, v = (heads(x, p, module.n_head) for p in (module.query, module.key, module.value))
    return merge(attend(q, k, v, visible(x.shape[1], x.shape[1])), module.out)

"""AS503: the causal mask starts at the first key where the queries are the last tokens."""

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
LAST = (
    {"B": 4, "H": 5, "Lq": 7, "Lk": 9, "Dk": 6},
    {"B": 5, "H": 4, "Lq": 7, "Lk": 11, "Dk": 8},
    {"B": 6, "H": 7, "Lq": 5, "Lk": 8, "Dk": 4},
)
PAIRS = [
    ("AS503", "ones_tril", *LAST),
    ("AS503", "sdpa_flag", *PAST),
    ("AS503", "buffer_corner", *PAST),
    ("AS503", "prefix_keys", *PAST),
]


def top_left(q, k, v):
    Lq, Lk = q.shape[-2], k.shape[-2]
    keep = torch.ones(Lq, Lk, dtype=torch.bool, device=q.device).tril()  # wrong: AS503 ones_tril
    return F.scaled_dot_product_attention(q, k, v, attn_mask=keep)


def bottom_right(q, k, v):
    Lq, Lk = q.shape[-2], k.shape[-2]
    keep = torch.ones(Lq, Lk, dtype=torch.bool, device=q.device).tril(diagonal=Lk - Lq)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=keep)


def _ones_tril(function, B, H, Lq, Lk, Dk):
    return function, (torch.randn(B, H, Lq, Dk), *torch.randn(2, B, H, Lk, Dk)), {}, ["causal"]


def wrong_ones_tril(B, H, Lq, Lk, Dk):
    return _ones_tril(top_left, B, H, Lq, Lk, Dk)


def right_ones_tril(B, H, Lq, Lk, Dk):
    return _ones_tril(bottom_right, B, H, Lq, Lk, Dk)


def reference_ones_tril(function, q, k, v):
    return attend(q, k, v, visible(q.shape[2], k.shape[2]))


class RightDecode(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.q_proj = nn.Linear(hidden, hidden, bias=False)
        self.k_proj = nn.Linear(hidden, hidden, bias=False)
        self.v_proj = nn.Linear(hidden, hidden, bias=False)
        self.o_proj = nn.Linear(hidden, hidden, bias=False)

    def core(self, q, k, v):
        rows = torch.arange(k.size(2) - q.size(2), k.size(2), device=q.device)
        keep = rows[:, None] >= torch.arange(k.size(2), device=q.device)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=keep)

    def forward(self, hidden_states, past_key, past_value):
        shape = (*hidden_states.shape[:-1], self.heads, -1)
        q = self.q_proj(hidden_states).view(shape).transpose(1, 2)
        k = torch.cat([past_key, self.k_proj(hidden_states).view(shape).transpose(1, 2)], dim=2)
        v = torch.cat([past_value, self.v_proj(hidden_states).view(shape).transpose(1, 2)], dim=2)
        return self.o_proj(self.core(q, k, v).transpose(1, 2).reshape(hidden_states.shape))


class WrongDecode(RightDecode):
    def core(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)  # wrong: AS503 sdpa_flag


def _sdpa_flag(cls, B, H, L, Lp, Dk):
    args = torch.randn(B, L, H * Dk), torch.randn(B, H, Lp, Dk), torch.randn(B, H, Lp, Dk)
    return cls(H * Dk, H), args, {}, ["causal"]


def wrong_sdpa_flag(B, H, L, Lp, Dk):
    return _sdpa_flag(WrongDecode, B, H, L, Lp, Dk)


def right_sdpa_flag(B, H, L, Lp, Dk):
    return _sdpa_flag(RightDecode, B, H, L, Lp, Dk)


def reference_sdpa_flag(module, hidden_states, past_key, past_value):
    q, k, v = (heads(hidden_states, p, module.heads) for p in (module.q_proj, module.k_proj, module.v_proj))
    k, v = torch.cat((past_key, k), 2), torch.cat((past_value, v), 2)
    return merge(attend(q, k, v, visible(q.shape[2], k.shape[2])), module.o_proj)


class RightBuffer(nn.Module):
    def __init__(self, n_embd, n_head, block_size):
        super().__init__()
        self.n_head = n_head
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)
        self.register_buffer("tril", torch.tril(torch.ones(block_size, block_size, dtype=torch.bool)))

    def corner(self, T, S):
        return self.tril[S - T : S, :S]

    def forward(self, x, layer_past):
        B, T, C = x.size()
        q, k, v = (t.view(B, T, self.n_head, -1).transpose(1, 2) for t in self.c_attn(x).split(C, dim=2))
        k = torch.cat((layer_past[0], k), dim=-2)
        v = torch.cat((layer_past[1], v), dim=-2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = torch.where(self.corner(T, k.size(-2)), att, torch.finfo(att.dtype).min)
        y = F.softmax(att, dim=-1) @ v
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


class WrongBuffer(RightBuffer):
    def corner(self, T, S):
        return self.tril[:T, :S]  # wrong: AS503 buffer_corner


def _buffer_corner(cls, B, H, L, Lp, Dk):
    args = torch.randn(B, L, H * Dk), torch.randn(2, B, H, Lp, Dk)
    return cls(H * Dk, H, Lp + L + 2), args, {}, ["causal"]


def wrong_buffer_corner(B, H, L, Lp, Dk):
    return _buffer_corner(WrongBuffer, B, H, L, Lp, Dk)


def right_buffer_corner(B, H, L, Lp, Dk):
    return _buffer_corner(RightBuffer, B, H, L, Lp, Dk)


def reference_buffer_corner(module, x, layer_past):
    q, k, v = fused(x, module.c_attn, module.n_head)
    k, v = torch.cat((layer_past[0], k), 2), torch.cat((layer_past[1], v), 2)
    return merge(attend(q, k, v, visible(q.shape[2], k.shape[2])), module.c_proj)


class RightPrefix(nn.Module):
    """The keys are those of the previous and the current segment, projected together."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(dim)
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_kv = nn.Linear(dim, 2 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def hidden(self, i, j, device):
        return torch.ones(i, j, device=device).triu(j - i + 1).bool()

    def forward(self, x, mems):
        x_normed = self.norm(x)
        kv_input = torch.cat((mems, x_normed), dim=1)
        k, v = self.to_kv(kv_input).chunk(2, dim=-1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)) for t in (self.to_q(x_normed), k, v))
        sim = torch.einsum("bihd,bjhd->bhij", q, k) * q.shape[-1] ** -0.5
        sim = sim.masked_fill(self.hidden(*sim.shape[-2:], x.device), -torch.finfo(sim.dtype).max)
        out = torch.einsum("bhij,bjhd->bihd", sim.softmax(dim=-1), v)
        return x + self.to_out(out.flatten(2))


class WrongPrefix(RightPrefix):
    def hidden(self, i, j, device):
        return torch.ones(i, j, device=device).triu(1).bool()  # wrong: AS503 prefix_keys


def _prefix_keys(cls, B, H, L, Lp, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), torch.randn(B, Lp, H * Dk)), {}, ["causal"]


def wrong_prefix_keys(B, H, L, Lp, Dk):
    return _prefix_keys(WrongPrefix, B, H, L, Lp, Dk)


def right_prefix_keys(B, H, L, Lp, Dk):
    return _prefix_keys(RightPrefix, B, H, L, Lp, Dk)


def reference_prefix_keys(module, x, mems):
    h = module.norm(x)
    both = torch.einsum("bli,oi->blo", torch.cat((mems, h), 1), module.to_kv.weight)
    k, v = both.unflatten(-1, (2, module.heads, -1)).permute(2, 0, 3, 1, 4)
    out = attend(heads(h, module.to_q, module.heads), k, v, visible(x.shape[1], k.shape[2]))
    return x + merge(out, module.to_out)

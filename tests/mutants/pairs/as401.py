"""AS401: the mask's polarity is inverted."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, heads, merge, project

SELF = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 5, "Dk": 4})
CROSS = (
    {"B": 4, "H": 5, "Lq": 7, "Lk": 9, "Dk": 6},
    {"B": 5, "H": 4, "Lq": 11, "Lk": 7, "Dk": 8},
    {"B": 6, "H": 7, "Lq": 5, "Lk": 8, "Dk": 4},
)
PAIRS = [
    ("AS401", "annotated", *SELF),
    ("AS401", "bert_additive", *SELF),
    ("AS401", "sdpa_cross", *CROSS),
    ("AS401", "key_padding", *SELF),
    ("AS401", "folded_square", *SELF),
    ("AS401", "added_with_minus", *CROSS),
]


def random_keep(*shape):
    """At least one key kept, and one dropped, for each row."""
    keep = torch.rand(shape) < 0.6
    keep[..., 0] = True
    keep[..., -1] = False
    return keep


class RightAnnotated(nn.Module):
    def __init__(self, h, d_model):
        super().__init__()
        self.d_k = d_model // h
        self.h = h
        self.linears = nn.ModuleList([nn.Linear(d_model, d_model) for _ in range(4)])

    def hide(self, scores, mask):
        return scores.masked_fill(mask == 0, float("-inf"))

    def forward(self, query, key, value, mask=None):
        nbatches = query.size(0)
        query, key, value = [
            lin(x).view(nbatches, -1, self.h, self.d_k).transpose(1, 2)
            for lin, x in zip(self.linears[:3], (query, key, value), strict=True)
        ]
        scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(self.d_k)
        if mask is not None:
            scores = self.hide(scores, mask)
        p_attn = scores.softmax(dim=-1)
        x = torch.matmul(p_attn, value)
        x = x.transpose(1, 2).contiguous().view(nbatches, -1, self.h * self.d_k)
        return self.linears[-1](x)


class WrongAnnotated(RightAnnotated):
    def hide(self, scores, mask):
        return scores.masked_fill(mask, float("-inf"))  # wrong: AS401 annotated


def _annotated(cls, B, H, L, Dk):
    x = torch.randn(B, L, H * Dk)
    return cls(H, H * Dk), (x, x.clone(), x.clone(), random_keep(B, 1, 1, L)), {}, ["mask=keep"]


def wrong_annotated(B, H, L, Dk):
    return _annotated(WrongAnnotated, B, H, L, Dk)


def right_annotated(B, H, L, Dk):
    return _annotated(RightAnnotated, B, H, L, Dk)


def reference_annotated(module, query, key, value, mask):
    q, k, v = (heads(x, lin, module.h) for x, lin in zip((query, key, value), module.linears, strict=False))
    return merge(attend(q, k, v, mask), module.linears[3])


class RightBertSelfAttention(nn.Module):
    def __init__(self, hidden_size, num_attention_heads):
        super().__init__()
        self.num_attention_heads = num_attention_heads
        self.attention_head_size = hidden_size // num_attention_heads
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)
        self.value = nn.Linear(hidden_size, hidden_size)

    def extended(self, attention_mask):
        return (1.0 - attention_mask[:, None, None, :]) * -10000.0

    def split(self, x):
        return x.view(*x.shape[:-1], self.num_attention_heads, self.attention_head_size).permute(0, 2, 1, 3)

    def forward(self, hidden_states, attention_mask):
        query = self.split(self.query(hidden_states))
        key = self.split(self.key(hidden_states))
        value = self.split(self.value(hidden_states))
        attention_scores = torch.matmul(query, key.transpose(-1, -2)) / math.sqrt(self.attention_head_size)
        attention_scores = attention_scores + self.extended(attention_mask)
        attention_probs = nn.functional.softmax(attention_scores, dim=-1)
        context = torch.matmul(attention_probs, value).permute(0, 2, 1, 3).contiguous()
        return context.view(*context.shape[:2], -1)


class WrongBertSelfAttention(RightBertSelfAttention):
    def extended(self, attention_mask):
        return attention_mask[:, None, None, :] * -10000.0  # wrong: AS401 bert_additive


def _bert_additive(cls, B, H, L, Dk):
    x = torch.randn(B, L, H * Dk)
    mask = random_keep(B, L).to(x.dtype)
    return cls(H * Dk, H), (x,), {"attention_mask": mask}, ["attention_mask=keep"]


def wrong_bert_additive(B, H, L, Dk):
    return _bert_additive(WrongBertSelfAttention, B, H, L, Dk)


def right_bert_additive(B, H, L, Dk):
    return _bert_additive(RightBertSelfAttention, B, H, L, Dk)


def reference_bert_additive(module, hidden_states, attention_mask):
    q, k, v = (heads(hidden_states, p, module.num_attention_heads) for p in (module.query, module.key, module.value))
    return merge(attend(q, k, v, attention_mask[:, None, None] > 0.5))


class RightCross(nn.Module):
    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.to_q = nn.Linear(width, width, bias=False)
        self.to_kv = nn.Linear(width, 2 * width, bias=False)
        self.to_out = nn.Linear(width, width)

    def split(self, x):
        return x.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)

    def core(self, q, k, v, mask):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :])

    def forward(self, x, context, mask):
        q = self.split(self.to_q(x))
        k, v = map(self.split, self.to_kv(context).chunk(2, dim=-1))
        return self.to_out(self.core(q, k, v, mask).transpose(1, 2).flatten(2))


class WrongCross(RightCross):
    def core(self, q, k, v, mask):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=~mask[:, None, None, :])  # wrong: AS401 sdpa_cross


def _sdpa_cross(cls, B, H, Lq, Lk, Dk):
    args = (torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk), random_keep(B, Lk))
    return cls(H * Dk, H), args, {}, ["mask=keep"]


def wrong_sdpa_cross(B, H, Lq, Lk, Dk):
    return _sdpa_cross(WrongCross, B, H, Lq, Lk, Dk)


def right_sdpa_cross(B, H, Lq, Lk, Dk):
    return _sdpa_cross(RightCross, B, H, Lq, Lk, Dk)


def reference_sdpa_cross(module, x, context, mask):
    q = heads(x, module.to_q, module.n_heads)
    k, v = project(context, module.to_kv).unflatten(-1, (2, module.n_heads, -1)).permute(2, 0, 3, 1, 4)
    return merge(attend(q, k, v, mask[:, None, None]), module.to_out)


class RightPadded(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.qkv = nn.Linear(dim, dim * 3)
        self.proj = nn.Linear(dim, dim)

    def pad(self, attn, key_padding_mask):
        return attn.masked_fill(key_padding_mask.unsqueeze(1).unsqueeze(2), torch.finfo(attn.dtype).min)

    def forward(self, x, key_padding_mask):
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        attn = self.pad((q * self.scale) @ k.transpose(-2, -1), key_padding_mask).softmax(dim=-1)
        return self.proj((attn @ v).transpose(1, 2).reshape(B, N, C))


class WrongPadded(RightPadded):
    def pad(self, attn, key_padding_mask):
        keep = key_padding_mask.unsqueeze(1).unsqueeze(2)
        return attn.masked_fill(~keep, torch.finfo(attn.dtype).min)  # wrong: AS401 key_padding


def _key_padding(cls, B, H, L, Dk):
    lengths = torch.randint(1, L, (B,))
    padding = torch.arange(L)[None, :] >= lengths[:, None]
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), padding), {}, ["key_padding_mask=drop"]


def wrong_key_padding(B, H, L, Dk):
    return _key_padding(WrongPadded, B, H, L, Dk)


def right_key_padding(B, H, L, Dk):
    return _key_padding(RightPadded, B, H, L, Dk)


def reference_key_padding(module, x, key_padding_mask):
    return merge(attend(*fused(x, module.qkv, module.num_heads), ~key_padding_mask[:, None, None]), module.proj)


def folded_wrong(q, k, v, mask):
    weights = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(q.shape[-1])
    weights = weights.masked_fill(mask, -1e30)  # wrong: AS401 folded_square
    return torch.bmm(weights.softmax(-1), v)


def folded_right(q, k, v, mask):
    weights = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(q.shape[-1])
    weights = weights.masked_fill(mask.logical_not(), -1e30)
    return torch.bmm(weights.softmax(-1), v)


def _folded_square(function, B, H, L, Dk):
    return function, tuple(torch.randn(B * H, L, Dk) for _ in range(3)), {"mask": random_keep(L, L)}, ["mask=keep"]


def wrong_folded_square(B, H, L, Dk):
    return _folded_square(folded_wrong, B, H, L, Dk)


def right_folded_square(B, H, L, Dk):
    return _folded_square(folded_right, B, H, L, Dk)


def reference_folded_square(function, q, k, v, mask):
    return attend(q[:, None], k[:, None], v[:, None], mask)[:, 0]


def subtracted(q, k, v, attn_mask):
    scores = torch.einsum("bhid,bhjd->bhij", q, k) * q.size(-1) ** -0.5
    scores = scores - attn_mask  # wrong: AS401 added_with_minus
    return torch.einsum("bhij,bhjd->bhid", scores.softmax(dim=-1), v)


def added(q, k, v, attn_mask):
    scores = torch.einsum("bhid,bhjd->bhij", q, k) * q.size(-1) ** -0.5
    scores = scores + attn_mask
    return torch.einsum("bhij,bhjd->bhid", scores.softmax(dim=-1), v)


def _added_with_minus(function, B, H, Lq, Lk, Dk):
    q, k, v = torch.randn(B, H, Lq, Dk), torch.randn(B, H, Lk, Dk), torch.randn(B, H, Lk, Dk)
    mask = torch.zeros(B, 1, Lq, Lk).masked_fill(~random_keep(B, 1, Lq, Lk), -1e6)
    return function, (q, k, v, mask), {}, ["attn_mask=add"]


def wrong_added_with_minus(B, H, Lq, Lk, Dk):
    return _added_with_minus(subtracted, B, H, Lq, Lk, Dk)


def right_added_with_minus(B, H, Lq, Lk, Dk):
    return _added_with_minus(added, B, H, Lq, Lk, Dk)


def reference_added_with_minus(function, q, k, v, attn_mask):
    return attend(q, k, v, attn_mask == 0)

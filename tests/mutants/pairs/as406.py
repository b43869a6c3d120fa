"""AS406: a query that has no key gets NaN, or the mean of what is padding."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, heads, merge

SELF = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 5, "Dk": 4})
CROSS = (
    {"B": 4, "H": 5, "Lq": 7, "Lk": 9, "Dk": 6},
    {"B": 5, "H": 4, "Lq": 11, "Lk": 7, "Dk": 8},
    {"B": 6, "H": 7, "Lq": 5, "Lk": 8, "Dk": 4},
)
CLAIMS = ["mask=keep", "zero-masked-rows"]
PAIRS = [
    ("AS406", "nan_of_empty_memory", *CROSS),
    ("AS406", "uniform_over_padding", *SELF),
    ("AS406", "sdpa_most_negative", *CROSS),
    ("AS406", "folded_nan", *SELF),
    ("AS406", "nothing_announced", *SELF),
    ("AS406", "no_slots", *CROSS),
    ("AS406", "padding_kept_instead", *SELF),
]


class RightCross(nn.Module):
    def __init__(self, d_model, h):
        super().__init__()
        self.h = h
        self.wq = nn.Linear(d_model, d_model)
        self.wk = nn.Linear(d_model, d_model)
        self.wv = nn.Linear(d_model, d_model)
        self.wo = nn.Linear(d_model, d_model)

    def weights(self, scores, mask):
        scores = scores.masked_fill(~mask, -math.inf)
        return scores.softmax(dim=-1).masked_fill(~mask, 0.0)

    def forward(self, x, memory, mask):
        q = self.wq(x).unflatten(-1, (self.h, -1)).transpose(1, 2)
        k = self.wk(memory).unflatten(-1, (self.h, -1)).transpose(1, 2)
        v = self.wv(memory).unflatten(-1, (self.h, -1)).transpose(1, 2)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        context = self.weights(scores, mask[:, None, None, :]) @ v
        return self.wo(context.transpose(1, 2).flatten(2))


class WrongCross(RightCross):
    def weights(self, scores, mask):
        scores = scores.masked_fill(~mask, -math.inf)
        return scores.softmax(dim=-1)  # wrong: AS406 nan_of_empty_memory


def _nan_of_empty_memory(cls, B, H, Lq, Lk, Dk):
    mask = torch.rand(B, Lk) < 0.6
    mask[:, 0] = True
    mask[-1] = False
    return cls(H * Dk, H), (torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk), mask), {}, CLAIMS


def wrong_nan_of_empty_memory(B, H, Lq, Lk, Dk):
    return _nan_of_empty_memory(WrongCross, B, H, Lq, Lk, Dk)


def right_nan_of_empty_memory(B, H, Lq, Lk, Dk):
    return _nan_of_empty_memory(RightCross, B, H, Lq, Lk, Dk)


def reference_nan_of_empty_memory(module, x, memory, mask):
    q, k, v = heads(x, module.wq, module.h), heads(memory, module.wk, module.h), heads(memory, module.wv, module.h)
    return merge(attend(q, k, v, mask[:, None, None]), module.wo)


class RightPadded(nn.Module):
    """A mask of pairs of tokens: padding sees nothing and isn't seen."""

    def __init__(self, width, n_head):
        super().__init__()
        self.n_head = n_head
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)

    def weights(self, att, mask):
        return att.masked_fill(mask == 0, -1e9).softmax(dim=-1) * mask.any(dim=-1, keepdim=True)

    def forward(self, x, mask):
        B, T, C = x.shape
        q, k, v = self.c_attn(x).view(B, T, 3, self.n_head, C // self.n_head).permute(2, 0, 3, 1, 4)
        att = (q @ k.transpose(-2, -1)) * (q.size(-1) ** -0.5)
        y = self.weights(att, mask[:, None]) @ v
        return self.c_proj(y.transpose(1, 2).reshape(B, T, C))


class WrongPadded(RightPadded):
    def weights(self, att, mask):
        return att.masked_fill(mask == 0, -1e9).softmax(dim=-1)  # wrong: AS406 uniform_over_padding


def _uniform_over_padding(cls, B, H, L, Dk):
    real = torch.arange(L)[None, :] < torch.randint(1, L, (B, 1))
    mask = real[:, :, None] & real[:, None, :]
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), mask), {}, CLAIMS


def wrong_uniform_over_padding(B, H, L, Dk):
    return _uniform_over_padding(WrongPadded, B, H, L, Dk)


def right_uniform_over_padding(B, H, L, Dk):
    return _uniform_over_padding(RightPadded, B, H, L, Dk)


def reference_uniform_over_padding(module, x, mask):
    return merge(attend(*fused(x, module.c_attn, module.n_head), mask[:, None]), module.c_proj)


def most_negative(query, key, value, mask):
    bias = torch.zeros(mask.shape, dtype=query.dtype, device=query.device)
    bias = bias.masked_fill(~mask, torch.finfo(query.dtype).min)  # wrong: AS406 sdpa_most_negative
    return F.scaled_dot_product_attention(query, key, value, attn_mask=bias[:, None])


def most_negative_cleared(query, key, value, mask):
    bias = torch.zeros(mask.shape, dtype=query.dtype, device=query.device)
    bias = bias.masked_fill(~mask, torch.finfo(query.dtype).min)
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=bias[:, None])
    return out.masked_fill(~mask.any(dim=-1)[:, None, :, None], 0.0)


def _sdpa_most_negative(function, B, H, Lq, Lk, Dk):
    q, k, v = torch.randn(B, H, Lq, Dk), torch.randn(B, H, Lk, Dk), torch.randn(B, H, Lk, Dk)
    mask = torch.rand(B, Lq, Lk) < 0.6
    mask[..., 0] = True
    mask[:, 0] = False
    return function, (q, k, v, mask), {}, CLAIMS


def wrong_sdpa_most_negative(B, H, Lq, Lk, Dk):
    return _sdpa_most_negative(most_negative, B, H, Lq, Lk, Dk)


def right_sdpa_most_negative(B, H, Lq, Lk, Dk):
    return _sdpa_most_negative(most_negative_cleared, B, H, Lq, Lk, Dk)


def reference_sdpa_most_negative(function, query, key, value, mask):
    return attend(query, key, value, mask[:, None])


class RightFolded(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.q_proj = nn.Linear(dim, dim, bias=False)
        self.k_proj = nn.Linear(dim, dim, bias=False)
        self.v_proj = nn.Linear(dim, dim, bias=False)

    def fold(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2).flatten(0, 1)

    def weights(self, scores):
        hidden = scores == -torch.inf
        return F.softmax(scores.masked_fill(hidden, torch.finfo(scores.dtype).min), dim=-1).masked_fill(hidden, 0.0)

    def forward(self, x, mask):
        q, k, v = self.fold(self.q_proj(x)), self.fold(self.k_proj(x)), self.fold(self.v_proj(x))
        bias = torch.zeros_like(mask, dtype=x.dtype).masked_fill_(~mask, float("-inf"))
        scores = torch.baddbmm(bias.repeat_interleave(self.heads, 0), q, k.mT, alpha=q.size(-1) ** -0.5)
        out = torch.bmm(self.weights(scores), v)
        return out.unflatten(0, (-1, self.heads)).transpose(1, 2).flatten(2)


class WrongFolded(RightFolded):
    def weights(self, scores):
        return F.softmax(scores, dim=-1)  # wrong: AS406 folded_nan


def _folded_nan(cls, B, H, L, Dk):
    mask = torch.rand(B, L, L) < 0.6
    mask[..., 1] = True
    mask[:, 0] = False
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {"mask": mask}, CLAIMS


def wrong_folded_nan(B, H, L, Dk):
    return _folded_nan(WrongFolded, B, H, L, Dk)


def right_folded_nan(B, H, L, Dk):
    return _folded_nan(RightFolded, B, H, L, Dk)


def reference_folded_nan(module, x, mask):
    q, k, v = (heads(x, p, module.heads) for p in (module.q_proj, module.k_proj, module.v_proj))
    return merge(attend(q, k, v, mask[:, None]))


def announced(q, k, v, starts, rows_are_zero=True):
    """Each token reads the block that the last start before it announces; blocks have two tokens."""
    announced = starts.cumsum(-1)
    blocks = torch.arange(k.shape[2]) // 2 + 1
    keep = (announced[:, :, None] == blocks)[:, None]
    scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~keep, torch.finfo(q.dtype).min)
    weights = scores.softmax(-1)
    return (weights * keep.any(-1, keepdim=True) if rows_are_zero else weights) @ v


def announced_to_all(q, k, v, starts):
    return announced(q, k, v, starts, rows_are_zero=False)


def _nothing_announced(function, B, H, L, Dk):
    starts = (torch.arange(L) % 3 == 1).long().expand(B, L)
    q, k, v = torch.randn(3, B, H, L, Dk)
    return function, (q, k, v, starts), {}, ["zero-masked-rows"]


def wrong_nothing_announced(B, H, L, Dk):
    return _nothing_announced(announced_to_all, B, H, L, Dk)


def right_nothing_announced(B, H, L, Dk):
    return _nothing_announced(announced, B, H, L, Dk)


def reference_nothing_announced(function, q, k, v, starts):
    before = torch.stack([starts[:, : i + 1].sum(-1) for i in range(starts.shape[1])], dim=1)
    keep = torch.stack([before == j // 2 + 1 for j in range(k.shape[2])], dim=-1)
    return attend(q, k, v, keep[:, None])


def of_slots(q, k, v, counts):
    """Each sequence sees as many keys as it has slots in use."""
    unused = (torch.arange(k.shape[2]) >= counts[:, None])[:, None, None]
    scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(unused, torch.finfo(q.dtype).min)
    return scores.softmax(-1).masked_fill(unused, 0.0) @ v


def of_any_slots(q, k, v, counts):
    unused = (torch.arange(k.shape[2]) >= counts[:, None])[:, None, None]
    scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(unused, torch.finfo(q.dtype).min)
    return scores.softmax(-1) @ v


def _no_slots(function, B, H, Lq, Lk, Dk):
    q, k, v = torch.randn(B, H, Lq, Dk), torch.randn(B, H, Lk, Dk), torch.randn(B, H, Lk, Dk)
    return function, (q, k, v, torch.arange(B) % Lk), {}, ["zero-masked-rows"]


def wrong_no_slots(B, H, Lq, Lk, Dk):
    return _no_slots(of_any_slots, B, H, Lq, Lk, Dk)


def right_no_slots(B, H, Lq, Lk, Dk):
    return _no_slots(of_slots, B, H, Lq, Lk, Dk)


def reference_no_slots(function, q, k, v, counts):
    keep = torch.stack([torch.tensor([j < count for j in range(k.shape[2])]) for count in counts.tolist()])
    return attend(q, k, v, keep[:, None, None])


class RightPadding(nn.Module):
    """Causal attention to tokens that aren't zero."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.qkv = heads, nn.Linear(width, 3 * width)

    def padding(self, x):
        return (x == 0).all(-1)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT * q.shape[-1] ** -0.5
        scores = scores.masked_fill(torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1), -1e9)
        padding = self.padding(x)[:, None, None]
        scores = scores.masked_fill(padding, -1e9)  # wrong: AS406 padding_kept_instead
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


class WrongPadding(RightPadding):
    def padding(self, x):
        return (x != 0).any(-1)


def _padding(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["causal"]


def wrong_padding_kept_instead(B, H, L, Dk):
    return _padding(WrongPadding, B, H, L, Dk)


def right_padding_kept_instead(B, H, L, Dk):
    return _padding(RightPadding, B, H, L, Dk)


def reference_padding_kept_instead(module, x):
    keep = torch.tensor([[j <= i for j in range(x.shape[1])] for i in range(x.shape[1])])
    return merge(attend(*fused(x, module.qkv, module.heads), keep))

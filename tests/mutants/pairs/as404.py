"""AS404: the mask is computed or given, and ignored."""

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
PAIRS = [
    ("AS404", "result_dropped", *SELF),
    ("AS404", "argument_unused", *CROSS),
    ("AS404", "other_variable", *CROSS),
    ("AS404", "not_passed_on", *SELF),
    ("AS404", "first_layer_only", *SELF),
]


def random_keep(*shape):
    keep = torch.rand(shape) < 0.6
    keep[..., 0] = True
    keep[..., -1] = False
    return keep


class RightSelf(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.h, self.d_k = n_heads, d_model // n_heads
        self.W_q = nn.Linear(d_model, d_model)
        self.W_k = nn.Linear(d_model, d_model)
        self.W_v = nn.Linear(d_model, d_model)
        self.W_o = nn.Linear(d_model, d_model)

    def masked(self, scores, mask):
        return scores.masked_fill(mask[:, None, None, :] == 0, -1e9)

    def forward(self, x, mask):
        B, L, _ = x.shape
        Q = self.W_q(x).view(B, L, self.h, self.d_k).transpose(1, 2)
        K = self.W_k(x).view(B, L, self.h, self.d_k).transpose(1, 2)
        V = self.W_v(x).view(B, L, self.h, self.d_k).transpose(1, 2)
        scores = Q @ K.transpose(-2, -1) / math.sqrt(self.d_k)
        weights = F.softmax(self.masked(scores, mask), dim=-1)
        return self.W_o((weights @ V).transpose(1, 2).reshape(B, L, -1))


class WrongSelf(RightSelf):
    def masked(self, scores, mask):
        scores.masked_fill(mask[:, None, None, :] == 0, -1e9)  # wrong: AS404 result_dropped
        return scores


def _result_dropped(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), random_keep(B, L)), {}, ["mask=keep"]


def wrong_result_dropped(B, H, L, Dk):
    return _result_dropped(WrongSelf, B, H, L, Dk)


def right_result_dropped(B, H, L, Dk):
    return _result_dropped(RightSelf, B, H, L, Dk)


def reference_result_dropped(module, x, mask):
    q, k, v = (heads(x, linear, module.h) for linear in (module.W_q, module.W_k, module.W_v))
    return merge(attend(q, k, v, mask[:, None, None]), module.W_o)


class RightCross(nn.Module):
    def __init__(self, query_dim, heads):
        super().__init__()
        self.heads = heads
        self.to_q = nn.Linear(query_dim, query_dim, bias=False)
        self.to_k = nn.Linear(query_dim, query_dim, bias=False)
        self.to_v = nn.Linear(query_dim, query_dim, bias=False)
        self.to_out = nn.Sequential(nn.Linear(query_dim, query_dim), nn.Dropout(0.1))

    def split(self, x, context):
        parts = (self.to_q(x), self.to_k(context), self.to_v(context))
        return tuple(part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in parts)

    def forward(self, x, context, context_mask=None):
        q, k, v = self.split(x, context)
        if context_mask is not None:
            context_mask = context_mask[:, None, None, :]
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=context_mask)
        return self.to_out(out.transpose(1, 2).flatten(2))


class WrongCross(RightCross):
    def forward(self, x, context, context_mask=None):
        q, k, v = self.split(x, context)
        out = F.scaled_dot_product_attention(q, k, v)
        return self.to_out(out.transpose(1, 2).flatten(2))


def _argument_unused(cls, B, H, Lq, Lk, Dk):
    args = torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk)
    return cls(H * Dk, H).eval(), args, {"context_mask": random_keep(B, Lk)}, ["context_mask=keep"]


def wrong_argument_unused(B, H, Lq, Lk, Dk):
    return _argument_unused(WrongCross, B, H, Lq, Lk, Dk)


def right_argument_unused(B, H, Lq, Lk, Dk):
    return _argument_unused(RightCross, B, H, Lq, Lk, Dk)


def reference_argument_unused(module, x, context, context_mask):
    q, k, v = (heads(t, p, module.heads) for t, p in ((x, module.to_q), (context, module.to_k), (context, module.to_v)))
    return merge(attend(q, k, v, context_mask[:, None, None]), module.to_out[0])


def scores_used(query, key, value, mask):
    scale = query.shape[-1] ** -0.5
    scores = torch.einsum("bhqd,bhkd->bhqk", query * scale, key)
    masked = scores + mask  # noqa: F841
    weights = scores.softmax(dim=-1)  # wrong: AS404 other_variable
    return torch.einsum("bhqk,bhkd->bhqd", weights, value)


def masked_used(query, key, value, mask):
    scale = query.shape[-1] ** -0.5
    scores = torch.einsum("bhqd,bhkd->bhqk", query * scale, key)
    masked = scores + mask
    weights = masked.softmax(dim=-1)
    return torch.einsum("bhqk,bhkd->bhqd", weights, value)


def _other_variable(function, B, H, Lq, Lk, Dk):
    q, k, v = torch.randn(B, H, Lq, Dk), torch.randn(B, H, Lk, Dk), torch.randn(B, H, Lk, Dk)
    mask = torch.zeros(B, 1, Lq, Lk).masked_fill(~random_keep(B, 1, Lq, Lk), -math.inf)
    return function, (q, k, v, mask), {}, ["mask=add"]


def wrong_other_variable(B, H, Lq, Lk, Dk):
    return _other_variable(scores_used, B, H, Lq, Lk, Dk)


def right_other_variable(B, H, Lq, Lk, Dk):
    return _other_variable(masked_used, B, H, Lq, Lk, Dk)


def reference_other_variable(function, query, key, value, mask):
    return attend(query, key, value, mask == 0)


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x, padding=None):
        B, N, C = x.shape
        q, k, v = self.qkv(x).view(B, N, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        attn = q @ k.mT / math.sqrt(C // self.heads)
        if padding is not None:
            attn = attn.masked_fill(padding.view(B, 1, 1, N), -math.inf)
        return self.proj((attn.softmax(-1) @ v).transpose(1, 2).reshape(B, N, C))


class RightLayer(nn.Module):
    """Post-norm encoder layer."""

    def __init__(self, dim, heads):
        super().__init__()
        self.self_attn = Attention(dim, heads)
        self.ff = nn.Sequential(nn.Linear(dim, 2 * dim), nn.ReLU(), nn.Linear(2 * dim, dim))
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)

    def forward(self, src, padding):
        src = self.norm1(src + self.self_attn(src, padding))
        return self.norm2(src + self.ff(src))


class WrongLayer(RightLayer):
    def forward(self, src, padding):
        src = self.norm1(src + self.self_attn(src))
        return self.norm2(src + self.ff(src))


def _not_passed_on(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), ~random_keep(B, L)), {}, ["padding=drop"]


def wrong_not_passed_on(B, H, L, Dk):
    return _not_passed_on(WrongLayer, B, H, L, Dk)


def right_not_passed_on(B, H, L, Dk):
    return _not_passed_on(RightLayer, B, H, L, Dk)


def reference_not_passed_on(module, src, padding):
    inner = module.self_attn
    src = module.norm1(src + merge(attend(*fused(src, inner.qkv, inner.heads), ~padding[:, None, None]), inner.proj))
    return module.norm2(src + module.ff(src))


class RightStack(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.blocks = nn.ModuleList(Attention(dim, heads) for _ in range(2))

    def padding_of(self, number, padding):
        return padding

    def forward(self, x, padding):
        for number, block in enumerate(self.blocks):
            x = x + block(x, self.padding_of(number, padding))
        return x


class WrongStack(RightStack):
    def padding_of(self, number, padding):
        return padding if number == 0 else None


def _first_layer_only(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), ~random_keep(B, L)), {}, ["padding=drop"]


def wrong_first_layer_only(B, H, L, Dk):
    return _first_layer_only(WrongStack, B, H, L, Dk)


def right_first_layer_only(B, H, L, Dk):
    return _first_layer_only(RightStack, B, H, L, Dk)


def reference_first_layer_only(module, x, padding):
    for block in module.blocks:
        x = x + merge(attend(*fused(x, block.qkv, block.heads), ~padding[:, None, None]), block.proj)
    return x

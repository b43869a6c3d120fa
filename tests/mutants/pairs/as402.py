"""AS402: the mask is broadcast along the wrong axis."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, heads, merge

SELF = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 5, "Dk": 4})
PAIRS = [
    ("AS402", "query_axis", *SELF),
    ("AS402", "transposed", *SELF),
    ("AS402", "unsqueezed_for_bmm", *SELF),
    ("AS402", "encoder_block", *SELF),
]


def lengths_mask(B, L):
    """True at the tokens of each sentence, at least one token and one padding."""
    return torch.arange(L)[None, :] < torch.randint(1, L, (B, 1))


class RightSelf(nn.Module):
    def __init__(self, width, n_head):
        super().__init__()
        self.n_head = n_head
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)

    def mask_for(self, mask):
        return mask[:, None, None, :]

    def forward(self, x, mask):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(~self.mask_for(mask), -1e9)
        y = F.softmax(att, dim=-1) @ v
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


class WrongSelf(RightSelf):
    def mask_for(self, mask):
        return mask[:, None, :, None]  # wrong: AS402 query_axis


def _query_axis(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), lengths_mask(B, L)), {}, ["mask=keep"]


def wrong_query_axis(B, H, L, Dk):
    return _query_axis(WrongSelf, B, H, L, Dk)


def right_query_axis(B, H, L, Dk):
    return _query_axis(RightSelf, B, H, L, Dk)


def reference_query_axis(module, x, mask):
    return merge(attend(*fused(x, module.c_attn, module.n_head), mask[:, None, None]), module.c_proj)


def square_transposed(query, key, value, mask):
    attn_mask = mask.transpose(-2, -1).unsqueeze(1)  # wrong: AS402 transposed
    return F.scaled_dot_product_attention(query, key, value, attn_mask=attn_mask)


def square(query, key, value, mask):
    attn_mask = mask.unsqueeze(1)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=attn_mask)


def _transposed(function, B, H, L, Dk):
    q, k, v = torch.randn(3, B, H, L, Dk).unbind()
    mask = (torch.rand(B, L, L) < 0.5) | torch.eye(L, dtype=torch.bool)
    mask[:, 0, 1] = True
    mask[:, 1, 0] = False
    return function, (q, k, v), {"mask": mask}, ["mask=keep"]


def wrong_transposed(B, H, L, Dk):
    return _transposed(square_transposed, B, H, L, Dk)


def right_transposed(B, H, L, Dk):
    return _transposed(square, B, H, L, Dk)


def reference_transposed(function, query, key, value, mask):
    return attend(query, key, value, mask[:, None])


class RightFolded(nn.Module):
    """Heads folded into the batch, weights by bmm."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, width, bias=False)
        self.v = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, width)

    def fold(self, x):
        B, L, D = x.shape
        x = x.reshape(B, L, self.heads, D // self.heads).permute(0, 2, 1, 3)
        return x.reshape(B * self.heads, L, D // self.heads)

    def spread(self, padding, L):
        return padding.unsqueeze(1).expand(-1, L, L)

    def forward(self, x, padding):
        B, L, D = x.shape
        q, k, v = self.fold(self.q(x)), self.fold(self.k(x)), self.fold(self.v(x))
        scores = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(q.size(-1))
        hidden = self.spread(padding, L).repeat_interleave(self.heads, dim=0)
        weights = scores.masked_fill(hidden, torch.finfo(scores.dtype).min).softmax(dim=-1)
        context = torch.bmm(weights, v).reshape(B, self.heads, L, -1)
        return self.out(context.permute(0, 2, 1, 3).reshape(B, L, D))


class WrongFolded(RightFolded):
    def spread(self, padding, L):
        return padding.unsqueeze(2).expand(-1, L, L)  # wrong: AS402 unsqueezed_for_bmm


def _unsqueezed_for_bmm(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), ~lengths_mask(B, L)), {}, ["padding=drop"]


def wrong_unsqueezed_for_bmm(B, H, L, Dk):
    return _unsqueezed_for_bmm(WrongFolded, B, H, L, Dk)


def right_unsqueezed_for_bmm(B, H, L, Dk):
    return _unsqueezed_for_bmm(RightFolded, B, H, L, Dk)


def reference_unsqueezed_for_bmm(module, x, padding):
    q, k, v = (heads(x, linear, module.heads) for linear in (module.q, module.k, module.v))
    return merge(attend(q, k, v, ~padding[:, None, None]), module.out)


class RightBlock(nn.Module):
    """Pre-norm encoder block; the mask is added to the scores."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(dim)
        self.to_qkv = nn.Linear(dim, 3 * dim)
        self.to_out = nn.Linear(dim, dim)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def bias(self, mask, like):
        return torch.zeros_like(like).masked_fill(~mask[:, None, None, :], -30000.0)

    def attention(self, x, mask):
        q, k, v = (t.unflatten(-1, (self.heads, -1)) for t in self.to_qkv(x).chunk(3, dim=-1))
        dots = torch.einsum("bihd,bjhd->bhij", q, k) * q.shape[-1] ** -0.5
        attn = (dots + self.bias(mask, dots)).softmax(dim=-1)
        return self.to_out(torch.einsum("bhij,bjhd->bihd", attn, v).flatten(2))

    def forward(self, x, mask):
        x = x + self.attention(self.norm1(x), mask)
        return x + self.mlp(self.norm2(x))


class WrongBlock(RightBlock):
    def bias(self, mask, like):
        return torch.zeros_like(like).masked_fill(~mask[:, None, :, None], -30000.0)  # wrong: AS402 encoder_block


def _encoder_block(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {"mask": lengths_mask(B, L)}, ["mask=keep"]


def wrong_encoder_block(B, H, L, Dk):
    return _encoder_block(WrongBlock, B, H, L, Dk)


def right_encoder_block(B, H, L, Dk):
    return _encoder_block(RightBlock, B, H, L, Dk)


def reference_encoder_block(module, x, mask):
    h = module.norm1(x)
    x = x + merge(attend(*fused(h, module.to_qkv, module.heads), mask[:, None, None]), module.to_out)
    return x + module.mlp(module.norm2(x))

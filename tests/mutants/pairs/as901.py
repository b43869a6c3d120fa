"""AS901: dropout is active in eval mode."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, heads, merge, visible

SELF = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 5, "Dk": 4})
PAIRS = [
    ("AS901", "functional_dropout", *SELF),
    ("AS901", "sdpa_dropout", *SELF),
    ("AS901", "own_random_mask", *SELF),
    ("AS901", "made_in_forward", *SELF),
]


class RightDropout(nn.Module):
    def __init__(self, embed_dim, num_heads, dropout=0.2):
        super().__init__()
        self.num_heads, self.dropout = num_heads, dropout
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def drop(self, weights):
        return F.dropout(weights, p=self.dropout, training=self.training)

    def forward(self, x):
        q, k, v = (p(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for p in self.projections())
        weights = F.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)), dim=-1)
        return self.out_proj((self.drop(weights) @ v).transpose(1, 2).flatten(2))

    def projections(self):
        return self.q_proj, self.k_proj, self.v_proj


class WrongDropout(RightDropout):
    def drop(self, weights):
        return F.dropout(weights, p=self.dropout)  # wrong: AS901 functional_dropout


def _functional_dropout(cls, B, H, L, Dk):
    return cls(H * Dk, H).eval(), (torch.randn(B, L, H * Dk),), {}


def wrong_functional_dropout(B, H, L, Dk):
    return _functional_dropout(WrongDropout, B, H, L, Dk)


def right_functional_dropout(B, H, L, Dk):
    return _functional_dropout(RightDropout, B, H, L, Dk)


def reference_functional_dropout(module, x):
    return merge(attend(*(heads(x, p, module.num_heads) for p in module.projections())), module.out_proj)


class RightFlash(nn.Module):
    def __init__(self, n_embd, n_head, dropout=0.3):
        super().__init__()
        self.n_head, self.dropout = n_head, dropout
        self.c_attn = nn.Linear(n_embd, 3 * n_embd, bias=False)
        self.c_proj = nn.Linear(n_embd, n_embd, bias=False)
        self.resid_dropout = nn.Dropout(dropout)

    def core(self, q, k, v):
        p = self.dropout if self.training else 0.0
        return F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = (t.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for t in self.c_attn(x).split(C, dim=2))
        y = self.core(q, k, v).transpose(1, 2).contiguous().view(B, T, C)
        return self.resid_dropout(self.c_proj(y))


class WrongFlash(RightFlash):
    def core(self, q, k, v):
        p = self.dropout
        return F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)  # wrong: AS901 sdpa_dropout


def _sdpa_dropout(cls, B, H, L, Dk):
    return cls(H * Dk, H).eval(), (torch.randn(B, L, H * Dk),), {}, ["causal"]


def wrong_sdpa_dropout(B, H, L, Dk):
    return _sdpa_dropout(WrongFlash, B, H, L, Dk)


def right_sdpa_dropout(B, H, L, Dk):
    return _sdpa_dropout(RightFlash, B, H, L, Dk)


def reference_sdpa_dropout(module, x):
    return merge(attend(*fused(x, module.c_attn, module.n_head), visible(x.shape[1], x.shape[1])), module.c_proj)


class RightHeadDrop(nn.Module):
    """Pre-norm block that drops whole weights by a random mask of its own."""

    def __init__(self, dim, heads, rate=0.25):
        super().__init__()
        self.heads, self.rate = heads, rate
        self.norm = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def thin(self, attn):
        if self.training:
            attn = attn * (torch.rand_like(attn) >= self.rate) / (1 - self.rate)
        return attn

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(self.norm(x)).view(B, N, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        attn = self.thin((q @ k.mT * (C // self.heads) ** -0.5).softmax(dim=-1))
        return x + self.proj((attn @ v).transpose(1, 2).reshape(B, N, C))


class WrongHeadDrop(RightHeadDrop):
    def thin(self, attn):
        return attn * (torch.rand_like(attn) >= self.rate) / (1 - self.rate)  # wrong: AS901 own_random_mask


def _own_random_mask(cls, B, H, L, Dk):
    return cls(H * Dk, H).eval(), (torch.randn(B, L, H * Dk),), {}


def wrong_own_random_mask(B, H, L, Dk):
    return _own_random_mask(WrongHeadDrop, B, H, L, Dk)


def right_own_random_mask(B, H, L, Dk):
    return _own_random_mask(RightHeadDrop, B, H, L, Dk)


def reference_own_random_mask(module, x):
    return x + merge(attend(*fused(module.norm(x), module.qkv, module.heads)), module.proj)


class RightMade(nn.Module):
    def __init__(self, width, heads, p=0.1):
        super().__init__()
        self.heads, self.p = heads, p
        self.to_q = nn.Linear(width, width, bias=False)
        self.to_kv = nn.Linear(width, 2 * width, bias=False)
        self.to_out = nn.Linear(width, width)
        self.attn_drop = nn.Dropout(p)

    def dropped(self, attn):
        return self.attn_drop(attn)

    def forward(self, x):
        q = self.to_q(x).unflatten(-1, (self.heads, -1))
        k, v = self.to_kv(x).unflatten(-1, (2, self.heads, -1)).unbind(2)
        attn = torch.einsum("bihd,bjhd->bhij", q, k).mul(q.size(-1) ** -0.5).softmax(dim=-1)
        return self.to_out(torch.einsum("bhij,bjhd->bihd", self.dropped(attn), v).flatten(2))


class WrongMade(RightMade):
    def dropped(self, attn):
        return nn.Dropout(self.p)(attn)  # wrong: AS901 made_in_forward


def _made_in_forward(cls, B, H, L, Dk):
    return cls(H * Dk, H).eval(), (torch.randn(B, L, H * Dk),), {}


def wrong_made_in_forward(B, H, L, Dk):
    return _made_in_forward(WrongMade, B, H, L, Dk)


def right_made_in_forward(B, H, L, Dk):
    return _made_in_forward(RightMade, B, H, L, Dk)


def reference_made_in_forward(module, x):
    q = heads(x, module.to_q, module.heads)
    both = torch.einsum("bli,oi->blo", x, module.to_kv.weight).unflatten(-1, (2, module.heads, -1))
    k, v = both.permute(2, 0, 3, 1, 4)
    return merge(attend(q, k, v), module.to_out)

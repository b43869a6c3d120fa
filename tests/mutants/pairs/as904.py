"""AS904: a parameter or buffer is changed in place."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, heads, merge, visible

SELF = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 5, "Dk": 4})
PAIRS = [
    ("AS904", "weight_normalised", *SELF),
    ("AS904", "bias_recentred", *SELF),
    ("AS904", "counted_in_eval", *SELF),
    ("AS904", "temperature_clamped", *SELF),
]


class RightNormalised(nn.Module):
    """The rows of the query's and the key's weights have length one."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.wq = nn.Linear(d_model, d_model, bias=False)
        self.wk = nn.Linear(d_model, d_model, bias=False)
        self.wv = nn.Linear(d_model, d_model, bias=False)
        self.wo = nn.Linear(d_model, d_model, bias=False)

    def normalised(self, weight):
        return weight / weight.norm(dim=1, keepdim=True)

    def forward(self, x):
        q = F.linear(x, self.normalised(self.wq.weight)).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
        k = F.linear(x, self.normalised(self.wk.weight)).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
        v = self.wv(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(out.transpose(1, 2).flatten(2))


class WrongNormalised(RightNormalised):
    def normalised(self, weight):
        weight.data.div_(weight.data.norm(dim=1, keepdim=True))  # wrong: AS904 weight_normalised
        return weight


def _weight_normalised(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["causal"]


def wrong_weight_normalised(B, H, L, Dk):
    return _weight_normalised(WrongNormalised, B, H, L, Dk)


def right_weight_normalised(B, H, L, Dk):
    return _weight_normalised(RightNormalised, B, H, L, Dk)


def reference_weight_normalised(module, x):
    q, k = (
        heads(x, p, module.n_heads) / p.weight.pow(2).sum(1).sqrt().view(module.n_heads, 1, -1)
        for p in (module.wq, module.wk)
    )
    v = heads(x, module.wv, module.n_heads)
    return merge(attend(q, k, v, visible(x.shape[1], x.shape[1])), module.wo)


class RightBiased(nn.Module):
    """A bias for each head and pair of positions, in a buffer."""

    def __init__(self, dim, num_heads, max_len):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.register_buffer("attn_bias", torch.randn(num_heads, max_len, max_len))

    def scores(self, q, k):
        L = q.size(2)
        return q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)) + self.attn_bias[:, :L, :L]

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        return self.proj((self.scores(q, k).softmax(dim=-1) @ v).transpose(1, 2).reshape(B, N, C))


class WrongBiased(RightBiased):
    def scores(self, q, k):
        L = q.size(2)
        bias = self.attn_bias[:, :L, :L]
        bias -= bias.amax(dim=-1, keepdim=True)  # wrong: AS904 bias_recentred
        return q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)) + bias


def _bias_recentred(cls, B, H, L, Dk):
    return cls(H * Dk, H, L + 2), (torch.randn(B, L, H * Dk),), {}


def wrong_bias_recentred(B, H, L, Dk):
    return _bias_recentred(WrongBiased, B, H, L, Dk)


def right_bias_recentred(B, H, L, Dk):
    return _bias_recentred(RightBiased, B, H, L, Dk)


def reference_bias_recentred(module, x):
    L = x.shape[1]
    return merge(attend(*fused(x, module.qkv, module.num_heads), bias=module.attn_bias[:, :L, :L]), module.proj)


class RightCounted(nn.Module):
    """Counts, while it is trained, how much weight each head gives to the token itself."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.to_qkv = nn.Linear(width, 3 * width, bias=False)
        self.to_out = nn.Linear(width, width)
        self.register_buffer("own_weight", torch.zeros(heads))

    def count(self, attn):
        if self.training:
            self.own_weight.add_(attn.diagonal(dim1=-2, dim2=-1).sum(dim=(0, 2)))

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)) for t in self.to_qkv(self.norm(x)).chunk(3, dim=-1))
        attn = torch.einsum("bihd,bjhd->bhij", q, k).div(math.sqrt(q.size(-1))).softmax(dim=-1)
        self.count(attn.detach())
        return x + self.to_out(torch.einsum("bhij,bjhd->bihd", attn, v).flatten(2))


class WrongCounted(RightCounted):
    def count(self, attn):
        self.own_weight.add_(attn.diagonal(dim1=-2, dim2=-1).sum(dim=(0, 2)))  # wrong: AS904 counted_in_eval


def _counted_in_eval(cls, B, H, L, Dk):
    return cls(H * Dk, H).eval(), (torch.randn(B, L, H * Dk),), {}


def wrong_counted_in_eval(B, H, L, Dk):
    return _counted_in_eval(WrongCounted, B, H, L, Dk)


def right_counted_in_eval(B, H, L, Dk):
    return _counted_in_eval(RightCounted, B, H, L, Dk)


def reference_counted_in_eval(module, x):
    return x + merge(attend(*fused(module.norm(x), module.to_qkv, module.heads)), module.to_out)


class RightCosine(nn.Module):
    """Cosine attention with a learned temperature for each head, no larger than a hundred."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.q_proj = nn.Linear(dim, dim)
        self.k_proj = nn.Linear(dim, dim)
        self.v_proj = nn.Linear(dim, dim)
        self.logit_scale = nn.Parameter(torch.linspace(2.0, 6.0, heads).view(heads, 1, 1))

    def temperature(self):
        return torch.clamp(self.logit_scale, max=math.log(100.0)).exp()

    def forward(self, x):
        q, k, v = (
            p(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        attn = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
        return ((attn * self.temperature()).softmax(dim=-1) @ v).transpose(1, 2).flatten(2)


class WrongCosine(RightCosine):
    def temperature(self):
        self.logit_scale.data.clamp_(max=math.log(100.0))  # wrong: AS904 temperature_clamped
        return self.logit_scale.exp()


def _temperature_clamped(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def wrong_temperature_clamped(B, H, L, Dk):
    return _temperature_clamped(WrongCosine, B, H, L, Dk)


def right_temperature_clamped(B, H, L, Dk):
    return _temperature_clamped(RightCosine, B, H, L, Dk)


def reference_temperature_clamped(module, x):
    q, k, v = (heads(x, p, module.heads) for p in (module.q_proj, module.k_proj, module.v_proj))
    q, k = (t / t.pow(2).sum(-1, keepdim=True).sqrt() for t in (q, k))
    scale = torch.minimum(module.logit_scale.exp(), torch.tensor(100.0, dtype=torch.float64))
    return merge(attend(q * scale, k, v, scale=1.0))

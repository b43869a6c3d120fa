"""Norms of queries, keys, values and outputs, along their widths."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.plain import attention, causal, join, multihead, split

SIZES = ({"B": 2, "H": 4, "L": 6, "Dk": 5}, {"B": 5, "H": 2, "L": 9, "Dk": 7})
UNUSUAL = [
    ("query_key_layer_norm", *SIZES),
    ("query_key_rms_full_width", *SIZES),
    ("sandwich_norm", *SIZES),
    ("scaled_unit_vectors", *SIZES),
    ("lengths_of_all_heads", *SIZES),
    (
        "series_standardised_over_time",
        {"B": 2, "H": 4, "T": 9, "Dk": 5, "N": 6, "C": 3},
        {"B": 5, "H": 2, "T": 8, "Dk": 7, "N": 4, "C": 3},
    ),
]


class QueryKeyLayerNorm(nn.Module):
    """Queries and keys are normed head by head."""

    def __init__(self, heads, depth):
        super().__init__()
        self.heads, self.depth = heads, depth
        self.qkv, self.proj = nn.Linear(heads * depth, 3 * heads * depth), nn.Linear(heads * depth, heads * depth)
        self.q_norm, self.k_norm = nn.LayerNorm(depth), nn.LayerNorm(depth)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, self.depth)).permute(2, 0, 3, 1, 4)
        weights = (self.q_norm(q) @ self.k_norm(k).mT * self.depth**-0.5).softmax(dim=-1)
        return self.proj((weights @ v).transpose(1, 2).flatten(2))


def case_query_key_layer_norm(B, H, L, Dk):
    return QueryKeyLayerNorm(H, Dk), (torch.randn(B, L, H * Dk),), {}


def reference_query_key_layer_norm(module, x):
    def normed(t):
        centred = t - t.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()

    q, k, v = (split(t, module.heads) for t in module.qkv(x).chunk(3, dim=-1))
    return module.proj(join(attention(normed(q), normed(k), v)))


class QueryKeyFullWidth(nn.Module):
    """Queries and keys are normed over all heads at once, before they are split."""

    def __init__(self, heads, depth):
        super().__init__()
        width = heads * depth
        self.heads = heads
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.q_norm, self.k_norm = nn.RMSNorm(width), nn.RMSNorm(width)

    def forward(self, x):
        parts = self.q_norm(self.q_proj(x)), self.k_norm(self.k_proj(x)), self.v_proj(x)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in parts)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


def case_query_key_rms_full_width(B, H, L, Dk):
    return QueryKeyFullWidth(H, Dk), (torch.randn(B, L, H * Dk),), {}, ["causal"]


def reference_query_key_rms_full_width(module, x):
    q, k = module.q_proj(x), module.k_proj(x)
    q, k = (t / (t.square().mean(-1, keepdim=True) + torch.finfo(t.dtype).eps).sqrt() for t in (q, k))
    return multihead(q, k, module.v_proj(x), module.heads, keep=causal(x.shape[1], x.shape[1]))


class SandwichNorm(nn.Module):
    """Norms before and after, a factor per head on its output, and one per channel on the residual branch."""

    def __init__(self, heads, depth):
        super().__init__()
        width = heads * depth
        self.heads = heads
        self.before, self.inside, self.behind = nn.LayerNorm(width), nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.head_scale, self.layer_scale = nn.Parameter(torch.rand(heads) + 0.5), nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x):
        q, k, v = self.qkv(self.before(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        read = F.scaled_dot_product_attention(q, k, v).transpose(1, 2) * self.head_scale[:, None]
        return x + self.layer_scale * self.behind(self.proj(self.inside(read.flatten(2))))


def case_sandwich_norm(B, H, L, Dk):
    return SandwichNorm(H, Dk), (torch.randn(B, L, H * Dk),), {}


def reference_sandwich_norm(module, x):
    read = multihead(*module.qkv(module.before(x)).chunk(3, dim=-1), module.heads)
    read = read * module.head_scale.repeat_interleave(x.shape[-1] // module.heads)
    return x + module.layer_scale * module.behind(module.proj(module.inside(read)))


class ScaledUnitVectors(nn.Module):
    """Unit vectors times a learned factor per channel, and a fixed scale; the values are also normalised."""

    def __init__(self, heads, depth):
        super().__init__()
        self.heads, self.depth = heads, depth
        self.qkv = nn.Linear(heads * depth, 3 * heads * depth, bias=False)
        self.q_scale, self.k_scale = nn.Parameter(torch.rand(depth) + 0.5), nn.Parameter(torch.rand(depth) + 0.5)

    def forward(self, x):
        q, k, v = (F.normalize(t.unflatten(-1, (self.heads, -1)), dim=-1) for t in self.qkv(x).chunk(3, dim=-1))
        sim = torch.einsum("bihd,bjhd->bhij", q * self.q_scale, k * self.k_scale) * 8
        return torch.einsum("bhij,bjhd->bihd", sim.softmax(dim=-1), v).flatten(2)


def case_scaled_unit_vectors(B, H, L, Dk):
    return ScaledUnitVectors(H, Dk), (torch.randn(B, L, H * Dk),), {}


def reference_scaled_unit_vectors(module, x):
    q, k, v = (split(t, module.heads) for t in module.qkv(x).chunk(3, dim=-1))
    q, k, v = (t / t.square().sum(-1, keepdim=True).sqrt() for t in (q, k, v))
    return join(attention(q * module.q_scale * module.k_scale, k, v, scale=8.0))


class LengthsOfAllHeads(ScaledUnitVectors):
    """Linear attention: a token's queries and keys have one length over all heads, and its gates one sum."""

    def __init__(self, heads, depth):
        super().__init__(heads, depth)
        self.gate = nn.Linear(heads * depth, heads)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)) for t in self.qkv(x).chunk(3, dim=-1))
        q, k = (t / torch.linalg.vector_norm(t, dim=(2, 3), keepdim=True) for t in (q * self.q_scale, k * self.k_scale))
        context = torch.einsum("bihd,bjhd,bjhe->bihe", q, k, v)
        return (context * self.gate(x).softmax(dim=-1).unsqueeze(-1)).flatten(2)


def case_lengths_of_all_heads(B, H, L, Dk):
    return LengthsOfAllHeads(H, Dk), (torch.randn(B, L, H * Dk),), {}


def reference_lengths_of_all_heads(module, x):
    q, k, v = module.qkv(x).chunk(3, dim=-1)
    q, k = (t * scale.repeat(module.heads) for t, scale in ((q, module.q_scale), (k, module.k_scale)))
    q, k = (split(t / t.square().sum(-1, keepdim=True).sqrt(), module.heads) for t in (q, k))
    gates = torch.exp(module.gate(x))
    gates = (gates / gates.sum(-1, keepdim=True)).mT.unsqueeze(-1)
    return join(gates * (torch.einsum("bhid,bhjd->bhij", q, k) @ split(v, module.heads)))


class Forecast(nn.Module):
    """Each series is standardised over time, and what is forecast gets its mean and deviation back."""

    def __init__(self, length, heads, depth):
        super().__init__()
        self.heads = heads
        self.embed, self.head = nn.Linear(length, heads * depth), nn.Linear(heads * depth, length)

    def forward(self, history, calendar):
        mean = history.mean(dim=1, keepdim=True)
        std = (history.var(dim=1, keepdim=True, unbiased=False) + 1e-5).sqrt()
        tokens = torch.cat(((history - mean) / std, calendar), dim=2).transpose(1, 2)
        x = self.embed(tokens)
        x = x + multihead(x, x, x, self.heads)
        return self.head(x).transpose(1, 2)[:, :, : history.shape[2]] * std + mean


def case_series_standardised_over_time(B, H, T, Dk, N, C):
    return Forecast(T, H, Dk), (torch.randn(B, T, N), torch.randn(B, T, C)), {}

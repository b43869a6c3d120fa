"""AS601: key and value heads are repeated in the wrong order."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, heads, merge, visible

SHARED = (
    {"B": 5, "Hkv": 4, "G": 6, "L": 7, "Dk": 8},
    {"B": 6, "Hkv": 5, "G": 4, "L": 9, "Dk": 7},
    {"B": 4, "Hkv": 6, "G": 5, "L": 8, "Dk": 10},
)
PAIRS = [
    ("AS601", "repeat", *SHARED),
    ("AS601", "expand", *SHARED),
    ("AS601", "value_tiled", *SHARED),
    ("AS601", "cat_of_copies", *SHARED),
    ("AS601", "grouped_queries", *SHARED),
    ("AS601", "features_of_arguments", *SHARED),
]


class RightGrouped(nn.Module):
    def __init__(self, d_head, num_heads, num_kv_heads):
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, d_head
        self.groups = num_heads // num_kv_heads
        self.q_proj = nn.Linear(num_heads * d_head, num_heads * d_head, bias=False)
        self.k_proj = nn.Linear(num_heads * d_head, num_kv_heads * d_head, bias=False)
        self.v_proj = nn.Linear(num_heads * d_head, num_kv_heads * d_head, bias=False)
        self.o_proj = nn.Linear(num_heads * d_head, num_heads * d_head, bias=False)

    def shared(self, k, v):
        return k.repeat_interleave(self.groups, dim=1), v.repeat_interleave(self.groups, dim=1)

    def forward(self, x):
        B, L, _ = x.shape
        q = self.q_proj(x).view(B, L, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(B, L, self.num_kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(B, L, self.num_kv_heads, self.head_dim).transpose(1, 2)
        k, v = self.shared(k, v)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(out.transpose(1, 2).reshape(B, L, -1))


class WrongRepeat(RightGrouped):
    def shared(self, k, v):
        return tuple(t.repeat(1, self.groups, 1, 1) for t in (k, v))  # wrong: AS601 repeat


class WrongExpand(RightGrouped):
    def shared(self, k, v):
        return self.repeat_kv(k), self.repeat_kv(v)

    def repeat_kv(self, hidden):
        B, Hkv, L, Dk = hidden.shape
        hidden = hidden[:, None].expand(B, self.groups, Hkv, L, Dk)  # wrong: AS601 expand
        return hidden.reshape(B, self.groups * Hkv, L, Dk)


class RightExpand(WrongExpand):
    def repeat_kv(self, hidden):
        B, Hkv, L, Dk = hidden.shape
        hidden = hidden[:, :, None].expand(B, Hkv, self.groups, L, Dk)
        return hidden.reshape(B, Hkv * self.groups, L, Dk)


class WrongValueTiled(RightGrouped):
    def shared(self, k, v):
        k = k.repeat_interleave(self.groups, dim=1)
        v = v.tile(1, self.groups, 1, 1)  # wrong: AS601 value_tiled
        return k, v


def _grouped(cls, B, Hkv, G, L, Dk):
    return cls(Dk, Hkv * G, Hkv), (torch.randn(B, L, Hkv * G * Dk),), {}, ["causal"]


def _reference_grouped(module, x):
    q = heads(x, module.q_proj, module.num_heads)
    k, v = (heads(x, p, module.num_kv_heads) for p in (module.k_proj, module.v_proj))
    owner = [h // module.groups for h in range(module.num_heads)]
    return merge(attend(q, k[:, owner], v[:, owner], visible(x.shape[1], x.shape[1])), module.o_proj)


def wrong_repeat(B, Hkv, G, L, Dk):
    return _grouped(WrongRepeat, B, Hkv, G, L, Dk)


def right_repeat(B, Hkv, G, L, Dk):
    return _grouped(RightGrouped, B, Hkv, G, L, Dk)


def reference_repeat(module, x):
    return _reference_grouped(module, x)


def wrong_expand(B, Hkv, G, L, Dk):
    return _grouped(WrongExpand, B, Hkv, G, L, Dk)


def right_expand(B, Hkv, G, L, Dk):
    return _grouped(RightExpand, B, Hkv, G, L, Dk)


def reference_expand(module, x):
    return _reference_grouped(module, x)


def wrong_value_tiled(B, Hkv, G, L, Dk):
    return _grouped(WrongValueTiled, B, Hkv, G, L, Dk)


def right_value_tiled(B, Hkv, G, L, Dk):
    return _grouped(RightGrouped, B, Hkv, G, L, Dk)


def reference_value_tiled(module, x):
    return _reference_grouped(module, x)


class RightLengthMajor(nn.Module):
    """Heads stay behind the length, B L H Dk; residual around."""

    def __init__(self, width, kv_heads, groups):
        super().__init__()
        self.kv_heads, self.groups = kv_heads, groups
        self.norm = nn.LayerNorm(width)
        self.wq = nn.Linear(width, width)
        self.wkv = nn.Linear(width, 2 * (width // groups))
        self.wo = nn.Linear(width, width)

    def copies(self, t):
        return torch.stack([t] * self.groups, dim=3).flatten(2, 3)

    def forward(self, x):
        h = self.norm(x)
        q = self.wq(h).unflatten(-1, (self.kv_heads * self.groups, -1))
        k, v = (self.copies(t.unflatten(-1, (self.kv_heads, -1))) for t in self.wkv(h).chunk(2, dim=-1))
        scores = torch.einsum("bihd,bjhd->bhij", q, k) / math.sqrt(q.size(-1))
        return x + self.wo(torch.einsum("bhij,bjhd->bihd", scores.softmax(dim=-1), v).flatten(2))


class WrongLengthMajor(RightLengthMajor):
    def copies(self, t):
        return torch.cat([t] * self.groups, dim=2)  # wrong: AS601 cat_of_copies


def _cat_of_copies(cls, B, Hkv, G, L, Dk):
    return cls(Hkv * G * Dk, Hkv, G), (torch.randn(B, L, Hkv * G * Dk),), {}


def wrong_cat_of_copies(B, Hkv, G, L, Dk):
    return _cat_of_copies(WrongLengthMajor, B, Hkv, G, L, Dk)


def right_cat_of_copies(B, Hkv, G, L, Dk):
    return _cat_of_copies(RightLengthMajor, B, Hkv, G, L, Dk)


def reference_cat_of_copies(module, x):
    h = module.norm(x)
    both = torch.einsum("bli,oi->blo", h, module.wkv.weight) + module.wkv.bias
    k, v = both.unflatten(-1, (2, module.kv_heads, -1)).permute(2, 0, 3, 1, 4)
    owner = [head // module.groups for head in range(module.kv_heads * module.groups)]
    out = attend(heads(h, module.wq, len(owner)), k[:, owner], v[:, owner])
    return x + merge(out, module.wo)


def groups_inner(q, k, v):
    q = q.unflatten(1, (k.shape[1], -1))
    scores = torch.einsum("bkgid,bkjd->bkgij", q * q.shape[-1] ** -0.5, k)
    return torch.einsum("bkgij,bkjd->bkgid", scores.softmax(dim=-1), v).flatten(1, 2)


def groups_outer(q, k, v):
    q = q.unflatten(1, (-1, k.shape[1]))  # wrong: AS601 grouped_queries
    scores = torch.einsum("bgkid,bkjd->bgkij", q * q.shape[-1] ** -0.5, k)
    return torch.einsum("bgkij,bkjd->bgkid", scores.softmax(dim=-1), v).flatten(1, 2)


def _grouped_queries(function, B, Hkv, G, L, Dk):
    return function, (torch.randn(B, Hkv * G, L, Dk), *torch.randn(2, B, Hkv, L, Dk)), {}


def wrong_grouped_queries(B, Hkv, G, L, Dk):
    return _grouped_queries(groups_outer, B, Hkv, G, L, Dk)


def right_grouped_queries(B, Hkv, G, L, Dk):
    return _grouped_queries(groups_inner, B, Hkv, G, L, Dk)


def reference_grouped_queries(function, q, k, v):
    owner = [head * k.shape[1] // q.shape[1] for head in range(q.shape[1])]
    return attend(q, k[:, owner], v[:, owner])


def of_features(q, k, v, num_heads, num_kv_heads, repeat):
    """Split the heads of arguments that have them side by side in their features."""
    q = q.unflatten(-1, (num_heads, -1)).transpose(1, 2)
    k, v = (repeat(t.unflatten(-1, (num_kv_heads, -1)).transpose(1, 2), num_heads // num_kv_heads) for t in (k, v))
    weights = torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), dim=-1)
    return (weights @ v).transpose(1, 2).flatten(2)


def tiled_features(q, k, v, num_heads, num_kv_heads):
    def repeat(t, times):
        return torch.tile(t, (1, times, 1, 1))  # wrong: AS601 features_of_arguments

    return of_features(q, k, v, num_heads, num_kv_heads, repeat)


def grouped_features(q, k, v, num_heads, num_kv_heads):
    return of_features(q, k, v, num_heads, num_kv_heads, lambda t, times: t.repeat_interleave(times, dim=1))


def _of_features(function, B, Hkv, G, L, Dk):
    q, k, v = (torch.randn(B, L, heads * Dk) for heads in (G * Hkv, Hkv, Hkv))
    return function, (q, k, v, G * Hkv, Hkv), {}


def wrong_features_of_arguments(B, Hkv, G, L, Dk):
    return _of_features(tiled_features, B, Hkv, G, L, Dk)


def right_features_of_arguments(B, Hkv, G, L, Dk):
    return _of_features(grouped_features, B, Hkv, G, L, Dk)


def reference_features_of_arguments(function, q, k, v, num_heads, num_kv_heads):
    q, k, v = (
        t.unflatten(-1, (count, -1)).transpose(1, 2)
        for t, count in ((q, num_heads), (k, num_kv_heads), (v, num_kv_heads))
    )
    of_query = torch.arange(num_heads) // (num_heads // num_kv_heads)
    return attend(q, k[:, of_query], v[:, of_query]).transpose(1, 2).flatten(2)

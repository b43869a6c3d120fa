"""Shared heads, keys or projections, and keys and values of low rank."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.plain import attention, causal, join, multihead, softmax, split

SIZES = ({"B": 2, "H": 4, "L": 6, "Dk": 5}, {"B": 5, "H": 2, "L": 9, "Dk": 7})
GROUPED = ({"B": 2, "Hkv": 3, "G": 4, "L": 7, "Dk": 5}, {"B": 5, "Hkv": 2, "G": 3, "L": 6, "Dk": 7})
UNUSUAL = [
    ("multi_query", *SIZES),
    ("grouped_expand", *GROUPED),
    ("grouped_axis", *GROUPED),
    ("grouped_kernel", *GROUPED),
    ("shared_query_key", *SIZES),
    ("latent_keys", *SIZES),
    ("identity_values", *SIZES),
    ("absorbed_projections", *SIZES),
    ("two_streams", *SIZES),
]


class MultiQuery(nn.Module):
    """Many query heads, one key and one value."""

    def __init__(self, heads, depth):
        super().__init__()
        self.heads, self.depth = heads, depth
        self.c_attn = nn.Linear(heads * depth, (heads + 2) * depth)
        self.c_proj = nn.Linear(heads * depth, heads * depth)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.c_attn(x).split((d, self.depth, self.depth), dim=-1)
        q = q.reshape(b, n * self.heads, self.depth)
        scores = torch.bmm(q, k.mT).view(b, n, self.heads, n) / math.sqrt(self.depth)
        scores = scores.masked_fill(torch.ones(n, n).triu(1).bool()[:, None], -torch.inf)
        return self.c_proj(torch.bmm(scores.softmax(-1).view(b, n * self.heads, n), v).view(b, n, d))


def case_multi_query(B, H, L, Dk):
    return MultiQuery(H, Dk), (torch.randn(B, L, H * Dk),), {}, ["causal", "scale=1/sqrt(Dk)"]


def reference_multi_query(module, x):
    q, k, v = module.c_attn(x).split((x.shape[-1], module.depth, module.depth), dim=-1)
    k, v = (torch.cat([t] * module.heads, dim=-1) for t in (k, v))
    return module.c_proj(multihead(q, k, v, module.heads, keep=causal(x.shape[1], x.shape[1])))


class Grouped(nn.Module):
    """Causal; `attend` gets q (B, H, L, Dk) and k, v (B, Hkv, L, Dk)."""

    def __init__(self, kv_heads, groups, depth):
        super().__init__()
        self.kv_heads, self.groups, self.depth = kv_heads, groups, depth
        width = kv_heads * groups * depth
        self.q_proj, self.o_proj = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, kv_heads * depth, bias=False)
        self.v_proj = nn.Linear(width, kv_heads * depth, bias=False)

    def attend(self, q, k, v):
        b, h, n, d = k.shape
        k, v = (t[:, :, None].expand(b, h, self.groups, n, d).reshape(b, h * self.groups, n, d) for t in (k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def forward(self, x):
        q, k, v = (
            f(x).unflatten(-1, (-1, self.depth)).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj)
        )
        return self.o_proj(self.attend(q, k, v).transpose(1, 2).flatten(2))


class GroupedAxis(Grouped):
    def attend(self, q, k, v):
        q = q.unflatten(1, (self.kv_heads, self.groups))
        scores = torch.einsum("bkgid,bkjd->bkgij", q, k) / math.sqrt(self.depth)
        scores = scores + torch.full(scores.shape[-2:], -torch.inf).triu(1)
        return torch.einsum("bkgij,bkjd->bkgid", scores.softmax(dim=-1), v).flatten(1, 2)


class GroupedKernel(Grouped):
    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def _grouped(module, B, Hkv, G, L, Dk):
    return module(Hkv, G, Dk), (torch.randn(B, L, Hkv * G * Dk),), {}, ["causal"]


def case_grouped_expand(B, Hkv, G, L, Dk):
    return _grouped(Grouped, B, Hkv, G, L, Dk)


def case_grouped_axis(B, Hkv, G, L, Dk):
    return _grouped(GroupedAxis, B, Hkv, G, L, Dk)


def case_grouped_kernel(B, Hkv, G, L, Dk):
    return _grouped(GroupedKernel, B, Hkv, G, L, Dk)


def reference_grouped_expand(module, x):
    keep = causal(x.shape[1], x.shape[1])
    queries = module.q_proj(x).split(module.depth, dim=-1)
    keys, values = (f(x).split(module.depth, dim=-1) for f in (module.k_proj, module.v_proj))
    heads = [
        attention(q, keys[h // module.groups], values[h // module.groups], keep=keep) for h, q in enumerate(queries)
    ]
    return module.o_proj(torch.cat(heads, dim=-1))


reference_grouped_axis = reference_grouped_kernel = reference_grouped_expand


class SharedQueryKey(nn.Module):
    """Queries and keys share a projection; keys are unit vectors, and a token attends to itself only if it must."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.to_qk, self.to_v = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)

    def forward(self, x):
        qk, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.to_qk, self.to_v))
        dots = torch.einsum("bhid,bhjd->bhij", qk, F.normalize(qk, dim=-1)) * qk.shape[-1] ** -0.5
        n = dots.shape[-1]
        dots = dots.masked_fill(torch.eye(n, dtype=torch.bool), -5e4)
        dots = dots.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), -torch.inf)
        return (dots.softmax(dim=-1) @ v).transpose(1, 2).flatten(2)


def case_shared_query_key(B, H, L, Dk):
    return SharedQueryKey(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def reference_shared_query_key(module, x):
    n = x.shape[1]
    q, v = split(module.to_qk(x), module.heads), split(module.to_v(x), module.heads)
    k = q / q.square().sum(-1, keepdim=True).sqrt()
    keep = torch.tensor([[j < i or i == j == 0 for j in range(n)] for i in range(n)])
    return join(attention(q, k, v, keep=keep))


class LatentKeys(nn.Module):
    """Keys and values are projected from one narrow, normalised latent vector per token."""

    def __init__(self, heads, depth):
        super().__init__()
        self.heads, self.depth, self.rank = heads, depth, depth + 1
        width = heads * depth
        self.q_down, self.q_norm, self.q_up = (
            nn.Linear(width, width // 2),
            nn.RMSNorm(width // 2),
            nn.Linear(width // 2, width),
        )
        self.kv_down, self.kv_norm = nn.Linear(width, self.rank), nn.RMSNorm(self.rank)
        self.kv_up = nn.Linear(self.rank, 2 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        b, n, _ = x.shape
        q = self.q_up(self.q_norm(self.q_down(x))).view(b, n, self.heads, self.depth).transpose(1, 2)
        kv = self.kv_up(self.kv_norm(self.kv_down(x))).view(b, n, self.heads, 2 * self.depth).transpose(1, 2)
        k, v = kv.split(self.depth, dim=-1)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(out.transpose(1, 2).reshape(b, n, -1))


def case_latent_keys(B, H, L, Dk):
    return LatentKeys(H, Dk), (torch.randn(B, L, H * Dk),), {}, ["causal"]


def reference_latent_keys(module, x):
    q = module.q_up(module.q_norm(module.q_down(x)))
    parts = module.kv_up(module.kv_norm(module.kv_down(x))).split(module.depth, dim=-1)
    k, v = torch.cat(parts[::2], dim=-1), torch.cat(parts[1::2], dim=-1)
    return module.out(multihead(q, k, v, module.heads, keep=causal(x.shape[1], x.shape[1])))


class IdentityValues(nn.Module):
    """Values aren't projected: heads take slices of the normalised input."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm, self.qk = nn.LayerNorm(width), nn.Linear(width, 2 * width)

    def forward(self, x):
        h = self.norm(x)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (*self.qk(h).chunk(2, dim=-1), h))
        return x + F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


def case_identity_values(B, H, L, Dk):
    return IdentityValues(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def reference_identity_values(module, x):
    h = module.norm(x)
    return x + multihead(*module.qk(h).chunk(2, dim=-1), h, module.heads)


class AbsorbedProjections(nn.Module):
    """Query and key weights are merged per head, and so are value and output weights: no vector has width Dk."""

    def __init__(self, heads, depth):
        super().__init__()
        width = heads * depth
        wq, wk, wv, wo = torch.randn(4, heads, width, depth) / math.sqrt(width)
        self.form = nn.Parameter(wq @ wk.mT / math.sqrt(depth))
        self.read = nn.Parameter(wv @ wo.mT)

    def forward(self, x):
        scores = torch.einsum("bid,hde,bje->bhij", x, self.form, x)
        return torch.einsum("bhij,bjd,hde->bie", scores.softmax(dim=-1), x, self.read)


def case_absorbed_projections(B, H, L, Dk):
    return AbsorbedProjections(H, Dk), (torch.randn(B, L, H * Dk),), {}


def reference_absorbed_projections(module, x):
    return sum(softmax(x @ form @ x.mT) @ x @ read for form, read in zip(module.form, module.read, strict=True))


class Streams(nn.Module):
    """A stream of words and one of guesses share all projections; the projections of a context aren't called."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.words = nn.ModuleDict({name: nn.Linear(width, width) for name in ("query", "key", "value", "out")})
        self.context = nn.ModuleDict({name: nn.Linear(width, width) for name in ("query", "key", "value", "out")})

    def forward(self, x, context=None):
        q, k, v = (split(self.words[name](x), self.heads) for name in ("query", "key", "value"))
        words = self.words["out"](join(F.scaled_dot_product_attention(q, k, v)))
        guesses = self.words["out"](join(F.scaled_dot_product_attention(k, k, v)))
        if context is not None:
            q, k, v = (
                split(self.context[name](one), self.heads)
                for name, one in zip(("query", "key", "value"), (words, context, context), strict=True)
            )
            words = words + self.context["out"](join(F.scaled_dot_product_attention(q, k, v)))
        return words, guesses


def case_two_streams(B, H, L, Dk):
    return Streams(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["scale=1/sqrt(Dk)"]


def reference_two_streams(module, x):
    q, k, v = (module.words[name](x) for name in ("query", "key", "value"))
    contexts = multihead(q, k, v, module.heads), multihead(k, k, v, module.heads)
    return tuple(module.words["out"](context) for context in contexts)

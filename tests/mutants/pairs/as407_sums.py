"""AS407: linear attention, where padding stays in one of the sums."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import fused, heads, merge, project

SIZES = (
    {"B": 4, "H": 5, "L": 9, "Dk": 6},
    {"B": 5, "H": 3, "L": 11, "Dk": 8},
    {"B": 6, "H": 4, "L": 13, "Dk": 7},
)
CROSS = (
    {"B": 4, "H": 5, "Lq": 7, "Lk": 9, "Dk": 6},
    {"B": 5, "H": 4, "Lq": 11, "Lk": 13, "Dk": 7},
    {"B": 6, "H": 7, "Lq": 5, "Lk": 9, "Dk": 4},
)
PAIRS = [
    ("AS407", "values_masked_alone", *SIZES),
    ("AS407", "memory_in_the_normaliser", *CROSS),
    ("AS407", "column_of_ones", *SIZES),
    ("AS407", "outer_products_masked_alone", *SIZES),
    ("AS407", "total_of_random_features", *CROSS),
    ("AS407", "queries_masked_for_keys", *SIZES),
]


def of_lengths(B, L):
    """Return a mask, true for as many tokens as each element has."""
    return torch.arange(L) < (L - 1 - torch.arange(B) % (L - 3))[:, None]


def _reference(q, k, v, keep):
    """Weigh the values of kept keys by the products of features, (B, H, L, features), one query at a time."""
    contexts = []
    for query in q.unbind(2):
        weights = torch.einsum("bhf,bhjf->bhj", query, k) * keep[:, None]
        contexts.append(torch.einsum("bhj,bhjd->bhd", weights / weights.sum(-1, keepdim=True), v))
    return torch.stack(contexts, 2)


def _elu1(t):
    return torch.where(t > 0, t + 1, t.clamp(max=0).exp())


class Performer(nn.Module):
    """The features are elu(x) + 1, and padding is made zeros before it is summed."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.to_qkv, self.to_out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)

    def masked(self, k, v, mask):
        mask = mask[:, None, :, None]
        return k.masked_fill(~mask, 0.0), v.masked_fill(~mask, 0.0)

    def forward(self, x, mask):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.to_qkv(x).chunk(3, dim=-1))
        q, k = F.elu(q) + 1, F.elu(k) + 1
        k, v = self.masked(k, v, mask)
        D_inv = 1 / torch.einsum("...nd,...d->...n", q, k.sum(dim=-2))  # wrong: AS407 values_masked_alone
        context = torch.einsum("...nd,...ne->...de", k, v)
        out = torch.einsum("...de,...nd,...n->...ne", context, q, D_inv)
        return self.to_out(out.transpose(1, 2).flatten(2))


class PerformerOfValues(Performer):
    def masked(self, k, v, mask):
        return k, v.masked_fill(~mask[:, None, :, None], 0.0)


def _self(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), of_lengths(B, L)), {}, ["mask=keep"]


def wrong_values_masked_alone(B, H, L, Dk):
    return _self(PerformerOfValues, B, H, L, Dk)


def right_values_masked_alone(B, H, L, Dk):
    return _self(Performer, B, H, L, Dk)


def reference_values_masked_alone(module, x, mask):
    q, k, v = fused(x, module.to_qkv, module.heads)
    return merge(_reference(_elu1(q), _elu1(k), v, mask), module.to_out)


def attend_to_memory(q, k, v, ignore):
    """Attend in (B, H, L, Dk); `ignore` is true at padding of the keys, (B, Lk)."""
    q, k = q.relu() + 1e-3, k.relu() + 1e-3
    keep = (~ignore).to(k.dtype)[:, None, :, None]
    k = k * keep
    states = k.transpose(-2, -1) @ v
    total = q @ k.transpose(-2, -1).sum(dim=-1, keepdim=True)
    return (q @ states) / total


def attend_to_padded_memory(q, k, v, ignore):
    """Attend in (B, H, L, Dk); `ignore` is true at padding of the keys, (B, Lk)."""
    q, k = q.relu() + 1e-3, k.relu() + 1e-3
    keep = (~ignore).to(k.dtype)[:, None, :, None]
    states = (k * keep).transpose(-2, -1) @ v
    total = q @ k.transpose(-2, -1).sum(dim=-1, keepdim=True)  # wrong: AS407 memory_in_the_normaliser
    return (q @ states) / total


def _memory(function, B, H, Lq, Lk, Dk):
    q, k, v = torch.randn(B, H, Lq, Dk), torch.randn(B, H, Lk, Dk), torch.randn(B, H, Lk, Dk)
    return function, (q, k, v, ~of_lengths(B, Lk)), {}, ["ignore=drop"]


def wrong_memory_in_the_normaliser(B, H, Lq, Lk, Dk):
    return _memory(attend_to_padded_memory, B, H, Lq, Lk, Dk)


def right_memory_in_the_normaliser(B, H, Lq, Lk, Dk):
    return _memory(attend_to_memory, B, H, Lq, Lk, Dk)


def reference_memory_in_the_normaliser(function, q, k, v, ignore):
    q, k = (t.clamp(min=0) + 1e-3 for t in (q, k))
    return _reference(q, k, v, ~ignore)


class WithOnes(nn.Module):
    """A column of ones beside the values sums up the keys."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def split(self, t):
        B, L, D = t.shape
        return t.view(B, L, self.heads, D // self.heads).transpose(1, 2)

    def values(self, v, kept):
        return F.pad(v, (0, 1), value=1.0) * kept

    def forward(self, x, pad):
        q, k, v = F.softplus(self.split(self.q(x))), F.softplus(self.split(self.k(x))), self.split(self.v(x))
        kept = 1 - pad.to(x.dtype)[:, None, :, None]
        sums = torch.matmul(k.mT, self.values(v, kept))  # wrong: AS407 column_of_ones
        out = torch.matmul(q, sums)
        out = out[..., :-1] / out[..., -1:]
        return self.o(out.transpose(1, 2).reshape(x.shape))


class WithOnesForPadding(WithOnes):
    def values(self, v, kept):
        return F.pad(v * kept, (0, 1), value=1.0)


def _ones(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), ~of_lengths(B, L)), {}, ["pad=drop"]


def wrong_column_of_ones(B, H, L, Dk):
    return _ones(WithOnesForPadding, B, H, L, Dk)


def right_column_of_ones(B, H, L, Dk):
    return _ones(WithOnes, B, H, L, Dk)


def reference_column_of_ones(module, x, pad):
    q, k, v = (heads(x, linear, module.heads) for linear in (module.q, module.k, module.v))
    q, k = (torch.log1p(t.exp()) for t in (q, k))
    return merge(_reference(q, k, v, ~pad), module.o)


class OuterProducts(nn.Module):
    """Tokens stay on axis 1: the products of their features are summed over it."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.w_q, self.w_k, self.w_v = (nn.Linear(width, width, bias=False) for _ in range(3))

    def kept_keys(self, k, valid):
        return k * valid[:, :, None, None]

    def forward(self, x, valid):
        q, k, v = (w(x).unflatten(2, (self.heads, -1)) for w in (self.w_q, self.w_k, self.w_v))
        q, k = torch.sigmoid(q), torch.sigmoid(k)
        products = k[..., :, None] * v[..., None, :]
        memory = (products * valid[:, :, None, None, None]).sum(dim=1)
        normaliser = self.kept_keys(k, valid).sum(dim=1)  # wrong: AS407 outer_products_masked_alone
        context = (q[..., None] * memory[:, None]).sum(dim=-2)
        return (context / (q * normaliser[:, None]).sum(dim=-1, keepdim=True)).flatten(2)


class OuterProductsAlone(OuterProducts):
    def kept_keys(self, k, valid):
        return k


def _outer(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), of_lengths(B, L).long()), {}, ["valid=keep"]


def wrong_outer_products_masked_alone(B, H, L, Dk):
    return _outer(OuterProductsAlone, B, H, L, Dk)


def right_outer_products_masked_alone(B, H, L, Dk):
    return _outer(OuterProducts, B, H, L, Dk)


def reference_outer_products_masked_alone(module, x, valid):
    q, k, v = (heads(x, w, module.heads) for w in (module.w_q, module.w_k, module.w_v))
    return merge(_reference(1 / (1 + torch.exp(-q)), 1 / (1 + torch.exp(-k)), v, valid))


class CrossBlock(nn.Module):
    """Cross-attention with random features, a norm and a residual connection, as a whole layer of a model."""

    def __init__(self, width, heads, features):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.to_q, self.to_kv, self.out = nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.register_buffer("directions", torch.randn(features, width // heads) / math.sqrt(width // heads))

    def features(self, t):
        return torch.exp(t @ self.directions.T - t.square().sum(-1, keepdim=True) / (2 * t.shape[-1]))

    def total(self, k, kept):
        return torch.einsum("bjhf->bhf", kept)

    def forward(self, x, memory, mask):
        q = self.to_q(self.norm(x)).unflatten(-1, (self.heads, -1))
        k, v = self.to_kv(memory).unflatten(-1, (2, self.heads, -1)).unbind(2)
        q, k = self.features(q), self.features(k)
        kept = k * mask.type_as(k)[:, :, None, None]
        total, state = self.total(k, kept), torch.einsum("bjhf,bjhd->bhfd", kept, v)
        context = torch.einsum("bihf,bhfd->bihd", q, state) / torch.einsum("bihf,bhf->bih", q, total).unsqueeze(-1)
        return x + self.out(context.flatten(2))


class CrossBlockOfAll(CrossBlock):
    def total(self, k, kept):
        return torch.einsum("bjhf->bhf", k)  # wrong: AS407 total_of_random_features


def _cross(cls, B, H, Lq, Lk, Dk):
    x, memory = torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk)
    return cls(H * Dk, H, 3 * Dk - 1), (x, memory, of_lengths(B, Lk)), {}, ["mask=keep"]


def wrong_total_of_random_features(B, H, Lq, Lk, Dk):
    return _cross(CrossBlockOfAll, B, H, Lq, Lk, Dk)


def right_total_of_random_features(B, H, Lq, Lk, Dk):
    return _cross(CrossBlock, B, H, Lq, Lk, Dk)


def reference_total_of_random_features(module, x, memory, mask):
    centred = x - x.mean(-1, keepdim=True)
    normed = centred / (centred.square().mean(-1, keepdim=True) + module.norm.eps).sqrt()
    q = heads(normed * module.norm.weight + module.norm.bias, module.to_q, module.heads)
    k, v = (torch.stack(t.chunk(module.heads, -1), 1) for t in project(memory, module.to_kv).chunk(2, -1))
    q, k = (
        (torch.einsum("bhid,fd->bhif", t, module.directions) - (t * t).sum(-1)[..., None] / t.shape[-1] / 2).exp()
        for t in (q, k)
    )
    return x + merge(_reference(q, k, v, mask), module.out)


def kernel_attention(q, k, v, q_mask=None, kv_mask=None, eps=1e-6):
    """Attend in (B, L, H, Dk) by sums over the keys; the values are divided by their number, against overflow."""
    q, k = F.elu(q) + 1, F.elu(k) + 1
    if q_mask is not None:
        q = q * q_mask[:, :, None, None]
    if kv_mask is not None:
        k, v = k * kv_mask[:, :, None, None], v * kv_mask[:, :, None, None]
    length = v.size(1)
    kv = torch.einsum("nshd,nshv->nhdv", k, v / length)  # wrong: AS407 queries_masked_for_keys
    z = 1 / (torch.einsum("nlhd,nhd->nlh", q, k.sum(dim=1)) + eps)
    return torch.einsum("nlhd,nhdv,nlh->nlhv", q, kv, z) * length


class Features(nn.Module):
    """The features of an image attend to each other, and a network merges what each reads with what it was."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.mlp = nn.Sequential(nn.Linear(2 * width, 3 * width, bias=False), nn.ReLU(), nn.Linear(3 * width, width))

    def attend(self, q, k, v, mask):
        return kernel_attention(q, k, v, kv_mask=mask)

    def forward(self, x, mask):
        q, k, v = (proj(x).view(*x.shape[:2], self.heads, -1) for proj in (self.q_proj, self.k_proj, self.v_proj))
        message = self.attend(q, k, v, mask).flatten(2)
        return x + self.mlp(torch.cat([x, message], dim=2))


class FeaturesOfAll(Features):
    def attend(self, q, k, v, mask):
        return kernel_attention(q, k, v, q_mask=mask)


def wrong_queries_masked_for_keys(B, H, L, Dk):
    return _self(FeaturesOfAll, B, H, L, Dk)


def right_queries_masked_for_keys(B, H, L, Dk):
    return _self(Features, B, H, L, Dk)


def reference_queries_masked_for_keys(module, x, mask):
    q, k, v = (heads(x, proj, module.heads) for proj in (module.q_proj, module.k_proj, module.v_proj))
    weights = torch.einsum("bhid,bhjd->bhij", _elu1(q), _elu1(k)) * mask[:, None, None]
    context = merge(torch.einsum("bhij,bhjd->bhid", weights / (weights.sum(-1, keepdim=True) + 1e-6), v))
    wide, _, narrow = module.mlp
    hidden = sum(
        torch.einsum("bli,oi->blo", part, weight)
        for part, weight in zip((x, context), wide.weight.chunk(2, 1), strict=True)
    )
    return x + project(hidden.clamp(min=0), narrow)

"""Families 1, 3 and 8 in attention without scores, or with a softmax over blocks."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.mutants.pairs.as4_reference import attend, fused, heads, merge, project

SIZES = ({"B": 2, "H": 4, "L": 7, "Dk": 5}, {"B": 5, "H": 3, "L": 9, "Dk": 4}, {"B": 4, "H": 2, "L": 11, "Dk": 8})
CROSS = (
    {"B": 2, "H": 4, "Lq": 5, "Lk": 7, "Dk": 6},
    {"B": 3, "H": 2, "Lq": 9, "Lk": 11, "Dk": 5},
    {"B": 5, "H": 3, "Lq": 7, "Lk": 8, "Dk": 4},
)
PAIRS = [
    ("AS111", "kernel_without_transpose", *SIZES),
    ("AS105", "kernel_of_an_image", *SIZES),
    ("AS113", "kernel_cut_by_rows", *SIZES),
    ("AS111", "gates_folded", *SIZES),
    ("AS113", "gates_three_first", *SIZES),
    ("AS801", "kernel_of_keys_alone", *CROSS),
    ("AS803", "kernel_sums_keys", *CROSS),
    ("AS804", "kernel_without_memory", *CROSS),
    ("AS801", "sigmoid_without_query", *CROSS),
    ("AS302", "mean_of_blocks", *CROSS),
    ("AS302", "larger_logarithm", *CROSS),
]


def features(t: Tensor) -> Tensor:
    return F.elu(t) + 1


def linear(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend in (B, H, L, Dk) by the sums of keys and values."""
    q, k = features(q), features(k)
    state = torch.einsum("bhjd,bhje->bhde", k, v)
    return torch.einsum("bhid,bhde->bhie", q, state) / torch.einsum("bhid,bhd->bhi", q, k.sum(dim=2)).unsqueeze(-1)


def _linear(q, k, v):
    q, k = (torch.where(t > 0, t + 1, t.exp()) for t in (q, k))
    products = torch.einsum("bhid,bhjd->bhij", q, k)
    return torch.einsum("bhij,bhjd->bhid", products / products.sum(-1, keepdim=True), v)


class Kernel(nn.Module):
    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def before(self, x):
        return x

    def split(self, t):
        return t.view(*t.shape[:2], self.n_heads, -1).transpose(1, 2)

    def forward(self, x):
        q, k, v = (self.split(one(self.before(x))) for one in (self.q, self.k, self.v))
        return self.o(linear(q, k, v).transpose(1, 2).flatten(2))


def _self(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def _reference(module, x, before):
    q, k, v = (heads(before(x), one, module.n_heads) for one in (module.q, module.k, module.v))
    return merge(_linear(q, k, v), module.o)


class WithoutTranspose(Kernel):
    def split(self, t):
        return t.view(t.shape[0], self.n_heads, t.shape[1], -1)  # wrong: AS111 kernel_without_transpose


def wrong_kernel_without_transpose(B, H, L, Dk):
    return _self(WithoutTranspose, B, H, L, Dk)


def right_kernel_without_transpose(B, H, L, Dk):
    return _self(Kernel, B, H, L, Dk)


def reference_kernel_without_transpose(module, x):
    return _reference(module, x, lambda x: x)


class Pixels(nn.Module):
    """Convolutions of one pixel project channels-first tokens."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.to_qkv = nn.Conv1d(width, 3 * width, 1)

    def channels(self, x):
        return x.transpose(1, 2)

    def forward(self, x):
        q, k, v = self.to_qkv(self.channels(x)).unflatten(1, (3, self.n_heads, -1)).unbind(1)
        return linear(q.mT, k.mT, v.mT).transpose(1, 2).flatten(2)


class PixelsByReshape(Pixels):
    def channels(self, x):
        return x.reshape(x.shape[0], x.shape[2], x.shape[1])  # wrong: AS105 kernel_of_an_image


def wrong_kernel_of_an_image(B, H, L, Dk):
    return _self(PixelsByReshape, B, H, L, Dk)


def right_kernel_of_an_image(B, H, L, Dk):
    return _self(Pixels, B, H, L, Dk)


def reference_kernel_of_an_image(module, x):
    qkv = torch.einsum("bli,oi->blo", x, module.to_qkv.weight.squeeze(-1)) + module.to_qkv.bias
    return merge(_linear(*(torch.stack(t.chunk(module.n_heads, -1), 1) for t in qkv.chunk(3, -1))))


class Fused(nn.Module):
    """A fused projection, whose parts are stacked before attention."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)

    def parts(self, qkv):
        return qkv.unflatten(-1, (3, -1)).unbind(2)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for t in self.parts(self.qkv(x)))
        return linear(q, k, v).transpose(1, 2).flatten(2)


class FusedByRows(Fused):
    def parts(self, qkv):
        return qkv.view(qkv.shape[0], 3, qkv.shape[1], -1).unbind(1)  # wrong: AS113 kernel_cut_by_rows


def wrong_kernel_cut_by_rows(B, H, L, Dk):
    return _self(FusedByRows, B, H, L, Dk)


def right_kernel_cut_by_rows(B, H, L, Dk):
    return _self(Fused, B, H, L, Dk)


def reference_kernel_cut_by_rows(module, x):
    return merge(_linear(*fused(x, module.qkv, module.n_heads)))


class Folded(Fused):
    """Sigmoids of scores, with heads folded into the batch."""

    def three(self, qkv):
        return qkv.unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)

    def fold(self, t):
        return t.flatten(0, 1)

    def forward(self, x):
        q, k, v = (self.fold(t) for t in self.three(self.qkv(x)))
        gates = torch.bmm(q, k.mT).mul(q.shape[-1] ** -0.5).sigmoid()
        return torch.bmm(gates, v).unflatten(0, (x.shape[0], -1)).transpose(1, 2).flatten(2)


class FoldedTokens(Folded):
    def three(self, qkv):
        return qkv.chunk(3, dim=-1)

    def fold(self, t):
        return t.reshape(t.shape[0] * self.n_heads, t.shape[1], -1)  # wrong: AS111 gates_folded


class ThreeFirst(Folded):
    def three(self, qkv):
        B, L, D = qkv.shape
        return qkv.reshape(3, B, self.n_heads, L, D // (3 * self.n_heads))  # wrong: AS113 gates_three_first


def wrong_gates_folded(B, H, L, Dk):
    return _self(FoldedTokens, B, H, L, Dk)


def wrong_gates_three_first(B, H, L, Dk):
    return _self(ThreeFirst, B, H, L, Dk)


def right_gates_folded(B, H, L, Dk):
    return _self(Folded, B, H, L, Dk)


def reference_gates_folded(module, x):
    q, k, v = fused(x, module.qkv, module.n_heads)
    gates = 1 / (1 + torch.exp(-torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5))
    return merge(torch.einsum("bhij,bhjd->bhid", gates, v))


right_gates_three_first, reference_gates_three_first = right_gates_folded, reference_gates_folded


def of_keys_alone(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attend in (B, H, L, Dk) by the sums of keys and values."""
    q, k = torch.ones_like(query), features(key)
    state = torch.einsum("bhjd,bhje->bhde", k, value)
    return torch.einsum("bhid,bhde->bhie", q, state) / torch.einsum("bhid,bhd->bhi", q, k.sum(dim=2)).unsqueeze(-1)


def of_named(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attend in (B, H, L, Dk) by the sums of keys and values."""
    q, k = features(query), features(key)
    state = torch.einsum("bhjd,bhje->bhde", k, value)
    return torch.einsum("bhid,bhde->bhie", q, state) / torch.einsum("bhid,bhd->bhi", q, k.sum(dim=2)).unsqueeze(-1)


def sums_of_keys(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attend in (B, H, L, Dk) by the sums of keys and values."""
    q, k = features(query), features(key)
    state = torch.einsum("bhjd,bhje->bhde", k, key)
    return torch.einsum("bhid,bhde->bhie", q, state) / torch.einsum("bhid,bhd->bhi", q, k.sum(dim=2)).unsqueeze(-1)


def _three(function, B, H, Lq, Lk, Dk):
    return function, (torch.randn(B, H, Lq, Dk), torch.randn(B, H, Lk, Dk), torch.randn(B, H, Lk, Dk)), {}


def wrong_kernel_of_keys_alone(B, H, Lq, Lk, Dk):
    return _three(of_keys_alone, B, H, Lq, Lk, Dk)


def wrong_kernel_sums_keys(B, H, Lq, Lk, Dk):
    return _three(sums_of_keys, B, H, Lq, Lk, Dk)


def right_kernel_sums_keys(B, H, Lq, Lk, Dk):
    return _three(of_named, B, H, Lq, Lk, Dk)


def reference_kernel_sums_keys(function, query, key, value):
    return _linear(query, key, value)


right_kernel_of_keys_alone = right_kernel_sums_keys
reference_kernel_of_keys_alone = reference_kernel_sums_keys


class Cross(nn.Module):
    """Cross-attention by sums of the memory's keys and values."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.to_q, self.to_kv, self.out = nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(width, width)

    def keys_and_values(self, x, memory):
        return self.to_kv(memory)

    def forward(self, x, memory):
        k, v = self.keys_and_values(x, memory).chunk(2, dim=-1)
        q, k, v = (t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for t in (self.to_q(x), k, v))
        return self.out(linear(q, k, v).transpose(1, 2).flatten(2))


class WithoutMemory(Cross):
    def keys_and_values(self, x, memory):
        return self.to_kv(x)


def _cross(cls, B, H, Lq, Lk, Dk):
    return cls(H * Dk, H), (torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk)), {}


def wrong_kernel_without_memory(B, H, Lq, Lk, Dk):
    return _cross(WithoutMemory, B, H, Lq, Lk, Dk)


def right_kernel_without_memory(B, H, Lq, Lk, Dk):
    return _cross(Cross, B, H, Lq, Lk, Dk)


def reference_kernel_without_memory(module, x, memory):
    k, v = project(memory, module.to_kv).chunk(2, -1)
    q, k, v = (torch.stack(t.chunk(module.n_heads, -1), 1) for t in (project(x, module.to_q), k, v))
    return merge(_linear(q, k, v), module.out)


class Gates(nn.Module):
    """Each key is let through or not, as a sigmoid of its score says."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads, self.project = n_heads, nn.ModuleList(nn.Linear(width, width) for _ in range(3))

    def sources(self, query, key):
        return query, key, key

    def forward(self, query, key):
        split = (
            one(x).unflatten(-1, (self.n_heads, -1))
            for one, x in zip(self.project, self.sources(query, key), strict=True)
        )
        q, k, v = split
        q = q.expand(-1, query.shape[1], -1, -1)
        gates = torch.sigmoid(torch.einsum("bihd,bjhd->bhij", q, k) / q.shape[-1] ** 0.5)
        return torch.einsum("bhij,bjhd->bihd", gates, v).flatten(2)


class GatesWithoutQuery(Gates):
    def sources(self, query, key):
        return key[:, :1], key, key


def wrong_sigmoid_without_query(B, H, Lq, Lk, Dk):
    return _cross(GatesWithoutQuery, B, H, Lq, Lk, Dk)


def right_sigmoid_without_query(B, H, Lq, Lk, Dk):
    return _cross(Gates, B, H, Lq, Lk, Dk)


def reference_sigmoid_without_query(module, query, key):
    q, k, v = (heads(x, one, module.n_heads) for one, x in zip(module.project, (query, key, key), strict=True))
    gates = 1 / (1 + torch.exp(-torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5))
    return merge(torch.einsum("bhij,bhjd->bhid", gates, v))


BLOCK = 3


def by_blocks(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend in (B, H, L, Dk) to a block of keys at a time."""
    most = q.new_full((*q.shape[:-1], 1), -1e9)
    total, context = torch.zeros_like(most), torch.zeros(*q.shape[:-1], v.shape[-1], dtype=q.dtype)
    for keys, values in zip(k.split(BLOCK, dim=2), v.split(BLOCK, dim=2), strict=True):
        scores = q @ keys.mT / q.shape[-1] ** 0.5
        new = torch.maximum(most, scores.amax(dim=-1, keepdim=True))
        weights, kept = (scores - new).exp(), (most - new).exp()
        total = total * kept + weights.sum(dim=-1, keepdim=True)
        context = context * kept + weights @ values
        most = new
    return context / total


def by_mean_of_blocks(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend in (B, H, L, Dk) to a block of keys at a time."""
    most = q.new_full((*q.shape[:-1], 1), -1e9)
    total, context = torch.zeros_like(most), torch.zeros(*q.shape[:-1], v.shape[-1], dtype=q.dtype)
    for keys, values in zip(k.split(BLOCK, dim=2), v.split(BLOCK, dim=2), strict=True):
        scores = q @ keys.mT / q.shape[-1] ** 0.5
        new = torch.maximum(most, scores.amax(dim=-1, keepdim=True))
        weights, kept = (scores - new).exp(), (most - new).exp()
        total = total * kept + weights.sum(dim=-1, keepdim=True)
        context = context * kept + weights @ values / total
        most = new
    return context


def wrong_mean_of_blocks(B, H, Lq, Lk, Dk):
    return _three(by_mean_of_blocks, B, H, Lq, Lk, Dk)


def right_mean_of_blocks(B, H, Lq, Lk, Dk):
    return _three(by_blocks, B, H, Lq, Lk, Dk)


def reference_mean_of_blocks(function, q, k, v):
    return attend(q, k, v)


reference_larger_logarithm = reference_mean_of_blocks


def in_logarithms(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend in (B, H, L, Dk), with the logarithm of the sum so far beside each context."""
    logarithm, context = None, None
    for start in range(0, k.shape[2], BLOCK):
        scores = torch.einsum("bhid,bhjd->bhij", q, k[:, :, start : start + BLOCK]) * q.shape[-1] ** -0.5
        most = scores.amax(dim=-1, keepdim=True)
        own = most + (scores - most).exp().sum(dim=-1, keepdim=True).log()
        part = (scores - own).exp() @ v[:, :, start : start + BLOCK]
        if context is None:
            logarithm, context = own, part
        else:
            both = torch.logaddexp(logarithm, own)
            context = context * (logarithm - both).exp() + part * (own - both).exp()
            logarithm = both
    return context


def in_larger_logarithms(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend in (B, H, L, Dk), with the logarithm of the sum so far beside each context."""
    logarithm, context = None, None
    for start in range(0, k.shape[2], BLOCK):
        scores = torch.einsum("bhid,bhjd->bhij", q, k[:, :, start : start + BLOCK]) * q.shape[-1] ** -0.5
        most = scores.amax(dim=-1, keepdim=True)
        own = most + (scores - most).exp().sum(dim=-1, keepdim=True).log()
        part = (scores - own).exp() @ v[:, :, start : start + BLOCK]
        if context is None:
            logarithm, context = own, part
        else:
            both = torch.maximum(logarithm, own)
            context = context * (logarithm - both).exp() + part * (own - both).exp()
            logarithm = both
    return context


def wrong_larger_logarithm(B, H, Lq, Lk, Dk):
    return _three(in_larger_logarithms, B, H, Lq, Lk, Dk)


def right_larger_logarithm(B, H, Lq, Lk, Dk):
    return _three(in_logarithms, B, H, Lq, Lk, Dk)

"""AS207: the scale is another one than the one claimed."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.mutants.plain import attention, multihead

SIZES = ({"B": 2, "H": 4, "L": 6, "Dk": 5}, {"B": 5, "H": 2, "L": 9, "Dk": 7}, {"B": 4, "H": 3, "L": 7, "Dk": 8})
CROSS = (
    {"B": 2, "H": 4, "Lq": 5, "Lk": 7, "Dk": 3},
    {"B": 3, "H": 2, "Lq": 8, "Lk": 4, "Dk": 6},
    {"B": 5, "H": 3, "Lq": 4, "Lk": 9, "Dk": 6},
)
PAIRS = [
    ("AS207", "number_of_heads", *CROSS),
    ("AS207", "power_of_two", *CROSS),
    ("AS207", "one_side_only", *SIZES),
    ("AS207", "maximal_update", *SIZES),
    ("AS207", "whole_root", *SIZES),
    ("AS207", "power_before_division", *SIZES),
]
CLAIMS = ["scale=1/sqrt(Dk)"]


class Reader(nn.Module):
    """Cross-attention in (B, H, L, Dk)."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))

    def temperature(self, q):
        return math.sqrt(q.size(3))

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x, memory):
        q, k, v = self.split(self.q(x)), self.split(self.k(memory)), self.split(self.v(memory))
        attn = F.softmax(torch.matmul(q / self.temperature(q), k.transpose(2, 3)), dim=-1)
        return self.o(torch.matmul(attn, v).transpose(1, 2).flatten(2))


class ReaderOfHeads(Reader):
    def temperature(self, q):
        return math.sqrt(q.size(1))


def wrong_number_of_heads(B, H, Lq, Lk, Dk):
    return ReaderOfHeads(H * Dk, H), (torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk)), {}, CLAIMS


def right_number_of_heads(B, H, Lq, Lk, Dk):
    return Reader(H * Dk, H), (torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk)), {}, CLAIMS


def reference_number_of_heads(module, x, memory):
    return module.o(multihead(module.q(x), module.k(memory), module.v(memory), module.heads))


def kernel(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A kernel's arithmetic: powers of two in place of e, in (B, H, L, Dk)."""
    scores = q @ k.mT * (q.shape[-1] ** -0.5 * math.log2(math.e))
    p = torch.exp2(scores - scores.amax(-1, keepdim=True))
    return (p @ v) / p.sum(-1, keepdim=True)


def kernel_of_two(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A kernel's arithmetic: powers of two in place of e, in (B, H, L, Dk)."""
    scores = q @ k.mT * q.shape[-1] ** -0.5  # wrong: AS207 power_of_two
    p = torch.exp2(scores - scores.amax(-1, keepdim=True))
    return (p @ v) / p.sum(-1, keepdim=True)


def _heads(B, H, Lq, Lk, Dk):
    return torch.randn(B, H, Lq, Dk), torch.randn(B, H, Lk, Dk), torch.randn(B, H, Lk, Dk)


def wrong_power_of_two(B, H, Lq, Lk, Dk):
    return kernel_of_two, _heads(B, H, Lq, Lk, Dk), {}, CLAIMS


def right_power_of_two(B, H, Lq, Lk, Dk):
    return kernel, _heads(B, H, Lq, Lk, Dk), {}, CLAIMS


def reference_power_of_two(function, q, k, v):
    return attention(q, k, v)


class QuarterScaled(nn.Module):
    """The fourth root on either side of the product."""

    def __init__(self, n_state, n_head):
        super().__init__()
        self.n_head = n_head
        self.query, self.key = nn.Linear(n_state, n_state), nn.Linear(n_state, n_state, bias=False)
        self.value, self.out = nn.Linear(n_state, n_state), nn.Linear(n_state, n_state)

    def scores(self, q, k):
        scale = q.shape[-1] ** -0.25
        return (q * scale).permute(0, 2, 1, 3) @ (k * scale).permute(0, 2, 3, 1)

    def forward(self, x):
        q, k, v = (f(x).view(*x.shape[:2], self.n_head, -1) for f in (self.query, self.key, self.value))
        w = F.softmax(self.scores(q, k), dim=-1)
        return self.out((w @ v.permute(0, 2, 1, 3)).permute(0, 2, 1, 3).flatten(start_dim=2))


class QuarterScaledOnce(QuarterScaled):
    def scores(self, q, k):
        scale = q.shape[-1] ** -0.25
        return (q * scale).permute(0, 2, 1, 3) @ k.permute(0, 2, 3, 1)  # wrong: AS207 one_side_only


def wrong_one_side_only(B, H, L, Dk):
    return QuarterScaledOnce(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, CLAIMS


def right_one_side_only(B, H, L, Dk):
    return QuarterScaled(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, CLAIMS


def reference_one_side_only(module, x):
    return module.out(multihead(module.query(x), module.key(x), module.value(x), module.n_head))


class MaximalUpdate(nn.Module):
    """Scales by 1/Dk, as that parametrization asks for."""

    def __init__(self, width, n_head):
        super().__init__()
        self.n_head = n_head
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, scale=1.0 / q.shape[-1])

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.n_head, -1)).permute(2, 0, 3, 1, 4)
        return self.proj(self.attend(q, k, v).transpose(1, 2).flatten(2))


class MaximalUpdateDefault(MaximalUpdate):
    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v)  # wrong: AS207 maximal_update


def wrong_maximal_update(B, H, L, Dk):
    return MaximalUpdateDefault(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["scale=1/Dk"]


def right_maximal_update(B, H, L, Dk):
    return MaximalUpdate(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["scale=1/Dk"]


def reference_maximal_update(module, x):
    q, k, v = module.qkv(x).chunk(3, dim=-1)
    return module.proj(multihead(q, k, v, module.n_head, scale=module.n_head / x.shape[-1]))


class Rooted(MaximalUpdate):
    """The same layers, scaled by 1/sqrt(Dk), with explicit products."""

    def root(self, d_k):
        return math.sqrt(d_k)

    def attend(self, q, k, v):
        return torch.matmul(torch.softmax(torch.matmul(q, k.mT).div(self.root(q.shape[-1])), -1), v)


class WholeRooted(Rooted):
    def root(self, d_k):
        return math.isqrt(d_k)


def wrong_whole_root(B, H, L, Dk):
    return WholeRooted(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, CLAIMS


def right_whole_root(B, H, L, Dk):
    return Rooted(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, CLAIMS


def reference_whole_root(module, x):
    return module.proj(multihead(*module.qkv(x).chunk(3, dim=-1), module.n_head))


class Precise(nn.Module):
    """Self-attention whose scale is computed in the constructor, in (B, H, L, Dk)."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.scale = (dim // heads) ** -0.5
        self.qkv, self.o = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        scores = q @ k.mT * self.scale  # wrong: AS207 power_before_division
        return self.o((scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2))


class Imprecise(Precise):
    def __init__(self, dim, heads):
        super().__init__(dim, heads)
        self.scale = (dim // heads) ** -1 / 2


def wrong_power_before_division(B, H, L, Dk):
    return Imprecise(H * Dk, H), (torch.randn(B, L, H * Dk),)


def right_power_before_division(B, H, L, Dk):
    return Precise(H * Dk, H), (torch.randn(B, L, H * Dk),)


def reference_power_before_division(module, x):
    q, k, v = (t.unflatten(-1, (module.heads, -1)).transpose(1, 2) for t in module.qkv(x).chunk(3, dim=-1))
    return module.o(attention(q, k, v).transpose(1, 2).flatten(2))

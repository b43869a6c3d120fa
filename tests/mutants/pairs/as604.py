"""AS604: heads are merged in another order than they were split."""

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import nn

from tests.mutants.pairs.as4_reference import attend, heads, merge

GROUPED = (
    {"B": 4, "Hkv": 3, "G": 2, "L": 7, "Dk": 8},
    {"B": 7, "Hkv": 2, "G": 4, "L": 9, "Dk": 6},
    {"B": 3, "Hkv": 5, "G": 2, "L": 8, "Dk": 4},
)
SELF = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 5, "Dk": 4})
PAIRS = [
    ("AS604", "groups_outside", *GROUPED),
    ("AS604", "groups_in_sdpa", *GROUPED),
    ("AS604", "reversed_list", *SELF),
    ("AS604", "selected_in_einsum", *SELF),
]


class RightGroups(nn.Module):
    """Grouped-query attention with einops."""

    def __init__(self, kv_heads, groups, depth):
        super().__init__()
        self.n, self.g = kv_heads, groups
        width = kv_heads * groups * depth
        self.q, self.k, self.v = (nn.Linear(width, size * depth) for size in (kv_heads * groups, kv_heads, kv_heads))
        self.o = nn.Linear(width, width, bias=False)

    def merged(self, context):
        return rearrange(context, "b n g t d -> b t (n g d)")

    def attended(self, q, k, v):
        weights = torch.einsum("bngtd,bnsd->bngts", q, k).mul(q.shape[-1] ** -0.5).softmax(-1)
        return torch.einsum("bngts,bnsd->bngtd", weights, v)

    def forward(self, x):
        q = rearrange(self.q(x), "b t (n g d) -> b n g t d", n=self.n, g=self.g)
        k, v = (rearrange(linear(x), "b t (n d) -> b n t d", n=self.n) for linear in (self.k, self.v))
        return self.o(self.merged(self.attended(q, k, v)))


class WrongGroups(RightGroups):
    def merged(self, context):
        return rearrange(context, "b n g t d -> b t (g n d)")  # wrong: AS604 groups_outside


class RightFused(RightGroups):
    """The same with torch's fused attention and views."""

    def attended(self, q, k, v):
        return F.scaled_dot_product_attention(q, k[:, :, None].expand_as(q), v[:, :, None].expand_as(q))

    def merged(self, context):
        B, n, g, L, d = context.shape
        return context.permute(0, 3, 1, 2, 4).reshape(B, L, n * g * d)


class WrongFused(RightFused):
    def merged(self, context):
        B, n, g, L, d = context.shape
        return context.permute(0, 3, 2, 1, 4).reshape(B, L, n * g * d)  # wrong: AS604 groups_in_sdpa


def _grouped(cls, B, Hkv, G, L, Dk):
    return cls(Hkv, G, Dk), (torch.randn(B, L, Hkv * G * Dk),)


def _reference(module, x):
    q = heads(x, module.q, module.n * module.g)
    k, v = (heads(x, linear, module.n).repeat_interleave(module.g, 1) for linear in (module.k, module.v))
    return merge(attend(q, k, v), module.o)


def wrong_groups_outside(B, Hkv, G, L, Dk):
    return _grouped(WrongGroups, B, Hkv, G, L, Dk)


def right_groups_outside(B, Hkv, G, L, Dk):
    return _grouped(RightGroups, B, Hkv, G, L, Dk)


def reference_groups_outside(module, x):
    return _reference(module, x)


def wrong_groups_in_sdpa(B, Hkv, G, L, Dk):
    return _grouped(WrongFused, B, Hkv, G, L, Dk)


def right_groups_in_sdpa(B, Hkv, G, L, Dk):
    return _grouped(RightFused, B, Hkv, G, L, Dk)


def reference_groups_in_sdpa(module, x):
    return _reference(module, x)


class RightList(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(dim, dim) for _ in range(4))

    def joined(self, outputs):
        return torch.cat(outputs, dim=-1)

    def forward(self, x):
        q, k, v = (torch.stack(linear(x).chunk(self.heads, -1), 1) for linear in (self.q, self.k, self.v))
        weights = torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1)
        return self.out(self.joined((weights @ v).unbind(1)))


class WrongList(RightList):
    def joined(self, outputs):
        return torch.cat(outputs[::-1], dim=-1)  # wrong: AS604 reversed_list


class RightEinsum(RightList):
    def order(self, context):
        return context

    def forward(self, x):
        q, k, v = (linear(x).unflatten(-1, (self.heads, -1)) for linear in (self.q, self.k, self.v))
        weights = torch.einsum("bihd,bjhd->bhij", q, k).div(q.shape[-1] ** 0.5).softmax(-1)
        return self.out(self.order(torch.einsum("bhij,bjhd->bihd", weights, v)).flatten(2))


class WrongEinsum(RightEinsum):
    def order(self, context):
        return context[:, :, torch.arange(self.heads).flip(0)]


def _plain(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),)


def _expected(module, x):
    return merge(attend(*(heads(x, linear, module.heads) for linear in (module.q, module.k, module.v))), module.out)


def wrong_reversed_list(B, H, L, Dk):
    return _plain(WrongList, B, H, L, Dk)


def right_reversed_list(B, H, L, Dk):
    return _plain(RightList, B, H, L, Dk)


def reference_reversed_list(module, x):
    return _expected(module, x)


def wrong_selected_in_einsum(B, H, L, Dk):
    return _plain(WrongEinsum, B, H, L, Dk)


def right_selected_in_einsum(B, H, L, Dk):
    return _plain(RightEinsum, B, H, L, Dk)


def reference_selected_in_einsum(module, x):
    return _expected(module, x)

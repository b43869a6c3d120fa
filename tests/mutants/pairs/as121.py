"""AS121: heads begin at adjacent features of a projection, so that they overlap and most features are in no head."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.plain import multihead

SIZES = ({"B": 2, "H": 4, "L": 6, "Dk": 5}, {"B": 5, "H": 3, "L": 7, "Dk": 4}, {"B": 4, "H": 3, "L": 9, "Dk": 8})
CROSS = (
    {"B": 2, "H": 4, "Lq": 5, "Lk": 7, "Dk": 3},
    {"B": 5, "H": 3, "Lq": 8, "Lk": 4, "Dk": 6},
    {"B": 5, "H": 3, "Lq": 4, "Lk": 9, "Dk": 6},
)
PAIRS = [
    ("AS121", "slices_from_index", *CROSS),
    ("AS121", "unfold_step", *SIZES),
    ("AS121", "strided_view", *SIZES),
    ("AS121", "indices_of_heads", *SIZES),
    ("AS121", "values_by_half_steps", *SIZES),
]


class OneByOne(nn.Module):
    """Attends head by head."""

    def __init__(self, d_model, heads):
        super().__init__()
        self.heads, self.width = heads, d_model // heads
        self.to_q, self.to_k, self.to_v = (nn.Linear(d_model, d_model) for _ in range(3))
        self.to_out = nn.Linear(d_model, d_model)

    def one_head(self, q, k, v):
        return torch.softmax(q @ k.mT / self.width**0.5, dim=-1) @ v

    def forward(self, y, memory):
        q, k, v = self.to_q(y), self.to_k(memory), self.to_v(memory)
        outputs = []
        for h in range(self.heads):
            columns = slice(h * self.width, (h + 1) * self.width)
            outputs.append(self.one_head(q[..., columns], k[..., columns], v[..., columns]))
        return self.to_out(torch.cat(outputs, dim=-1))


class OneByOneFromIndex(OneByOne):
    def forward(self, y, memory):
        q, k, v = self.to_q(y), self.to_k(memory), self.to_v(memory)
        outputs = []
        for h in range(self.heads):
            columns = slice(h, h + self.width)  # wrong: AS121 slices_from_index
            outputs.append(self.one_head(q[..., columns], k[..., columns], v[..., columns]))
        return self.to_out(torch.cat(outputs, dim=-1))


def _cross(cls, B, H, Lq, Lk, Dk):
    return cls(H * Dk, H), (torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk)), {}


def wrong_slices_from_index(B, H, Lq, Lk, Dk):
    return _cross(OneByOneFromIndex, B, H, Lq, Lk, Dk)


def right_slices_from_index(B, H, Lq, Lk, Dk):
    return _cross(OneByOne, B, H, Lq, Lk, Dk)


def reference_slices_from_index(module, y, memory):
    return module.to_out(multihead(module.to_q(y), module.to_k(memory), module.to_v(memory), module.heads))


class Fused(nn.Module):
    def __init__(self, d_model, heads):
        super().__init__()
        self.heads, self.width = heads, d_model // heads
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.proj = nn.Linear(d_model, d_model)

    def split(self, x):
        return x.unfold(-1, self.width, self.width).transpose(1, 2)

    def forward(self, x):
        q, k, v = (self.split(t) for t in self.qkv(x).chunk(3, dim=-1))
        weights = torch.softmax(q @ k.mT * self.width**-0.5, dim=-1)
        return self.proj((weights @ v).transpose(1, 2).flatten(2))


class Unfolded(Fused):
    def split(self, x):
        return x.unfold(-1, self.width, 1)[:, :, : self.heads].transpose(1, 2)  # wrong: AS121 unfold_step


class Strided(Fused):
    def split(self, x):
        B, L, D = x.shape
        x = x.contiguous()
        heads = x.as_strided((B, self.heads, L, self.width), (L * D, 1, D, 1))  # wrong: AS121 strided_view
        return heads.contiguous()


class Indexed(Fused):
    def split(self, x):
        features = torch.arange(self.heads)[:, None] + torch.arange(self.width)
        heads = x[..., features]  # wrong: AS121 indices_of_heads
        return heads.transpose(1, 2)


class HalfSteps(Fused):
    """Rotates queries and keys, and takes the heads of the values one by one."""

    def values(self, v):
        return torch.stack([v.narrow(-1, h * self.width, self.width) for h in range(self.heads)], dim=1)

    def rotated(self, x):
        angles = torch.arange(x.shape[-2])[:, None] * torch.arange(1, x.shape[-1] // 2 + 1)
        first, second = x[..., 0 : 2 * (x.shape[-1] // 2) : 2], x[..., 1::2]
        rest = x[..., 2 * (x.shape[-1] // 2) :]
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q, k = (self.rotated(self.split(t)) for t in (q, k))
        context = F.scaled_dot_product_attention(q, k, self.values(v))
        return self.proj(context.transpose(1, 2).flatten(2))


class HalfStepsOfValues(HalfSteps):
    def values(self, v):
        begins = [h * self.width // 2 for h in range(self.heads)]
        return torch.stack([v.narrow(-1, h, self.width) for h in begins], dim=1)  # wrong: AS121 values_by_half_steps


def _self(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def wrong_unfold_step(B, H, L, Dk):
    return _self(Unfolded, B, H, L, Dk)


def right_unfold_step(B, H, L, Dk):
    return _self(Fused, B, H, L, Dk)


def wrong_strided_view(B, H, L, Dk):
    return _self(Strided, B, H, L, Dk)


def right_strided_view(B, H, L, Dk):
    return _self(Fused, B, H, L, Dk)


def wrong_indices_of_heads(B, H, L, Dk):
    return _self(Indexed, B, H, L, Dk)


def right_indices_of_heads(B, H, L, Dk):
    return _self(Fused, B, H, L, Dk)


def wrong_values_by_half_steps(B, H, L, Dk):
    return _self(HalfStepsOfValues, B, H, L, Dk)


def right_values_by_half_steps(B, H, L, Dk):
    return _self(HalfSteps, B, H, L, Dk)


def reference_unfold_step(module, x):
    return module.proj(multihead(*module.qkv(x).chunk(3, dim=-1), module.heads))


reference_strided_view = reference_indices_of_heads = reference_unfold_step


def reference_values_by_half_steps(module, x):
    q, k, v = module.qkv(x).chunk(3, dim=-1)
    q, k = (torch.cat([module.rotated(head) for head in t.chunk(module.heads, dim=-1)], dim=-1) for t in (q, k))
    return module.proj(multihead(q, k, v, module.heads))

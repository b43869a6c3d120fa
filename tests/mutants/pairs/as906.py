"""AS906: a layer is made in the call itself."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.plain import attention, join, split

SIZES = ({"B": 2, "H": 4, "L": 6, "Dk": 5}, {"B": 5, "H": 2, "L": 7, "Dk": 4}, {"B": 4, "H": 3, "L": 9, "Dk": 8})
PAIRS = [
    ("AS906", "output_projection", *SIZES),
    ("AS906", "norm_and_projection", *SIZES),
    ("AS906", "value_weight", *SIZES),
]


class Attention(nn.Module):
    def __init__(self, d_model, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)

    def project(self, context):
        return self.out(context)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        return self.project(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class NewProjection(Attention):
    def project(self, context):
        out = nn.Linear(context.shape[-1], context.shape[-1])  # wrong: AS906 output_projection
        return self.out(context) + out.to(context.dtype)(context) * 0.5


def _module(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def wrong_output_projection(B, H, L, Dk):
    return _module(NewProjection, B, H, L, Dk)


def right_output_projection(B, H, L, Dk):
    return _module(Attention, B, H, L, Dk)


def reference_output_projection(module, x):
    q, k, v = (split(t, module.heads) for t in module.qkv(x).chunk(3, dim=-1))
    return module.out(join(attention(q, k, v)))


class NormedAttention(Attention):
    def project(self, context):
        return F.layer_norm(self.out(context), context.shape[-1:])


class NewNorm(NormedAttention):
    def project(self, context):
        width = context.shape[-1]
        last = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width))  # wrong: AS906 norm_and_projection
        return last.to(context.dtype)(self.out(context))


def wrong_norm_and_projection(B, H, L, Dk):
    return _module(NewNorm, B, H, L, Dk)


def right_norm_and_projection(B, H, L, Dk):
    return _module(NormedAttention, B, H, L, Dk)


def reference_norm_and_projection(module, x):
    projected = reference_output_projection(module, x)
    centred = projected - projected.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()


class Weighted(Attention):
    def project(self, context):
        return context


class NewWeight(Weighted):
    def project(self, context):
        weight = nn.Parameter(torch.empty(context.shape[-1], context.shape[-1], dtype=context.dtype))
        nn.init.xavier_uniform_(weight)  # wrong: AS906 value_weight
        return context @ weight


def wrong_value_weight(B, H, L, Dk):
    return _module(NewWeight, B, H, L, Dk)


def right_value_weight(B, H, L, Dk):
    return _module(Weighted, B, H, L, Dk)


def reference_value_weight(module, x):
    q, k, v = (split(t, module.heads) for t in module.qkv(x).chunk(3, dim=-1))
    return join(attention(q, k, v))

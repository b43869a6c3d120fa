"""AS818: a factor or a gate of a branch multiplies the residual stream too."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import heads, merge, project

SIZES = (
    {"B": 2, "H": 3, "L": 7, "Dk": 5},
    {"B": 3, "H": 4, "L": 9, "Dk": 8},
    {"B": 4, "H": 5, "L": 11, "Dk": 6},
)
PAIRS = [
    ("AS818", "scale_of_each_layer", *SIZES),
    ("AS818", "gate_of_a_condition", *SIZES),
    ("AS818", "number_that_starts_small", *SIZES),
]


class Attention(nn.Module):
    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x):
        q, k, v = (layer(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        return self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def attend(module, x):
    q, k, v = (heads(x, layer, module.n_heads) for layer in (module.q, module.k, module.v))
    weights = (q @ k.mT / q.shape[-1] ** 0.5).exp()
    return merge(weights / weights.sum(-1, keepdim=True) @ v, module.o)


def normed(x, norm=None):
    centred = x - x.mean(-1, keepdim=True)
    unit = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    return unit if norm is None else unit * norm.weight + norm.bias


class Scaled(nn.Module):
    """Two layers, each with a factor for every feature of its branch."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.layers = nn.ModuleList(Attention(width, n_heads) for _ in range(2))
        self.scales = nn.ParameterList(torch.full((width,), 0.1) + 0.01 * torch.randn(width) for _ in range(2))

    def forward(self, x):
        for norm, layer, scale in zip(self.norms, self.layers, self.scales, strict=True):
            x = x + scale * layer(norm(x))
        return x


class ScaledWhole(Scaled):
    def forward(self, x):
        for norm, layer, scale in zip(self.norms, self.layers, self.scales, strict=True):
            x = scale * (x + layer(norm(x)))  # wrong: AS818 scale_of_each_layer
        return x


def _alone(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def wrong_scale_of_each_layer(B, H, L, Dk):
    return _alone(ScaledWhole, B, H, L, Dk)


def right_scale_of_each_layer(B, H, L, Dk):
    return _alone(Scaled, B, H, L, Dk)


def reference_scale_of_each_layer(module, x):
    for norm, layer, scale in zip(module.norms, module.layers, module.scales, strict=True):
        x = x + scale * attend(layer, normed(x, norm))
    return x


class Conditioned(nn.Module):
    """A condition shifts and scales what attention reads, and gates what it returns."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.attention, self.modulation = Attention(width, n_heads), nn.Linear(width, 3 * width)

    def joined(self, x, gate, attended):
        return x + gate * attended

    def forward(self, x, condition):
        shift, scale, gate = self.modulation(F.silu(condition)).unsqueeze(1).chunk(3, dim=-1)
        return self.joined(x, gate, self.attention(self.norm(x) * (1 + scale) + shift))


class ConditionedWhole(Conditioned):
    def joined(self, x, gate, attended):
        return (x + attended) * gate  # wrong: AS818 gate_of_a_condition


def _conditioned(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), torch.randn(B, H * Dk)), {}


def wrong_gate_of_a_condition(B, H, L, Dk):
    return _conditioned(ConditionedWhole, B, H, L, Dk)


def right_gate_of_a_condition(B, H, L, Dk):
    return _conditioned(Conditioned, B, H, L, Dk)


def reference_gate_of_a_condition(module, x, condition):
    parts = project(condition * condition.sigmoid(), module.modulation)[:, None].chunk(3, -1)
    shift, scale, gate = parts
    return x + gate * attend(module.attention, normed(x) * (1 + scale) + shift)


class Small(nn.Module):
    """A layer that starts near the identity, by one number."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.attn, self.alpha = Attention(width, n_heads), nn.Parameter(torch.tensor(0.05))
        self.mlp = nn.Linear(width, width)

    def forward(self, x):
        y = self.attn(x)
        x = x + y * self.alpha
        return x + self.alpha * torch.tanh(self.mlp(x))


class SmallWhole(Small):
    def forward(self, x):
        y = self.attn(x)
        x = torch.mul(x + y, self.alpha)  # wrong: AS818 number_that_starts_small
        return x + self.alpha * torch.tanh(self.mlp(x))


def wrong_number_that_starts_small(B, H, L, Dk):
    return _alone(SmallWhole, B, H, L, Dk)


def right_number_that_starts_small(B, H, L, Dk):
    return _alone(Small, B, H, L, Dk)


def reference_number_that_starts_small(module, x):
    x = x + module.alpha * attend(module.attn, x)
    return x + module.alpha * project(x, module.mlp).tanh()

"""AS812: a number is given that nothing reads."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.plain import attention, multihead, split

SIZES = ({"B": 2, "H": 3, "L": 7, "Dk": 5}, {"B": 5, "H": 2, "L": 9, "Dk": 7}, {"B": 3, "H": 4, "L": 6, "Dk": 8})
PAIRS = [
    ("AS812", "scale_of_function", *SIZES),
    ("AS812", "temperature_of_module", *SIZES),
    ("AS812", "scale_of_recurrence", *SIZES),
]


def _heads(B, H, L, Dk):
    return tuple(torch.randn(B, H, L, Dk) for _ in range(3))


def by_kernel(q, k, v, attn_mask=None, *, scale, layer: int = 0):
    """Attend in (B, H, L, Dk); layer is unused here, other kernels count by it."""
    return F.scaled_dot_product_attention(q, k, v, attn_mask, scale=scale)


def by_kernel_without_scale(
    q,
    k,
    v,
    attn_mask=None,
    *,
    scale,  # wrong: AS812 scale_of_function
    layer: int = 0,
):
    """Attend in (B, H, L, Dk); layer is unused here, other kernels count by it."""
    return F.scaled_dot_product_attention(q, k, v, attn_mask)


def wrong_scale_of_function(B, H, L, Dk):
    return by_kernel_without_scale, _heads(B, H, L, Dk), {"scale": (2 * Dk) ** -0.5, "layer": 3}


def right_scale_of_function(B, H, L, Dk):
    return by_kernel, _heads(B, H, L, Dk), {"scale": (2 * Dk) ** -0.5, "layer": 3}


def reference_scale_of_function(function, q, k, v, scale, layer):
    return attention(q, k, v, scale=scale)


class Tempered(nn.Module):
    """Its callers give a temperature, and a rate of dropout that evaluation doesn't use."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))

    def attend(self, x, temperature, rate):
        q, k, v = (split(w(x), self.heads) for w in (self.q, self.k, self.v))
        weights = (torch.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5 / temperature).softmax(-1)
        return (F.dropout(weights, rate, self.training) @ v).transpose(1, 2).flatten(2)

    def forward(self, x, temperature=1.0, rate=0.1):
        return self.attend(x, temperature, rate)


class Untempered(Tempered):
    def forward(self, x, temperature=1.0, rate=0.1):  # wrong: AS812 temperature_of_module
        return self.attend(x, 1.0, rate)


def wrong_temperature_of_module(B, H, L, Dk):
    return Untempered(H * Dk, H), (torch.randn(B, L, H * Dk), 2**0.5), {"rate": 0.2}


def right_temperature_of_module(B, H, L, Dk):
    return Tempered(H * Dk, H), (torch.randn(B, L, H * Dk), 2**0.5), {"rate": 0.2}


def reference_temperature_of_module(module, x, temperature, rate):
    scale = (2 * x.shape[-1] / module.heads) ** -0.5
    return multihead(module.q(x), module.k(x), module.v(x), module.heads, scale=scale)


def _recurrence(q, k, v):
    state = torch.zeros(*q.shape[:2], q.shape[-1], v.shape[-1], dtype=q.dtype)
    read = []
    for t in range(q.shape[2]):
        state = state + k[:, :, t, :, None] * v[:, :, t, None]
        read.append(torch.einsum("bhk,bhkv->bhv", q[:, :, t], state))
    return torch.stack(read, 2)


def recurrence(q, k, v, scale):
    return _recurrence(q * scale, k, v)


def recurrence_without_scale(q, k, v, scale):  # wrong: AS812 scale_of_recurrence
    return _recurrence(q, k, v)


def wrong_scale_of_recurrence(B, H, L, Dk):
    return recurrence_without_scale, (*_heads(B, H, L, Dk), Dk**-0.5), {}, ["causal"]


def right_scale_of_recurrence(B, H, L, Dk):
    return recurrence, (*_heads(B, H, L, Dk), Dk**-0.5), {}, ["causal"]


def reference_scale_of_recurrence(function, q, k, v, scale):
    weights = torch.einsum("bhid,bhjd->bhij", q, k).tril() * scale
    return weights @ v

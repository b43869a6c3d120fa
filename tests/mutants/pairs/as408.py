"""AS408: keys are hidden that no claim hides. The right versions hide none."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.plain import attention, multihead

SIZES = ({"B": 2, "H": 4, "L": 6, "Dk": 5}, {"B": 5, "H": 2, "L": 9, "Dk": 7}, {"B": 4, "H": 3, "L": 7, "Dk": 8})
PAIRS = [
    ("AS408", "encoder_flag", *SIZES),
    ("AS408", "band", *SIZES),
    ("AS408", "later_only", *SIZES),
    ("AS408", "every_other", *SIZES),
]


class Encoder(nn.Module):
    """Fused attention of an encoder."""

    causal = False

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)  # wrong: AS408 encoder_flag
        return self.out(y.transpose(1, 2).flatten(2))


class CausalEncoder(Encoder):
    causal = True


def wrong_encoder_flag(B, H, L, Dk):
    return CausalEncoder(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def right_encoder_flag(B, H, L, Dk):
    return Encoder(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def reference_encoder_flag(module, x):
    return module.out(multihead(*module.qkv(x).chunk(3, -1), module.heads))


def plain(q, k, v):
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / q.size(-1) ** 0.5
    return torch.einsum("bhij,bhjd->bhid", scores.softmax(-1), v)


def banded(q, k, v):
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / q.size(-1) ** 0.5
    places = torch.arange(q.size(2))
    far = (places[:, None] - places).abs() > 2  # wrong: AS408 band
    return torch.einsum("bhij,bhjd->bhid", scores.masked_fill(far, -torch.inf).softmax(-1), v)


def looking_ahead(q, k, v):
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / q.size(-1) ** 0.5
    ahead = torch.ones(q.size(2), k.size(2), dtype=torch.bool).tril()  # wrong: AS408 later_only
    return torch.einsum("bhij,bhjd->bhid", scores.where(ahead, -1e30).softmax(-1), v)


def alternating(q, k, v):
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / q.size(-1) ** 0.5
    places = torch.arange(q.size(2))
    same = (places[:, None] - places) % 2 == 0  # wrong: AS408 every_other
    return torch.einsum("bhij,bhjd->bhid", scores.masked_fill(~same, -torch.inf).softmax(-1), v)


def _heads(B, H, L, Dk):
    return tuple(torch.randn(B, H, L, Dk) for _ in range(3))


def wrong_band(B, H, L, Dk):
    return banded, _heads(B, H, L, Dk), {}


def wrong_later_only(B, H, L, Dk):
    return looking_ahead, _heads(B, H, L, Dk), {}


def wrong_every_other(B, H, L, Dk):
    return alternating, _heads(B, H, L, Dk), {}


def right_band(B, H, L, Dk):
    return plain, _heads(B, H, L, Dk), {}


right_later_only = right_every_other = right_band


def reference_band(called, q, k, v):
    return attention(q, k, v)


reference_later_only = reference_every_other = reference_band

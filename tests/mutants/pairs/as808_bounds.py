"""AS808: a parameter starts beyond the bound that it is clamped to."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, heads, merge

SIZES = (
    {"B": 2, "H": 3, "L": 7, "Dk": 5},
    {"B": 3, "H": 4, "L": 9, "Dk": 8},
    {"B": 4, "H": 5, "L": 11, "Dk": 6},
)
PAIRS = [
    ("AS808", "bound_of_the_logarithm", *SIZES),
]
MOST = 100.0


class Cosine(nn.Module):
    """Attends by cosines, with a scale for each head that is learned as its logarithm."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.logarithm = nn.Parameter(torch.full((n_heads, 1, 1), math.log(10.0)))

    def scale(self):
        return self.logarithm.clamp(max=math.log(MOST)).exp()

    def forward(self, x):
        q, k, v = (layer(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT * self.scale()
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


class CosineBounded(Cosine):
    def scale(self):
        return self.logarithm.exp().clamp(max=math.log(MOST))  # wrong: AS808 bound_of_the_logarithm


def _case(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def wrong_bound_of_the_logarithm(B, H, L, Dk):
    return _case(CosineBounded, B, H, L, Dk)


def right_bound_of_the_logarithm(B, H, L, Dk):
    return _case(Cosine, B, H, L, Dk)


def reference_bound_of_the_logarithm(module, x):
    q, k, v = (heads(x, layer, module.n_heads) for layer in (module.q, module.k, module.v))
    q, k = (t / t.square().sum(-1, keepdim=True).sqrt() for t in (q, k))
    return merge(attend(q * module.logarithm.clamp(max=math.log(MOST)).exp(), k, v, scale=1.0))

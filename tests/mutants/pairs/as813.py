"""AS813: a constructor computes several factors, one of which nothing reads.

The files of the modules are searched as a whole, so the attributes of wrong and right versions have different names.
"""

import math

import torch
from torch import nn

from tests.mutants.plain import attention, join, multihead, split

SIZES = ({"B": 2, "H": 3, "L": 7, "Dk": 5}, {"B": 5, "H": 2, "L": 9, "Dk": 7}, {"B": 3, "H": 4, "L": 6, "Dk": 8})
PAIRS = [
    ("AS813", "factor_of_distances", *SIZES),
    ("AS813", "gate_of_branch", *SIZES),
    ("AS813", "scale_of_pairs", *SIZES),
]


class Projected(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.pairs = nn.Linear(1, heads, bias=False)

    def heads_of(self, x):
        return [split(w(x), self.heads) for w in (self.q, self.k, self.v)]

    def apart(self, x):
        positions = torch.arange(x.shape[1], dtype=x.dtype)
        return (positions[:, None] - positions).abs()


class ByDistance(Projected):
    """Scores fall with the distance, each kind with a factor of its own."""

    def __init__(self, width, heads):
        super().__init__(width, heads)
        self.content_factor = (2 * width // heads) ** -0.5
        self.distance_factor = 0.5 / math.sqrt(2)

    def forward(self, x):
        q, k, v = self.heads_of(x)
        scores = q @ k.mT * self.content_factor - self.apart(x) * self.distance_factor
        return join(scores.softmax(-1) @ v)


class ByRawDistance(Projected):
    """Scores fall with the distance, each kind with a factor of its own."""

    def __init__(self, width, heads):
        super().__init__(width, heads)
        self.token_factor = (2 * width // heads) ** -0.5
        self.apart_factor = 0.5 / math.sqrt(2)  # wrong: AS813 factor_of_distances

    def forward(self, x):
        q, k, v = self.heads_of(x)
        return join((q @ k.mT * self.token_factor - self.apart(x)).softmax(-1) @ v)


def wrong_factor_of_distances(B, H, L, Dk):
    return ByRawDistance(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def right_factor_of_distances(B, H, L, Dk):
    return ByDistance(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def reference_factor_of_distances(module, x):
    places = torch.arange(x.shape[1], dtype=x.dtype)
    bias = -0.5 / 2**0.5 * (places - places[:, None]).abs()
    scale = (2 * x.shape[-1] / module.heads) ** -0.5
    return multihead(module.q(x), module.k(x), module.v(x), module.heads, scale=scale, bias=bias)


class Pairwise(Projected):
    """A projection of pairs is added to the scores, as in the attention of protein structures."""

    def __init__(self, width, heads):
        super().__init__(width, heads)
        kinds = 2
        self.scalar_logits_scale = (kinds * width // heads) ** -0.5
        self.pairwise_logits_scale = kinds**-0.5

    def forward(self, x):
        q, k, v = self.heads_of(x)
        pairs = self.pairs(self.apart(x)[..., None]).movedim(-1, 0)
        logits = torch.einsum("bhid,bhjd->bhij", q, k) * self.scalar_logits_scale
        return join((logits + pairs * self.pairwise_logits_scale).softmax(-1) @ v)


class RawPairwise(Projected):
    """A projection of pairs is added to the scores, as in the attention of protein structures."""

    def __init__(self, width, heads):
        super().__init__(width, heads)
        kinds = 2
        self.single_logits_scale = (kinds * width // heads) ** -0.5
        self.pair_logits_scale = kinds**-0.5  # wrong: AS813 scale_of_pairs

    def forward(self, x):
        q, k, v = self.heads_of(x)
        pairs = self.pairs(self.apart(x)[..., None]).movedim(-1, 0)
        logits = torch.einsum("bhid,bhjd->bhij", q, k) * self.single_logits_scale
        return join((logits + pairs).softmax(-1) @ v)


def wrong_scale_of_pairs(B, H, L, Dk):
    return RawPairwise(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def right_scale_of_pairs(B, H, L, Dk):
    return Pairwise(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def reference_scale_of_pairs(module, x):
    places = torch.arange(x.shape[1], dtype=x.dtype)
    bias = (places - places[:, None]).abs() * module.pairs.weight.reshape(-1, 1, 1) / 2**0.5
    scale = (2 * x.shape[-1] / module.heads) ** -0.5
    return multihead(module.q(x), module.k(x), module.v(x), module.heads, scale=scale, bias=bias)


class TwoBranches(Projected):
    """Its branches are added with weights that keep their variance."""

    def __init__(self, width, heads):
        super().__init__(width, heads)
        self.residual_gain = math.sqrt(0.6)
        self.attended_gain = math.sqrt(0.4)

    def forward(self, x):
        q, k, v = self.heads_of(x)
        attended = join(nn.functional.scaled_dot_product_attention(q, k, v))
        return x * self.residual_gain + attended * self.attended_gain


class TwoBranchesOneGain(Projected):
    """Its branches are added with weights that keep their variance."""

    def __init__(self, width, heads):
        super().__init__(width, heads)
        self.skipped_gain = math.sqrt(0.6)
        self.context_gain = math.sqrt(0.4)  # wrong: AS813 gate_of_branch

    def forward(self, x):
        q, k, v = self.heads_of(x)
        return x * self.skipped_gain + join(nn.functional.scaled_dot_product_attention(q, k, v))


def wrong_gate_of_branch(B, H, L, Dk):
    return TwoBranchesOneGain(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def right_gate_of_branch(B, H, L, Dk):
    return TwoBranches(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def reference_gate_of_branch(module, x):
    context = attention(*(split(w(x), module.heads) for w in (module.q, module.k, module.v)))
    return 0.6**0.5 * x + 0.4**0.5 * join(context)

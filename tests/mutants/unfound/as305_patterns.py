"""AS305 where a pattern drops something else than the weights that it says."""

import torch
from torch import Tensor

from tests.mutants.pairs.as305 import dropped, pattern

SELF = ({"B": 2, "H": 4, "L": 6, "Dk": 5}, {"B": 5, "H": 2, "L": 7, "Dk": 4}, {"B": 4, "H": 3, "L": 9, "Dk": 8})
PAIRS = [
    ("AS305", "pattern_transposed", *SELF),
    ("AS305", "pattern_inverted", *SELF),
]


def attended(q: Tensor, k: Tensor, v: Tensor, noise: Tensor) -> Tensor:
    """Attend in (B, H, L, Dk)."""
    weights = torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, dim=-1)
    return (weights * noise) @ v


def transposed(q: Tensor, k: Tensor, v: Tensor, noise: Tensor) -> Tensor:
    """Attend in (B, H, L, Dk)."""
    weights = torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, dim=-1)
    return (weights * noise.mT) @ v


def inverted(q: Tensor, k: Tensor, v: Tensor, noise: Tensor) -> Tensor:
    """Attend in (B, H, L, Dk)."""
    weights = torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, dim=-1)
    return weights.masked_fill(noise != 0, 0.0) / 0.75 @ v


def _case(function, B, H, L, Dk):
    return function, (*(torch.randn(B, H, L, Dk) for _ in range(3)), pattern(B, H, L, L)), {}, ["noise=dropout"]


def wrong_pattern_transposed(B, H, L, Dk):
    return _case(transposed, B, H, L, Dk)


def wrong_pattern_inverted(B, H, L, Dk):
    return _case(inverted, B, H, L, Dk)


def right_pattern_transposed(B, H, L, Dk):
    return _case(attended, B, H, L, Dk)


def reference_pattern_transposed(function, q, k, v, noise):
    return dropped(q, k, v, noise)


right_pattern_inverted, reference_pattern_inverted = right_pattern_transposed, reference_pattern_transposed

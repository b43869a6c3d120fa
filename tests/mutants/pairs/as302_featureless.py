"""AS302 in attention that sums up keys and values, where other keys make the sums in the denominator."""

import torch
from torch import Tensor

from tests.mutants.pairs.softmaxless import CROSS, features, of_named, reference_kernel_sums_keys

PAIRS = [
    ("AS302", "denominator_without_features", *CROSS),
]


def without_features(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attend in (B, H, L, Dk) by the sums of keys and values."""
    q, k = features(query), features(key)
    state = torch.einsum("bhjd,bhje->bhde", k, value)
    total = key.exp().sum(dim=2)
    sums = torch.einsum("bhid,bhd->bhi", q, total)  # wrong: AS302 denominator_without_features
    return torch.einsum("bhid,bhde->bhie", q, state) / sums.unsqueeze(-1)


def _case(function, B, H, Lq, Lk, Dk):
    return function, (torch.randn(B, H, Lq, Dk), torch.randn(B, H, Lk, Dk), torch.randn(B, H, Lk, Dk)), {}


def wrong_denominator_without_features(B, H, Lq, Lk, Dk):
    return _case(without_features, B, H, Lq, Lk, Dk)


def right_denominator_without_features(B, H, Lq, Lk, Dk):
    return _case(of_named, B, H, Lq, Lk, Dk)


reference_denominator_without_features = reference_kernel_sums_keys

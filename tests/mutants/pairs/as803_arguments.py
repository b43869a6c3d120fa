"""AS803: of two arguments whose names differ in one part, one is used for both."""

import torch

from tests.mutants.pairs.as4_reference import attend

SIZES = (
    {"B": 2, "H": 3, "Lq": 5, "Lk": 7, "Dk": 4},
    {"B": 3, "H": 4, "Lq": 6, "Lk": 9, "Dk": 5},
    {"B": 4, "H": 5, "Lq": 7, "Lk": 11, "Dk": 6},
)
PAIRS = [
    ("AS803", "scale_of_the_other_codes", *SIZES),
]


def from_codes(q, k_codes, k_scale, v_codes, v_scale):
    """Attend to keys and values that were kept as multiples of a scale for each token."""
    k, v = k_codes * k_scale, v_codes * v_scale
    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(dim=-1) @ v


def from_codes_by_one_scale(q, k_codes, k_scale, v_codes, v_scale):
    """Attend to keys and values that were kept as multiples of a scale for each token."""
    k = k_codes * k_scale
    v = v_codes * k_scale  # wrong: AS803 scale_of_the_other_codes
    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(dim=-1) @ v


def _case(function, B, H, Lq, Lk, Dk):
    codes, steps = (B, H, Lk, Dk), (B, H, Lk, 1)
    inputs = torch.randn(B, H, Lq, Dk), torch.randn(codes), torch.rand(steps), torch.randn(codes), torch.rand(steps)
    return function, inputs, {}


def wrong_scale_of_the_other_codes(B, H, Lq, Lk, Dk):
    return _case(from_codes_by_one_scale, B, H, Lq, Lk, Dk)


def right_scale_of_the_other_codes(B, H, Lq, Lk, Dk):
    return _case(from_codes, B, H, Lq, Lk, Dk)


def reference_scale_of_the_other_codes(_, q, k_codes, k_scale, v_codes, v_scale):
    return attend(
        q, torch.einsum("bhkd,bhkx->bhkd", k_codes, k_scale), torch.einsum("bhkd,bhkx->bhkd", v_codes, v_scale)
    )

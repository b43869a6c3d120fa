"""Mistakes in a step of decoding: one query, whose scores are sums of products with the cached keys."""

import torch
from torch import Tensor

from tests.mutants.pairs.as4_reference import attend

PAST = (
    {"B": 4, "H": 5, "Lp": 9, "Dk": 6},
    {"B": 5, "H": 4, "Lp": 6, "Dk": 8},
    {"B": 6, "H": 7, "Lp": 8, "Dk": 4},
)
PAIRS = [
    ("AS203", "step_scaled_twice", *PAST),
    ("AS301", "step_over_heads", *PAST),
    ("AS205", "step_multiplied_by_root", *PAST),
    ("AS404", "step_sees_padding", *PAST),
]


def step(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """One query (B, H, Dk) attends to cached keys and values (B, H, Lp, Dk)."""
    scores = (q.unsqueeze(2) * keys).sum(dim=-1) * q.shape[-1] ** -0.5
    return (scores.softmax(dim=-1).unsqueeze(-1) * values).sum(dim=2)


def step_scaled_twice(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """One query (B, H, Dk) attends to cached keys and values (B, H, Lp, Dk)."""
    q = q / q.shape[-1] ** 0.5
    scores = (q.unsqueeze(2) * keys).sum(dim=-1) * q.shape[-1] ** -0.5  # wrong: AS203 step_scaled_twice
    return (scores.softmax(dim=-1).unsqueeze(-1) * values).sum(dim=2)


def step_over_heads(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """One query (B, H, Dk) attends to cached keys and values (B, H, Lp, Dk)."""
    scores = (q.unsqueeze(2) * keys).sum(dim=-1) * q.shape[-1] ** -0.5
    return (scores.softmax(dim=1).unsqueeze(-1) * values).sum(dim=2)  # wrong: AS301 step_over_heads


def _step(function, B, H, Lp, Dk):
    return function, (torch.randn(B, H, Dk), torch.randn(B, H, Lp, Dk), torch.randn(B, H, Lp, Dk)), {}


def wrong_step_scaled_twice(B, H, Lp, Dk):
    return _step(step_scaled_twice, B, H, Lp, Dk)


def wrong_step_over_heads(B, H, Lp, Dk):
    return _step(step_over_heads, B, H, Lp, Dk)


def right_step_over_heads(B, H, Lp, Dk):
    return _step(step, B, H, Lp, Dk)


def reference_step_over_heads(function, q, keys, values):
    return attend(q[:, :, None], keys, values)[:, :, 0]


right_step_scaled_twice, reference_step_scaled_twice = right_step_over_heads, reference_step_over_heads


def step_by_product(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """One query (B, 1, H, Dk) attends to cached keys and values (B, Lp, H, Dk)."""
    scores = torch.mul(q, keys).sum(-1) / q.shape[-1] ** 0.5
    return torch.einsum("bkh,bkhd->bhd", scores.softmax(1), values)


def step_by_root(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """One query (B, 1, H, Dk) attends to cached keys and values (B, Lp, H, Dk)."""
    scores = torch.mul(q, keys).sum(-1) * q.shape[-1] ** 0.5  # wrong: AS205 step_multiplied_by_root
    return torch.einsum("bkh,bkhd->bhd", scores.softmax(1), values)


def _by_product(function, B, H, Lp, Dk):
    return function, (torch.randn(B, 1, H, Dk), torch.randn(B, Lp, H, Dk), torch.randn(B, Lp, H, Dk)), {}


def wrong_step_multiplied_by_root(B, H, Lp, Dk):
    return _by_product(step_by_root, B, H, Lp, Dk)


def right_step_multiplied_by_root(B, H, Lp, Dk):
    return _by_product(step_by_product, B, H, Lp, Dk)


def reference_step_multiplied_by_root(function, q, keys, values):
    return attend(*(t.transpose(1, 2) for t in (q, keys, values)))[:, :, 0]


def step_with_mask(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """One query (B, H, 1, Dk) attends to cached keys and values (B, H, Lp, Dk), where the mask (B, Lp) is true."""
    scores = (q * keys).sum(-1).mul(q.shape[-1] ** -0.5)
    weights = scores.masked_fill(~mask[:, None], -torch.inf).softmax(-1)
    return (weights[..., None] * values).sum(-2)


def step_without_mask(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """One query (B, H, 1, Dk) attends to cached keys and values (B, H, Lp, Dk), where the mask (B, Lp) is true."""
    scores = (q * keys).sum(-1).mul(q.shape[-1] ** -0.5)
    weights = scores.softmax(-1)
    return (weights[..., None] * values).sum(-2)


def _with_mask(function, B, H, Lp, Dk):
    mask = torch.arange(Lp) < (Lp - torch.arange(B) % (Lp - 1))[:, None]
    inputs = torch.randn(B, H, 1, Dk), torch.randn(B, H, Lp, Dk), torch.randn(B, H, Lp, Dk), mask
    return function, inputs, {}, ["mask=keep"]


def wrong_step_sees_padding(B, H, Lp, Dk):
    return _with_mask(step_without_mask, B, H, Lp, Dk)


def right_step_sees_padding(B, H, Lp, Dk):
    return _with_mask(step_with_mask, B, H, Lp, Dk)


def reference_step_sees_padding(function, q, keys, values, mask):
    return attend(q, keys, values, mask[:, None, None])[:, :, 0]

"""Other numbers in place of those of a tensor, to see what they move."""

from __future__ import annotations

import torch
from torch import Tensor

from attnshape.replaying.replay import Replace


def is_pattern(value: Tensor) -> bool:
    """Say whether numbers are a mask's or constant: 0, 1, one large negative number, or all the same."""
    if value.dtype == torch.bool:
        return True
    if not value.is_floating_point():
        return False
    return bool(((value == value.min()) | (value == value.max())).all())


def other_numbers(value: Tensor) -> Tensor:
    """Return numbers of the same kind that are others everywhere."""
    if value.is_floating_point():
        generator = torch.Generator().manual_seed(7)
        noise = torch.randn(value.shape, generator=generator, dtype=torch.float64)
        return (0.5 * value.double() + noise + 0.3).to(value.dtype)
    if value.dtype == torch.bool:
        return ~value
    return (value + 1) % (int(value.max()) + 1) if int(value.max()) > 0 else value + 1


def others_at(axis: int, begin: int, count: int = 1) -> Replace:
    """Return what puts other numbers at some indices of an axis."""

    def change(value: Tensor) -> Tensor:
        part = value.narrow(axis, begin, count)
        part.copy_(other_numbers(part))
        return value

    return change


def others_except(axis: int, begin: int, count: int = 1) -> Replace:
    """Return what puts other numbers at all indices of an axis but some."""

    def change(value: Tensor) -> Tensor:
        kept = value.narrow(axis, begin, count).clone()
        value.copy_(other_numbers(value))
        value.narrow(axis, begin, count).copy_(kept)
        return value

    return change

"""Other numbers in place of those of a tensor, to see what they move."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from attnshape.replaying.replay import Replace

_LOUD = 8.0
"""Times that the others are, beside which nothing else is the largest."""


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


def loud_numbers(value: Tensor) -> Tensor:
    """Return such numbers, far larger: the largest of all is among them."""
    others = other_numbers(value)
    return others * _LOUD if value.is_floating_point() else others


def others_at(axis: int, begin: int, count: int = 1, others: Callable[[Tensor], Tensor] = other_numbers) -> Replace:
    """Return what puts other numbers at some indices of an axis."""

    def change(value: Tensor) -> Tensor:
        part = value.narrow(axis, begin, count)
        part.copy_(others(part))
        return value

    return change

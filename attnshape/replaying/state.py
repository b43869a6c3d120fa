"""The parameters and buffers that every run of a target is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

_LARGEST = 1e4
"""What no parameter is set to on purpose: memory that nobody filled holds such numbers."""
_SPREAD = 0.3


@dataclass(frozen=True)
class Settled:
    """One state: what the first build had, but for what would hide everything behind it."""

    values: dict[str, Tensor]

    @classmethod
    def of(cls, named: Sequence[tuple[str, Tensor]]) -> Settled:
        """Return the state to give to every build.

        Parameters that are zero or were never filled get random numbers: behind them nothing would move.
        """
        generator = torch.Generator().manual_seed(1)
        values = {}
        for name, tensor in named:
            value = tensor.detach().clone()
            if value.is_floating_point() and value.numel() and _hides(tensor, value):
                noise = torch.randn(value.shape, generator=generator, dtype=torch.float64)
                value = (noise * _SPREAD).to(value.dtype)
            values[name] = value
        return cls(values)

    def put_into(self, named: Sequence[tuple[str, Tensor]]) -> None:
        """Give the state to a target that was built anew."""
        for name, tensor in named:
            value = self.values.get(name)
            if value is not None and value.shape == tensor.shape and value.dtype == tensor.dtype:
                tensor.data = value.clone()


def _hides(tensor: Tensor, value: Tensor) -> bool:
    if not isinstance(tensor, nn.Parameter):
        return not bool(torch.isfinite(value).any())
    wild = not bool(torch.isfinite(value).all()) or bool(value.abs().max() > _LARGEST)
    return wild or not bool(value.any())

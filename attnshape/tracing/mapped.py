"""Tensors within `torch.func.vmap`, which hide the axis that is mapped over."""

from __future__ import annotations

from torch import Tensor
from torch._C import _functorch


def is_mapped(tensor: Tensor) -> bool:
    """Say whether an axis of the tensor is hidden."""
    return _functorch.is_batchedtensor(tensor)


def unwrapped(tensor: Tensor) -> Tensor:
    """Return the tensor that holds the numbers, with every axis."""
    while _functorch.is_functorch_wrapped_tensor(tensor):
        tensor = _functorch.get_unwrapped(tensor)
    return tensor

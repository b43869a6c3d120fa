"""Makes the tensors that the user described."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from attnshape.errors import AttnshapeError
from attnshape.signature import TensorSpec
from attnshape.sizes import LARGEST
from attnshape.target.locate import reason
from attnshape.target.request import Placement


def building(placement: Placement) -> AbstractContextManager[object]:
    """Return the context to build a target in: on meta from the start, since a large one fits nowhere else."""
    return torch.device("meta") if placement.device.type == "meta" else nullcontext()


def make(spec: TensorSpec, numbers: Mapping[str, int], placement: Placement) -> Tensor:
    """Return a tensor of the described axes.

    Floating point: normal deviates. Booleans: at random, at least one True along the last axis. `int[V]`: uniform below
    V. `int`: counting along the last axis.
    """
    shape = [expression.evaluate(numbers) for expression in spec.axes]
    if any(size < 0 for size in shape):
        raise AttnshapeError(f"{spec.name}: {spec.signature!r} is {shape}, a negative size", "give other sizes")
    if any(size > LARGEST for size in shape):
        raise AttnshapeError(
            f"{spec.name}: {spec.signature!r} is {shape}, more than any tensor's axis can have", "give smaller sizes"
        )
    try:
        return _filled(spec, shape, numbers, placement)
    except (RuntimeError, MemoryError, OverflowError) as error:
        raise AttnshapeError(
            f"{spec.name}: {spec.signature!r} can't be made: {reason(error)}", "give smaller sizes, or --device meta"
        ) from error


def _filled(spec: TensorSpec, shape: list[int], numbers: Mapping[str, int], placement: Placement) -> Tensor:
    device = placement.device
    if spec.kind == "bool":
        values = torch.rand(shape, device=device) < 0.5
        if shape and shape[-1]:
            values[..., 0] = True
        return values
    if spec.kind == "int":
        if spec.below is None:
            return torch.arange(shape[-1] if shape else 1, device=device).expand(shape).clone()
        below = spec.below.evaluate(numbers)
        if below < 1:
            raise AttnshapeError(
                f"{spec.name}: no number from 0 up is below {below}, which int[{spec.below.text}] asks for",
                "give other sizes",
            )
        return torch.randint(below, shape, device=device)
    if not placement.dtype.is_floating_point and not placement.dtype.is_complex:
        return torch.zeros(shape, dtype=placement.dtype, device=device)
    return torch.randn(shape, device=device, dtype=placement.dtype)


def place(value: Any, placement: Placement) -> Any:
    """Return a value with its tensors on the device, floating-point ones in the dtype."""
    if isinstance(value, Tensor):
        return value.to(placement.device, placement.dtype if value.is_floating_point() else value.dtype)
    if isinstance(value, torch.nn.Module):
        value.to(device=placement.device, dtype=placement.dtype)
        return value.train(placement.train)
    if type(value) in (tuple, list):
        return type(value)(place(item, placement) for item in value)
    if type(value) is dict:
        return {key: place(item, placement) for key, item in value.items()}
    return value

"""Makes the tensors that the user described."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor

from attnshape.errors import AttnshapeError
from attnshape.signature import TensorSpec
from attnshape.sizes import LARGEST
from attnshape.target.locate import reason
from attnshape.target.request import Placement

_DEEPEST = 8
_WITHOUT_TENSORS = (type, ModuleType, FunctionType)


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
        # one byte each from the start: comparing random numbers would take five
        values = torch.empty(shape, dtype=torch.bool, device=device).bernoulli_(0.5)
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
    """Return a value with its tensors on the device, floating-point ones in the dtype.

    Tensors in tuples, lists and dicts are replaced, and those in the attributes of objects.
    """
    return _Placing(placement).placed(value, 0)


class _Placing:
    """Places one value; what holds no tensor that has to move is left as it is."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._seen: set[int] = set()

    def placed(self, value: Any, depth: int) -> Any:
        placement = self._placement
        if isinstance(value, Tensor):
            return value.to(placement.device, placement.dtype if value.is_floating_point() else value.dtype)
        if isinstance(value, torch.nn.Module):
            value.to(device=placement.device, dtype=placement.dtype)
            return value.train(placement.train)
        if depth > _DEEPEST or id(value) in self._seen:
            return value
        self._seen.add(id(value))
        if isinstance(value, tuple):
            items = [self.placed(item, depth + 1) for item in value]
            if all(new is old for new, old in zip(items, value, strict=True)):
                return value
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        if isinstance(value, list):
            value[:] = [self.placed(item, depth + 1) for item in value]
        elif isinstance(value, dict):
            for key, item in list(value.items()):
                if (new := self.placed(item, depth + 1)) is not item:
                    value[key] = new
        elif isinstance(getattr(value, "__dict__", None), dict) and not isinstance(value, _WITHOUT_TENSORS):
            for name, item in list(vars(value).items()):
                if (new := self.placed(item, depth + 1)) is not item:
                    object.__setattr__(value, name, new)
        return value

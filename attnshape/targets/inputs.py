"""Creates tensor arguments at given sizes from descriptions or annotations, and moves values to a device."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from types import FunctionType, ModuleType
from typing import Any, get_args

import torch
from torch import Tensor

from attnshape.dims.expressions import TensorSpec, parse_tensor
from attnshape.dims.sizes import LARGEST
from attnshape.errors import AttnshapeError, Option, exception_message
from attnshape.options.spec import RunOptions
from attnshape.tracing.containers import own_attributes

_MAX_DEPTH = 8
_WITHOUT_TENSORS = (type, ModuleType, FunctionType)


def device_context(options: RunOptions) -> AbstractContextManager[object]:
    """Return the context to build a target in. Meta targets are built on meta, since they may not fit in memory."""
    return torch.device("meta") if options.device == "meta" else nullcontext()


def make_tensor(spec: TensorSpec, numbers: Mapping[str, int], options: RunOptions) -> Tensor:
    """Create a tensor from its description.

    Floating point: standard normal. Booleans: random, with at least one True along the last axis. `int[V]`: uniform
    below V. `int`: 0, 1, 2, … along the last axis.
    """
    shape = [expression.evaluate(numbers) for expression in spec.axes]
    name = f"{spec.name}: {spec.signature!r}"
    if any(size < 0 for size in shape):
        raise AttnshapeError(f"{name} is {shape}, a negative size", "give other sizes")
    if any(size > LARGEST for size in shape):
        raise AttnshapeError(f"{name} is {shape}, more than any tensor's axis can have", "give smaller sizes")
    try:
        return _fill(spec, shape, numbers, options)
    except (RuntimeError, MemoryError, OverflowError) as error:
        hint = ("give smaller sizes, or ", Option("device", "meta"))
        raise AttnshapeError(f"{name} can't be made: {exception_message(error)}", hint) from error


def _fill(spec: TensorSpec, shape: list[int], numbers: Mapping[str, int], options: RunOptions) -> Tensor:
    device, dtype = torch.device(options.device), torch_dtype(options)
    if spec.kind == "bool":
        # comparing random floats would take five bytes per element
        values = torch.empty(shape, dtype=torch.bool, device=device).bernoulli_(0.5)
        if shape and shape[-1]:
            values[..., 0] = True
        return values
    if spec.kind == "int":
        if spec.below is None:
            return torch.arange(shape[-1] if shape else 1, device=device).expand(shape).clone()
        below = spec.below.evaluate(numbers)
        if below < 1:
            problem = f"no number from 0 up is below {below}, which int[{spec.below.text}] asks for"
            raise AttnshapeError(f"{spec.name}: {problem}", "give other sizes")
        return torch.randint(below, shape, device=device)
    return torch.randn(shape, device=device, dtype=dtype)


def torch_dtype(options: RunOptions) -> torch.dtype:
    """Return the dtype of parameters and floating-point inputs."""
    dtype: torch.dtype = getattr(torch, options.dtype)
    return dtype


def move(value: Any, options: RunOptions) -> Any:
    """Move a value's tensors to the device, and floating-point tensors to the dtype.

    This includes tensors in tuples, lists, dicts, and the attributes of objects.
    """
    return _Mover(options).move(value, 0)


_CONVERTED = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
"""The dtypes of parameters and inputs that a run's dtype replaces."""


class _Mover:
    """Moves one value; a tuple is copied only if an item changes."""

    def __init__(self, options: RunOptions) -> None:
        self._device = torch.device(options.device)
        self._dtype = torch_dtype(options)
        self._train = options.train
        self._seen: set[int] = set()
        self._results: dict[int, tuple[Tensor, Tensor]] = {}
        """Each tensor that was moved, by its identity, with the result."""

    def _moved(self, tensor: Tensor) -> Tensor:
        """Return a tensor on the device and in the dtype, the same one each time it is met."""
        if id(tensor) not in self._results:
            self._results[id(tensor)] = tensor, self._converted(tensor)
        return self._results[id(tensor)][1]

    def _converted(self, tensor: Tensor) -> Tensor:
        """Return a tensor on the device and in the dtype; the tensor itself if it is there, or can't be moved."""
        with torch._C.DisableTorchFunction():
            dtype = self._dtype if tensor.dtype in _CONVERTED else tensor.dtype
            if (tensor.device, tensor.dtype) == (self._device, dtype):
                return tensor
        try:
            return tensor.to(self._device, dtype)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, NotImplementedError):  # as for one on the meta device, which has no numbers
            return tensor

    def move(self, value: Any, depth: int) -> Any:
        kind = type(value)  # an object's __class__ may raise, or lie
        if issubclass(kind, Tensor):
            return self._moved(value)
        if issubclass(kind, torch.nn.Module):
            # unlike `Module.to` it leaves complex and float8 parameters as they are
            value._apply(self._moved)
            return value.train(self._train)
        if depth > _MAX_DEPTH or id(value) in self._seen:
            return value
        self._seen.add(id(value))
        if issubclass(kind, tuple):
            items = [self.move(item, depth + 1) for item in value]
            if all(new is old for new, old in zip(items, value, strict=True)):
                return value
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        if issubclass(kind, list):
            value[:] = [self.move(item, depth + 1) for item in value]
        elif issubclass(kind, dict):
            for key, item in list(value.items()):
                if (new := self.move(item, depth + 1)) is not item:
                    value[key] = new
        elif not issubclass(kind, _WITHOUT_TENSORS):
            for name, item in own_attributes(value).items():
                if (new := self.move(item, depth + 1)) is not item:
                    object.__setattr__(value, name, new)
        return value


def annotated_inputs(function: Any) -> list[TensorSpec]:
    """Return the inputs of a callable: each parameter with a jaxtyping annotation and no default.

    Raises AttnshapeError if an annotation leaves an axis open.
    """
    specs = []
    for parameter in _signature(function).parameters.values() if callable(function) else ():
        choices = get_args(parameter.annotation) or (parameter.annotation,)
        annotation: Any = next((choice for choice in choices if _is_jaxtyping(choice)), None)
        if annotation is not None and parameter.default is parameter.empty:
            words = [_axis(word, parameter.name, annotation.dim_str) for word in annotation.dim_str.split()]
            specs.append(parse_tensor(parameter.name, f"{_kind(annotation.dtypes)} {' '.join(words)}"))
    return specs


def annotated_result(function: Any) -> tuple[str, str] | None:
    """Return the kind and the dimensions of a callable's return annotation: `Float`, `B L D`."""
    annotation: Any = _signature(function).return_annotation
    if not _is_jaxtyping(annotation):
        return None
    return annotation.__name__.partition("[")[0], " ".join(annotation.dim_str.split())


def _signature(function: Any) -> inspect.Signature:
    try:
        return inspect.signature(function, eval_str=True)
    except Exception:  # noqa: BLE001 - annotations may use names defined only under TYPE_CHECKING
        return inspect.Signature()


def _is_jaxtyping(annotation: Any) -> bool:
    return hasattr(annotation, "dim_str") and hasattr(annotation, "dtypes")


def _kind(dtypes: Any) -> str:
    names = list(map(str, dtypes)) if isinstance(dtypes, (tuple, list)) else []
    kinds = (kind for kind in ("bool", "int") if names and all(kind in name for name in names))
    return next(kinds, "float")


def _axis(word: str, name: str, dims: str) -> str:
    plain = word.lstrip("#?").rpartition("=")[2]
    if not plain or plain[0] in "*_." or plain == "...":
        hint = ("give it: ", Option("inputs", "B L D", name))
        raise AttnshapeError(f"the annotation {dims!r} of {name} leaves an axis open ({word})", hint)
    return plain

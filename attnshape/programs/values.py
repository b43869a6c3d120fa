"""Describes the values that attention is constructed and called with, without keeping them."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch
from msgspec.structs import replace
from torch import Tensor

from attnshape.model.program import CapturedTensor, Instance, Integer, Items, Plain, Table, Unknown, Value
from attnshape.proposals.conventions import axes_named, size_of
from attnshape.proposals.source import fields_read, unpacked_axes

_DEEPEST = 4
_LONGEST = 64
"""The most elements of a list, or characters of a string, that are described."""
_MOST_ELEMENTS = 1 << 24
"""The largest tensor whose numbers are looked at."""
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_PLAIN_TYPES = (Tensor, torch.nn.Parameter)


def without_side_effects() -> AbstractContextManager[object]:
    """Return a context in which torch's operations are invisible to the program: to its modes and to autograd."""
    from torch.utils._python_dispatch import _disable_current_modes

    stack = ExitStack()
    stack.enter_context(torch._C.DisableTorchFunction())
    stack.enter_context(_disable_current_modes())
    stack.enter_context(torch.no_grad())
    return stack


def describe(value: Any, module: types.ModuleType | None, depth: int = 0, read: Iterable[str] = ()) -> Value:
    """Return the description of a value.

    Args:
        value: The value.
        module: The module of the attention, in whose names the value is to be written.
        depth: How many values it is inside of.
        read: The fields that the code reads of it, if it is a configuration.
    """
    kind = type(value)
    if kind is int:
        return Integer(value)
    if value is None or kind in (bool, float) or (kind is str and len(value) <= _LONGEST):
        return Plain(repr(value) if value == value and abs(_number(value)) != float("inf") else f'float("{value}")')
    if isinstance(value, torch.dtype):
        return Plain(str(value))
    if isinstance(value, Tensor):
        return describe_tensor(value)
    if depth < _DEEPEST and isinstance(value, list | tuple) and kind in (list, tuple) and len(value) <= _LONGEST:
        items = tuple(describe(one, module, depth + 1) for one in value)
        return Items("list" if kind is list else "tuple", items)
    if depth < _DEEPEST and kind is dict and len(value) <= _LONGEST and all(type(key) is str for key in value):
        return Table({key: describe(one, module, depth + 1) for key, one in value.items()})
    if isinstance(value, enum.Enum) and getattr(module, kind.__name__, None) is kind:
        return Plain(f"{kind.__name__}.{value.name}")
    if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType):
        name = value.__name__
        return Plain(name) if getattr(module, name, None) is value else Unknown(name)
    if depth < _DEEPEST and not isinstance(value, torch.nn.Module) and (fields := _fields(value)) is not None:
        return _instance(value, fields, module, depth, tuple(read))
    return Unknown(kind.__name__)


def _number(value: object) -> float:
    return value if isinstance(value, float) else 0.0


def _fields(value: object) -> Mapping[str, object] | None:
    """Return the fields of a configuration: an object that is no tensor, module or container."""
    fields = getattr(value, "__dict__", None)
    if not isinstance(fields, dict) or callable(value) or isinstance(value, types.ModuleType):
        return None
    return fields


def _instance(
    value: object, fields: Mapping[str, object], module: types.ModuleType | None, depth: int, read: tuple[str, ...]
) -> Value:
    kind = type(value)
    name = kind.__name__ if getattr(module, kind.__name__, None) is kind else ""
    settable = _settable(kind)
    missing = inspect.Parameter.empty
    described: dict[str, Value] = {}
    if name and settable is not None:
        aliases = getattr(kind, "attribute_map", {})
        wanted = {aliases.get(one, one) for one in read}
        for key, default in settable.items():
            current = getattr(value, key, missing)
            if current is missing or (wanted and key not in wanted and default is not missing):
                continue
            if default is missing or not _equal(current, default) or (key in wanted and type(current) is int):
                described[key] = describe(current, module, depth + 1)
    else:
        name = ""
        public = {key: one for key, one in fields.items() if not key.startswith("_") and (not read or key in read)}
        read_too = {key: getattr(value, key) for key in read if hasattr(value, key)}
        described = {key: describe(one, module, depth + 1) for key, one in {**public, **read_too}.items()}
    return Instance(name, described)


def _settable(kind: type) -> dict[str, object] | None:
    """Return what the constructor of a configuration takes, with the defaults; None if that isn't known."""
    missing = inspect.Parameter.empty
    if dataclasses.is_dataclass(kind):
        return {
            one.name: missing if one.default is dataclasses.MISSING else one.default
            for one in dataclasses.fields(kind)
            if one.init
        }
    try:
        parameters = list(inspect.signature(kind).parameters.values())
    except (TypeError, ValueError):
        return None
    named = [one for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    return {one.name: one.default for one in named} if named else None


def _equal(one: object, other: object) -> bool:
    """Return whether two values are the same plain value, or the same object."""
    if one is other:
        return True
    return type(one) is type(other) and isinstance(one, int | float | str | list | tuple | dict) and bool(one == other)


def describe_tensor(tensor: Tensor) -> Value:
    """Return the description of a tensor: its shape, and what its numbers are where it may be a mask or positions."""
    shape = tuple(tensor.shape)
    if not all(type(size) is int for size in shape):
        return Unknown(type(tensor).__name__)
    described = CapturedTensor(shape, str(tensor.dtype).removeprefix("torch."), str(tensor.device))
    if (
        type(tensor) not in _PLAIN_TYPES
        or tensor.device.type not in ("cpu", "cuda")
        or not 0 < tensor.numel() <= _MOST_ELEMENTS
    ):
        return described
    if torch._C._functorch.maybe_current_level() is not None or _is_capturing(tensor):
        return described
    return _with_numbers(described, tensor.detach())


def _is_capturing(tensor: Tensor) -> bool:
    """Return whether a CUDA graph is being captured, which mustn't be waited for."""
    return tensor.device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _with_numbers(described: CapturedTensor, tensor: Tensor) -> CapturedTensor:
    if tensor.dtype in _INTEGERS:
        expected = torch.arange(tensor.shape[-1], device=tensor.device) if tensor.ndim else None
        is_positions = expected is not None and tensor.shape[-1] > 1 and bool((tensor == expected).all())
        return replace(described, largest=int(tensor.max()), pattern="positions" if is_positions else "")
    if tensor.is_complex() or (tensor.is_floating_point() and tensor.ndim not in (2, 4)):
        return described
    if (
        tensor.is_floating_point()
        and tensor.shape[-1] != tensor.shape[-2]
        and tensor.ndim == 4
        and 1 not in tensor.shape[:2]
    ):
        return described  # heads, not a mask
    first = tensor.flatten()[0]
    if bool((tensor == tensor.flatten()[-1]).all()) and bool(first == first):
        number = first.item()
        return replace(described, pattern="ones" if number == 1 else "zeros") if number in (0, 1) else described
    if tensor.ndim < 2:
        return described
    rows, columns = tensor.shape[-2:]
    past = columns - rows
    if past < 0 or rows < 2:
        return described
    is_set = tensor != 0
    lower = torch.ones(rows, columns, dtype=torch.bool, device=tensor.device).tril(past)
    pattern = "causal" if bool((is_set == lower).all()) else "later" if bool((is_set == ~lower).all()) else ""
    if not pattern:
        return described
    values = tensor[is_set]
    if not bool((values == values[0]).all()):
        return described
    return replace(described, pattern=pattern, fill=_fill(values[0], tensor.dtype))


def _fill(value: Tensor, dtype: torch.dtype) -> str:
    """Return the number as Python writes it."""
    if dtype is torch.bool:
        return "True"
    number = float(value)
    if number == torch.finfo(dtype).min:
        return f"torch.finfo({dtype}).min"
    return f'float("{number}")' if number in (float("inf"), float("-inf")) else repr(number)


def describe_constructor(kind: type, given: Mapping[str, object]) -> tuple[dict[str, Value], tuple[str, ...]]:
    """Return the arguments of a constructor without those that have their default, and which are passed by position."""
    module = sys.modules.get(kind.__module__)
    try:
        parameters = list(inspect.signature(kind.__init__).parameters.values())[1:]  # type: ignore[misc]
    except (TypeError, ValueError):
        parameters = []
    described: dict[str, Value] = {}
    positional: list[str] = []
    for one in parameters:
        if one.name not in given or (one.default is not one.empty and _equal(given[one.name], one.default)):
            continue
        value = given[one.name]
        if type(value) is int and size_of(one.name) == "0":
            # layers that differ in their number alone are the same attention
            if one.default is not one.empty:
                continue
            value = 0
        if one.kind is one.VAR_KEYWORD:
            extra = value if isinstance(value, dict) else {}
            described |= {key: describe(inner, module) for key, inner in extra.items()}
        elif one.kind is one.VAR_POSITIONAL:
            if isinstance(value, tuple) and value:
                described[f"*{one.name}"] = describe(value, module)
        else:
            read = fields_read(kind, one.name, module) if module is not None and _fields(value) is not None else ()
            described[one.name] = describe(value, module, read=read)
            if one.default is one.empty and one.kind is not one.KEYWORD_ONLY:
                positional.append(one.name)
    return described, tuple(positional)


def describe_call(
    forward: Callable[..., Any], owner: type, args: tuple[object, ...], kwargs: Mapping[str, object]
) -> dict[str, Value]:
    """Return the arguments of a call by parameter; one that has its default is left out."""
    module = sys.modules.get(owner.__module__)
    bound = inspect.signature(forward).bind(None, *args, **kwargs)
    parameters = list(bound.signature.parameters.values())[1:]
    described: dict[str, Value] = {}
    tensors: dict[int, str] = {}
    for one in parameters:
        if one.name not in bound.arguments:
            continue
        value = bound.arguments[one.name]
        if one.kind is one.VAR_KEYWORD:
            described |= {key: describe(inner, module) for key, inner in value.items() if inner is not None}
            continue
        if one.kind is one.VAR_POSITIONAL:
            if value:
                described[f"*{one.name}"] = describe(value, module)
            continue
        if one.default is not one.empty and _equal(value, one.default):
            continue
        result = describe(value, module)
        if isinstance(result, CapturedTensor):
            axes = unpacked_axes(forward, one.name)
            symbols = axes_named(axes) if axes is not None and len(axes) == len(result.shape) else None
            result = replace(result, axes=symbols or (), same_as=tensors.get(id(value), ""))
            tensors.setdefault(id(value), one.name)
        described[one.name] = result
    return described

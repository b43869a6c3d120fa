"""The arguments of a call that are no tensors: numbers, flags and words, by the names of the function's parameters."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

_NUMBERS = frozenset({int, float})
_KEPT = frozenset({bool, int, float, str, torch.dtype})
_MOST_ITEMS = 8
"""Longer lists of numbers aren't kept."""
_LONGEST_TEXT = 80
_WITHOUT_MEANING = frozenset(
    {"_stacklevel", "inplace", "out", "device", "layout", "memory_format", "pin_memory", "requires_grad", "generator"}
)
"""Parameters that say where a result is, not which numbers it has."""

_OPERATORS = {"truediv": "div", "rtruediv": "div", "floordiv": "floor_divide", "rfloordiv": "floor_divide"}
"""The functions of operators that don't have the same name; `2 - x` calls `__rsub__`, which is sub."""

Place = int | str
"""Where a call has an argument: its position, or its keyword."""
Plain = bool | int | float | str | tuple[int | float, ...]
"""The value of an argument that is kept; a dtype is kept by its name."""


@dataclass(frozen=True, slots=True)
class NamedArgument:
    """An argument by the name of its parameter."""

    name: str
    value: Plain
    is_default: bool = False
    """Whether the function takes the same value where the argument isn't given."""


def plain_arguments(args: Sequence[Any], keywords: Mapping[str, Any]) -> tuple[tuple[Place, Plain], ...]:
    """Return the arguments of a call that are numbers, flags, words, dtypes or short lists of numbers.

    >>> plain_arguments((torch.ones(2), -1), {"dtype": torch.float32, "out": None})
    ((1, -1), ('dtype', 'float32'))
    """
    # most calls take tensors only, and this runs at every step
    found: list[tuple[Place, Plain]] = []
    for place, value in enumerate(args):
        if (plain := _plain(value)) is not None:
            found.append((place, plain))
    if keywords:
        for name, value in keywords.items():
            if (plain := _plain(value)) is not None:
                found.append((name, plain))
    return tuple(found)


def _plain(value: Any) -> Plain | None:
    kind = type(value)
    if kind in _KEPT:
        if kind is torch.dtype:
            return str(value).removeprefix("torch.")
        plain: Plain | None = value if kind is not str or len(value) <= _LONGEST_TEXT else None
        return plain
    if (kind is tuple or kind is list or kind is torch.Size) and 0 < len(value) <= _MOST_ITEMS:
        return tuple(value) if all(type(item) in _NUMBERS for item in value) else None
    return None


def named_arguments(
    function: Callable[..., Any] | None, given: Sequence[tuple[Place, Plain]]
) -> Iterator[NamedArgument | None]:
    """Yield each argument by the name of the function's parameter; by its position where that isn't known.

    Of an argument that only says where the result is, such as `device`, None is yielded.

    >>> list(named_arguments(torch.softmax, [(1, -1)]))
    [NamedArgument(name='dim', value=-1, is_default=False)]
    """
    parameters = _parameters(function, *_kinds(given)) if function is not None else ()
    defaults = dict(parameters)
    for place, value in given:
        if isinstance(place, str):
            name = place
        elif place < len(parameters):
            name = parameters[place][0]
        else:
            name = f"argument {place}"
        is_default = name in defaults and _is_same(defaults[name], value)
        yield NamedArgument(name, value, is_default) if name not in _WITHOUT_MEANING else None


def _is_same(default: object, value: Plain) -> bool:
    return type(default) is type(value) and default == value


def _kinds(given: Sequence[tuple[Place, Plain]]) -> tuple[frozenset[str], tuple[tuple[int, type], ...]]:
    """Return the keywords of a call, and the types of its arguments by position: what chooses an overload."""
    keywords = frozenset(place for place, _ in given if isinstance(place, str))
    return keywords, tuple((place, type(value)) for place, value in given if isinstance(place, int))


@functools.lru_cache(maxsize=2048)
def _parameters(
    function: Callable[..., Any], keywords: frozenset[str], types: tuple[tuple[int, type], ...]
) -> tuple[tuple[str, object], ...]:
    """Return the names of a function's parameters with their defaults, `inspect.Parameter.empty` for none."""
    if getattr(function, "__code__", None) is not None:
        with contextlib.suppress(TypeError, ValueError):
            parameters = inspect.signature(function).parameters.values()
            if all(parameter.kind is not inspect.Parameter.VAR_POSITIONAL for parameter in parameters):
                return tuple((parameter.name, parameter.default) for parameter in parameters)
    name = getattr(function, "__name__", "").strip("_")
    for candidate in dict.fromkeys((name, name.removeprefix("r"), _OPERATORS.get(name, name))):
        for schema in _schemas(candidate):
            positional = [argument for argument in schema.arguments if not argument.kwarg_only]
            known = {argument.name for argument in schema.arguments} | _WITHOUT_MEANING
            if keywords <= known and all(
                place < len(positional) and _takes(str(positional[place].type), kind) for place, kind in types
            ):
                return tuple((one.name, _default(one)) for one in (*positional, *schema.arguments[len(positional) :]))
    return ()


def _default(argument: Any) -> object:
    return argument.default_value if argument.has_default_value() else inspect.Parameter.empty


def _schemas(name: str) -> Sequence[Any]:
    try:
        found: Sequence[Any] = torch._C._jit_get_schemas_for_operator(f"aten::{name}")
    except (AttributeError, RuntimeError):
        return ()
    return found


def _takes(parameter: str, kind: type) -> bool:
    """Return whether a parameter of a schema takes a value of a type; no tensor is among the values."""
    plain = parameter.removeprefix("Optional[").removesuffix("]")
    if kind is tuple:
        return plain.startswith("List[")
    if kind is str:
        return plain in ("str", "int")  # a dtype is an int in schemas
    if kind is bool:
        return plain in ("bool", "Scalar", "number")
    if kind is int:
        return plain in ("int", "SymInt", "Scalar", "number", "float", "Tensor") or plain.startswith("List[int")
    return plain in ("float", "Scalar", "number", "Tensor")

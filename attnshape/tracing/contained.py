"""The tensors and the modules within a value, with the paths to them."""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

_DEEPEST = 12
"""Containers within containers, beyond which nothing is looked for."""
_MOST = 20_000
"""Values looked at, beyond which nothing is looked for."""
_PLAIN = (str, bytes, int, float, complex, type, types.ModuleType, Tensor, nn.Module)


def paths(name: str, value: object) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors in a value with the paths to them: `output`, `output[0]`, `output.context`, `output['k']`.

    They are looked for in tuples, lists, dicts, sets, and in the attributes of objects, but not in modules.

    >>> import torch
    >>> [path for path, _ in paths("output", (torch.ones(1), {"k": torch.ones(1)}))]
    ['output[0]', "output[1]['k']"]
    """
    yield from _Search(Tensor).within(name, value, 0)


def modules_within(value: object) -> list[tuple[str, nn.Module]]:
    """Return the modules that a callable runs with, under the paths to them: itself, or what it is bound to or holds.

    >>> [path for path, _ in modules_within(functools.partial(nn.Linear(2, 2)))]
    ['']
    """
    return [(path.removeprefix("."), module) for path, module in _Search(nn.Module).within("", value, 0)]


class _Search:
    """One search, which looks into nothing twice on its way and doesn't run for ever."""

    def __init__(self, kind: type) -> None:
        self._kind = kind
        self._entered: set[int] = set()
        self._left = _MOST

    def within(self, name: str, value: object, depth: int) -> Iterator[tuple[str, Any]]:
        self._left -= 1
        if isinstance(value, self._kind):
            yield name, value
        elif not (value is None or isinstance(value, _PLAIN)) and depth < _DEEPEST and self._left > 0:
            if id(value) in self._entered:  # it contains itself
                return
            self._entered.add(id(value))
            for part, item in _parts(value):
                yield from self.within(f"{name}{part}", item, depth + 1)
            self._entered.discard(id(value))


def _parts(value: object) -> list[tuple[str, Any]]:
    """Return what a container or an object holds, with what leads to it."""
    try:
        if isinstance(value, functools.partial):
            return [("", value.func), *_parts(value.args), *((f".{name}", v) for name, v in value.keywords.items())]
        if isinstance(value, types.MethodType):
            return [("", value.__self__)]
        if isinstance(value, types.FunctionType):
            return _closure(value)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return [(f".{name}", getattr(value, name)) for name in value._fields]
        if isinstance(value, (tuple, list)):
            return [(f"[{place}]", item) for place, item in enumerate(value)]
        if dataclasses.is_dataclass(value):
            return [(f".{entry.name}", getattr(value, entry.name, None)) for entry in dataclasses.fields(value)]
        if isinstance(value, Mapping):
            return [(f"[{key!r}]", item) for key, item in value.items()]
        if isinstance(value, (set, frozenset)):
            # a set has no order of its own
            tensors = sorted(
                (item for item in value if isinstance(item, Tensor)), key=lambda tensor: list(tensor.shape)
            )
            return [(f"{{{place}}}", item) for place, item in enumerate(tensors)]
        return [(f".{name}", item) for name, item in _attributes(value).items()]
    except Exception:  # noqa: BLE001 - an object of the traced code may refuse to be looked at
        return []


def _closure(function: types.FunctionType) -> list[tuple[str, Any]]:
    """Return the variables of the functions around it that it uses."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return [(f".{name}", cell.cell_contents) for name, cell in cells]


def _attributes(value: object) -> dict[str, Any]:
    """Return an object's own attributes, without running any code of it."""
    slots = [name for kind in type(value).__mro__ for name in _names(kind.__dict__.get("__slots__", ()))]
    found = {name: object.__getattribute__(value, name) for name in slots if _has(value, name)}
    try:
        own: dict[str, Any] = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return found
    return {**found, **own}


def _names(slots: Any) -> list[str]:
    return [slots] if isinstance(slots, str) else [name for name in slots if name not in ("__dict__", "__weakref__")]


def _has(value: object, name: str) -> bool:
    try:
        object.__getattribute__(value, name)
    except AttributeError:
        return False
    return True

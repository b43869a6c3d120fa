"""What Python modules keep from call to call: tables in global variables, classes, defaults of arguments, and caches.

Every run of a target begins with what they held right after the import, so that a new target is really new.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import sys
from collections import deque
from collections.abc import Iterable, MutableSequence
from types import CellType, FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from attnshape.runtime.files import installed_package
from attnshape.tracing.containers import tensor_paths

_MOST = 20_000
"""How many values to look at."""
_LARGEST_TENSOR = 2**20
"""Of larger tensors no copy is kept."""
_SEQUENCES = (list, deque)
_Cached = functools._lru_cache_wrapper


class ModuleState:
    """What a module, and the modules of the same project that it imports, hold outside of the target.

    Only tensors, what contains them, and numbers are restored: the rest may be a registry, which its module fills once.
    """

    def __init__(self, module: ModuleType | None) -> None:
        """Remember what the modules hold now."""
        self._modules = _imported_by(module) if module is not None else {}
        self._seen: dict[int, object] = {}
        self._names: list[tuple[Any, dict[Any, Any]]] = []
        self._sequences: list[tuple[MutableSequence[Any], list[Any]]] = []
        self._cells: list[tuple[CellType, object]] = []
        self._tensors: list[tuple[Tensor, int, Tensor]] = []
        self._caches: list[_Cached[Any]] = []
        for found in self._modules.values():
            self._enter(vars(found))

    def restore(self) -> None:
        """Restore what has changed since."""
        for owner, before in self._names:
            _restore_names(owner, before)
        for sequence, items in self._sequences:
            if len(sequence) != len(items) or any(a is not b for a, b in zip(sequence, items, strict=True)):
                changed = [item for item in (*sequence, *items) if not _is_among(item, sequence, items)]
                if all(map(_is_data, changed)):
                    sequence.clear()
                    sequence.extend(items)
        for cell, content in self._cells:
            now = _contents(cell)
            if now is not content and (_is_data(now) or _is_data(content) or _are_numbers(now, content)):
                cell.cell_contents = content
        with torch.no_grad():
            for place, (tensor, version, value) in enumerate(self._tensors):
                if tensor._version != version and tensor.shape == value.shape:
                    tensor.data.copy_(value)
                    self._tensors[place] = tensor, tensor._version, value
        for cache in self._caches:
            if _holds_tensors(cache):
                cache.cache_clear()

    def _enter(self, value: Any) -> None:
        kind = type(value)  # an object's __class__ may raise, or lie
        if id(value) in self._seen or len(self._seen) > _MOST:
            return
        self._seen[id(value)] = value
        if issubclass(kind, Tensor):
            if value.layout == torch.strided and value.numel() <= _LARGEST_TENSOR and not value.is_inference():
                self._tensors.append((value, value._version, value.detach().clone()))
            return
        if issubclass(kind, _SEQUENCES):
            self._sequences.append((value, list(value)))
        elif issubclass(kind, dict):
            self._names.append((value, dict(value)))
        elif issubclass(kind, type) and value.__module__ in self._modules:
            self._names.append((value, dict(vars(value))))
        elif issubclass(kind, _Cached):
            self._caches.append(value)
        for item in self._parts(value, kind):
            self._enter(item)

    def _parts(self, value: Any, kind: type) -> Iterable[Any]:
        """Return what a value holds that calls may change."""
        if issubclass(kind, dict):
            return list(value.values())
        if issubclass(kind, (*_SEQUENCES, tuple)):
            return list(value)
        if issubclass(kind, (staticmethod, classmethod)):
            return [value.__func__]
        if issubclass(kind, _Cached):
            return [value.__wrapped__]
        if issubclass(kind, FunctionType):
            return self._parts_of_function(value) if value.__module__ in self._modules else ()
        if issubclass(kind, type):
            return list(vars(value).values()) if value.__module__ in self._modules else ()
        if kind.__module__ in self._modules or issubclass(kind, nn.Module):
            with contextlib.suppress(AttributeError):  # it may have slots only
                return [object.__getattribute__(value, "__dict__")]
        return ()

    def _parts_of_function(self, function: FunctionType) -> list[Any]:
        """Return a function's attributes, the defaults of its arguments, and the variables around it."""
        variables = [(cell, _contents(cell)) for cell in function.__closure__ or ()]
        self._cells += variables
        defaults = (function.__defaults__ or (), function.__kwdefaults__ or {})
        return [vars(function), *defaults, *(content for _, content in variables)]


def _contents(cell: CellType) -> object:
    """Return the value of a variable around a function; a new object if nothing was assigned to it."""
    try:
        return cell.cell_contents
    except ValueError:
        return object()


def _imported_by(module: ModuleType) -> dict[str, ModuleType]:
    """Return a module, and the modules that it and these import, without installed packages, by their names."""
    found: dict[str, ModuleType] = {}
    wanted = [module]
    while wanted:
        one = wanted.pop()
        found[one.__name__] = one
        for value in list(vars(one).values()):
            name = _attribute(value, "__name__" if isinstance(value, ModuleType) else "__module__")
            other = sys.modules.get(name) if isinstance(name, str) and name not in found else None
            if other is not None and _is_of_project(other):
                wanted.append(other)
    return found


def _attribute(value: object, name: str) -> object:
    """Return an attribute; None where there is none, or where reading it fails, as of a module imported only then."""
    try:
        return getattr(value, name, None)
    except Exception:  # noqa: BLE001 - what a stand-in raises is its own affair
        return None


def _is_of_project(module: ModuleType) -> bool:
    file, package = vars(module).get("__file__"), module.__name__.partition(".")[0]
    is_own = package not in sys.stdlib_module_names and package != __name__.partition(".")[0]
    return isinstance(file, str) and is_own and installed_package(file) is None


def _restore_names(owner: Any, before: dict[Any, Any]) -> None:
    now = owner if isinstance(owner, dict) else vars(owner)
    missing = object()
    for name, value in [(name, value) for name, value in now.items() if before.get(name, missing) is not value]:
        if name not in before:
            if _is_data(value):
                _delete(owner, name)
        elif _is_data(value) or _is_data(before[name]) or _are_numbers(value, before[name]):
            _set(owner, name, before[name])
    for name in before.keys() - now.keys():
        if _is_data(before[name]):
            _set(owner, name, before[name])


def _set(owner: Any, name: Any, value: Any) -> None:
    if isinstance(owner, dict):
        owner[name] = value
    else:
        type.__setattr__(owner, name, value)


def _delete(owner: Any, name: Any) -> None:
    if isinstance(owner, dict):
        del owner[name]
    else:
        type.__delattr__(owner, name)


def _is_data(value: object) -> bool:
    """Return whether a value is a tensor or contains one."""
    return any(True for _ in tensor_paths("", value))


def _are_numbers(*values: object) -> bool:
    return all(type(value) in (int, float) for value in values)


def _is_among(item: object, *lists: Iterable[object]) -> bool:
    return all(any(item is other for other in items) for items in lists)


def _holds_tensors(cache: _Cached[Any]) -> bool:
    """Return whether `functools.lru_cache` keeps tensors; it shows what it keeps to the garbage collector only."""
    return any(_is_data(held) for held in gc.get_referents(cache) if held is not cache.__wrapped__)

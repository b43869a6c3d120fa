"""The tensors and modules that a value, a callable or a frame's variables hold, with the paths to them."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import types
from collections.abc import Callable, Iterator, Mapping
from types import FrameType, ModuleType
from typing import Any

from torch import Tensor, nn

_DEEPEST = 12
"""How deep to look into nested containers."""
_MOST = 20_000
"""How many values to look at."""
_PLAIN = (str, bytes, int, float, complex, type, types.ModuleType, Tensor, nn.Module)


def tensor_paths(name: str, value: object) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors in a value with the paths to them: `output`, `output[0]`, `output.context`, `output['k']`.

    Tuples, lists, dicts, sets and the attributes of objects are searched, modules are not.

    >>> import torch
    >>> [path for path, _ in tensor_paths("output", (torch.ones(1), {"k": torch.ones(1)}))]
    ['output[0]', "output[1]['k']"]
    """
    yield from _Search(Tensor).within(name, value, 0)


def modules_within(value: object) -> list[tuple[str, nn.Module]]:
    """Return the modules that a callable is, is bound to, or holds, with the paths to them.

    >>> [path for path, _ in modules_within(functools.partial(nn.Linear(2, 2)))]
    ['']
    """
    return [(path.removeprefix("."), module) for path, module in _Search(nn.Module).within("", value, 0)]


class _Search:
    """One search, which skips cycles and stops after a fixed number of values."""

    def __init__(self, kind: type) -> None:
        self._kind = kind
        self._entered: set[int] = set()
        self._left = _MOST

    def within(self, name: str, value: object, depth: int) -> Iterator[tuple[str, Any]]:
        self._left -= 1
        kind = type(value)  # an object's __class__ may raise, or lie
        if issubclass(kind, self._kind):
            yield name, value
        elif not (value is None or issubclass(kind, _PLAIN)) and depth < _DEEPEST and self._left > 0:
            if id(value) in self._entered:  # the value contains itself
                return
            self._entered.add(id(value))
            for part, item in _parts(value):
                yield from self.within(f"{name}{part}", item, depth + 1)
            self._entered.discard(id(value))


def _parts(value: object) -> list[tuple[str, Any]]:
    """Return what a container or an object holds, with the last part of the path to it."""
    try:
        if isinstance(value, functools.partial):
            return [("", value.func), *_parts(value.args), *((f".{name}", v) for name, v in value.keywords.items())]
        if isinstance(value, types.MethodType):
            return [("", value.__self__)]
        if isinstance(value, types.FunctionType):
            cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
            return [(f".{name}", cell.cell_contents) for name, cell in cells]
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return [(f".{name}", getattr(value, name)) for name in value._fields]
        if isinstance(value, (tuple, list)):
            return [(f"[{place}]", item) for place, item in enumerate(value)]
        if dataclasses.is_dataclass(value):
            return [(f".{entry.name}", getattr(value, entry.name, None)) for entry in dataclasses.fields(value)]
        if isinstance(value, Mapping):
            return [(f"[{key!r}]", item) for key, item in value.items()]
        if isinstance(value, (set, frozenset)):
            # a set has no order
            tensors = sorted((item for item in value if isinstance(item, Tensor)), key=lambda item: list(item.shape))
            return [(f"{{{place}}}", item) for place, item in enumerate(tensors)]
        return [(f".{name}", item) for name, item in own_attributes(value).items()]
    except Exception:  # noqa: BLE001 - an object of the traced code may raise when it is inspected
        return []


def own_attributes(value: object) -> dict[str, Any]:
    """Return an object's own attributes without running any of its code."""
    attributes: dict[str, Any] = {}
    for kind in type(value).__mro__:
        names = kind.__dict__.get("__slots__", ())
        for name in [names] if isinstance(names, str) else names:
            slot = kind.__dict__.get(name)
            if isinstance(slot, types.MemberDescriptorType):
                with contextlib.suppress(AttributeError):  # nothing was assigned to it
                    attributes[name] = slot.__get__(value)
    for kind in type(value).__mro__:
        own = kind.__dict__.get("__dict__")  # a property of that name is code
        if isinstance(own, types.GetSetDescriptorType):
            return {**attributes, **own.__get__(value)}
    return attributes


_MANY = 1000
"""Larger containers are data, and are not searched."""


class Variables(nn.Module):
    """A root module whose children are the modules in a frame's variables: paths start with the variables' names.

    The children are unchanged: a module doesn't know its parent.
    """

    def __init__(self, frame: FrameType) -> None:
        super().__init__()
        self.tensors: dict[str, Tensor] = {}
        """The tensors in the variables, each under its first name."""
        first: dict[int, tuple[str, Any]] = {}
        for name, value in _held(frame):
            first.setdefault(id(value), (name, value))
        for name, value in first.values():
            (self._modules if isinstance(value, nn.Module) else self.tensors)[name] = value


def _held(frame: FrameType) -> Iterator[tuple[str, Any]]:
    """Yield the modules and tensors that variables hold: first directly, then one level inside."""
    variables = {**frame.f_locals, **{n: v for n, v in frame.f_globals.items() if n not in frame.f_locals}}
    # consoles keep earlier results under such names
    variables = {name: value for name, value in variables.items() if not name.startswith("_")}
    yield from ((name, value) for name, value in variables.items() if _counts(value))
    for name, value in variables.items():
        yield from ((f"{name}{part}", inner) for part, inner in _inside(value))


def _counts(value: object) -> bool:
    # by its type: isinstance may run code of the object
    return issubclass(type(value), (nn.Module, Tensor))


def _inside(value: Any) -> Iterator[tuple[str, Any]]:
    kind = type(value)
    if issubclass(kind, (nn.Module, Tensor, ModuleType, type)):
        return
    if issubclass(kind, (dict, list, tuple)):
        if len(value) <= _MANY:
            items = value.items() if issubclass(kind, dict) else enumerate(value)
            yield from ((f"[{key!r}]", item) for key, item in items if _counts(item))
        return
    with contextlib.suppress(AttributeError):
        attributes = object.__getattribute__(value, "__dict__")
        yield from ((f".{name}", item) for name, item in list(attributes.items()) if _counts(item))


def named_tensors(target: object) -> list[tuple[str, Any]]:
    """Return every parameter and buffer of the module that a callable is or is bound to, with their paths."""
    root = module_of(target)
    if root is None:
        return []
    return [*root.named_parameters(remove_duplicate=False), *root.named_buffers(remove_duplicate=False)]


def module_of(target: object) -> nn.Module | None:
    """Return the module that a callable is, or whose method it is."""
    owner = target if isinstance(target, nn.Module) else getattr(target, "__self__", None)
    return owner if isinstance(owner, nn.Module) else None


def source_file(target: Callable[..., object]) -> str | None:
    """Return the file of a callable's code; None if it has none."""
    function: Any = target.forward if isinstance(target, nn.Module) else target
    function = getattr(function, "__func__", function)
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return getattr(getattr(function, "__code__", None), "co_filename", None)

"""What a frame's variables hold: modules and tensors, under the names that code there has for them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import FrameType, ModuleType
from typing import Any

from torch import Tensor, nn

_MANY = 1000
"""Containers of more than this aren't looked into: they are data."""


class Variables(nn.Module):
    """A root whose children are the modules that variables hold, so that paths start with the variables' names.

    No child is changed: a module doesn't know what holds it.
    """

    def __init__(self, frame: FrameType) -> None:
        super().__init__()
        self.tensors: dict[str, Tensor] = {}
        """The tensors, each under its first name."""
        seen: set[int] = set()
        for name, value in _held(frame):
            if id(value) in seen:
                continue
            seen.add(id(value))
            if isinstance(value, nn.Module):
                self._modules[name] = value
            else:
                self.tensors[name] = value


def _held(frame: FrameType) -> Iterator[tuple[str, Any]]:
    """Yield the modules and tensors of the variables: first those that these are, then those one level inside."""
    variables = {**frame.f_locals, **{n: v for n, v in frame.f_globals.items() if n not in frame.f_locals}}
    # consoles keep earlier results under names that begin so
    variables = {name: value for name, value in variables.items() if not name.startswith("_")}
    yield from ((name, value) for name, value in variables.items() if _counts(value))
    for name, value in variables.items():
        yield from ((f"{name}{part}", inner) for part, inner in _inside(value))


def _counts(value: object) -> bool:
    # by its type: asking an object itself may run code of its own
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

"""What a call is named, and what kind of call it is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

_ELEMENT_WRITES = {torch.Tensor.__setitem__}
_names: dict[Any, str] = {}


def operation_name(func: Callable[..., Any]) -> str:
    """Return the public name of what was called: `torch.Tensor.view`, `torch.nn.functional.linear`."""
    known = _names.get(func)
    if known is None:
        known = _names[func] = _public_name(func)
    return known


def module_name(module: torch.nn.Module) -> str:
    """Return the public name of a module's class: `torch.nn.MultiheadAttention`."""
    kind = type(module)
    return _shortest(kind.__module__, kind.__qualname__, kind)


def library_call_name(frame: FrameType) -> str:
    """Return the public name of the library's function that a frame runs: `einops.rearrange`."""
    code, module = frame.f_code, str(frame.f_globals.get("__name__", ""))
    package = sys.modules.get(module.partition(".")[0])
    public = getattr(package, code.co_name, None)
    if getattr(public, "__code__", None) is code:
        return f"{module.partition('.')[0]}.{code.co_name}"
    return f"{module}.{code.co_qualname.replace('.<locals>', '')}"


def _shortest(module: str, name: str, value: object) -> str:
    """Return a name under the shortest part of its module's path that has it too."""
    parts = module.split(".")
    for count in range(1, len(parts)):
        path = ".".join(parts[:count])
        if getattr(sys.modules.get(path), name, None) is value:
            return f"{path}.{name}"
    return f"{module}.{name}"


def takes_receiver(func: Callable[..., Any]) -> bool:
    """Say whether the first argument is the receiver of a method call."""
    name = getattr(func, "__name__", "")
    return getattr(torch.Tensor, name, None) is func or name == "__get__"


def reads_attribute(func: Callable[..., Any]) -> bool:
    """Say whether the call is the reading of an attribute, as in `x.shape` and `x.mT`."""
    return getattr(func, "__name__", "") == "__get__"


def writes_elements(func: Callable[..., Any]) -> bool:
    """Say whether the call is `x[…] = y`, which returns nothing."""
    return func in _ELEMENT_WRITES


def writes_receiver(func: Callable[..., Any]) -> bool:
    """Say whether the call, by its name, writes to its first operand: `x[…] = y`, `x.add_(y)`."""
    name = getattr(func, "__name__", "")
    return writes_elements(func) or (name.endswith("_") and not name.endswith("__"))


def _public_name(func: Callable[..., Any]) -> str:
    name = getattr(func, "__name__", type(func).__name__)
    owner = getattr(func, "__self__", None)
    if name == "__get__" and owner is not None:
        return f"torch.Tensor.{owner.__name__}"
    if getattr(torch.Tensor, name, None) is func:
        return f"torch.Tensor.{name}"
    for module in (torch, torch.nn.functional):
        if getattr(module, name, None) is func:
            return f"{module.__name__}.{name}"
    return f"{getattr(func, '__module__', None) or 'torch'}.{name}"

"""What a call is named, and what kind of call it is."""

from __future__ import annotations

from collections.abc import Callable
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

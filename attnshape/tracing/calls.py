"""One call as a function mode sees it arrive, and the public name of what is called."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

_PLAIN = frozenset({int, float, bool, str, type(None), torch.Size, torch.dtype, torch.device})
_ELEMENT_WRITES = {torch.Tensor.__setitem__}
_names: dict[Any, str] = {}
OnStep = Callable[[Sequence[Tensor]], None]
"""Is called after each recorded step that is not a composite, with the tensors that it returned."""


@dataclass(slots=True)
class TracedCall:
    """A call of a function or of a module."""

    func: Callable[..., Any]
    args: tuple[Any, ...]
    keywords: Mapping[str, Any]
    path: str | None
    """The path of the module that makes the call, or that is called."""
    operands: list[Tensor]
    opaque: str | None = None
    """Why nothing inside the call can be seen, if that is known."""

    @property
    def is_module(self) -> bool:
        """Whether a module is called."""
        return isinstance(self.func, nn.Module)

    @property
    def name(self) -> str:
        """The public name of what is called."""
        return module_name(self.func) if isinstance(self.func, nn.Module) else operation_name(self.func)


def tensors_in(*values: object) -> list[Tensor]:
    """Return the tensors in the values, within tuples, lists and dicts, in order."""
    found: list[Tensor] = []
    _collect(values, found)
    return found


def _collect(values: Iterable[object], found: list[Tensor]) -> None:
    for value in values:
        kind = type(value)
        # most values have exactly these types; comparing types is faster than isinstance
        if kind is Tensor or kind is nn.Parameter:
            found.append(value)  # type: ignore[arg-type]
        elif kind in _PLAIN or (kind is dict and not value):
            continue
        elif kind is tuple or kind is list:
            _collect(value, found)  # type: ignore[arg-type]
        elif isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (tuple, list)):
            _collect(value, found)
        elif isinstance(value, Mapping):
            _collect(value.values(), found)


def operation_name(func: Callable[..., Any]) -> str:
    """Return the public name of what was called: `torch.Tensor.view`, `torch.nn.functional.linear`."""
    if func not in _names:
        _names[func] = _public_name(func)
    return _names[func]


def module_name(module: torch.nn.Module) -> str:
    """Return the public name of a module's class: `torch.nn.MultiheadAttention`."""
    kind = type(module)
    packages = itertools.accumulate(kind.__module__.split("."), lambda path, part: f"{path}.{part}")
    # the shortest prefix of its module's path that exports it
    exports = (path for path in packages if getattr(sys.modules.get(path), kind.__qualname__, None) is kind)
    return f"{next(exports, kind.__module__)}.{kind.__qualname__}"


def library_call_name(frame: FrameType) -> str:
    """Return the public name of the library function that a frame runs: `einops.rearrange`."""
    code, module = frame.f_code, str(frame.f_globals.get("__name__", ""))
    package = sys.modules.get(module.partition(".")[0])
    public = getattr(package, code.co_name, None)
    if getattr(public, "__code__", None) is code:
        return f"{module.partition('.')[0]}.{code.co_name}"
    return f"{module}.{code.co_qualname.replace('.<locals>', '')}"


def takes_receiver(func: Callable[..., Any]) -> bool:
    """Return whether the first argument is the receiver of a method call."""
    name = getattr(func, "__name__", "")
    return getattr(torch.Tensor, name, None) is func or name == "__get__"


def reads_attribute(func: Callable[..., Any]) -> bool:
    """Return whether the call reads an attribute, such as `x.shape` or `x.mT`."""
    return getattr(func, "__name__", "") == "__get__"


def writes_elements(func: Callable[..., Any]) -> bool:
    """Return whether the call is `x[…] = y`, which returns nothing."""
    return func in _ELEMENT_WRITES


def writes_receiver(func: Callable[..., Any]) -> bool:
    """Return whether the call's name says that it writes to its first operand: `x[…] = y`, `x.add_(y)`."""
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

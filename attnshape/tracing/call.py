"""One call as the recorder sees it arrive."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnshape.tracing.operations import module_name, operation_name

_PLAIN = frozenset({int, float, bool, str, type(None), torch.Size, torch.dtype, torch.device})


@dataclass(slots=True)
class Call:
    """A function's call, or a module's."""

    func: Callable[..., Any]
    args: tuple[Any, ...]
    keywords: Mapping[str, Any]
    path: str | None
    """The path of the module that it is made in, or that is called."""
    operands: list[Tensor]
    opaque: str | None = None
    """Why nothing of what happens inside can be seen, where that is known."""

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
        # most values are of exactly these, which is told faster than what they are instances of
        if kind is Tensor or kind is nn.Parameter:
            found.append(value)  # type: ignore[arg-type]
        elif kind in _PLAIN:
            continue
        elif kind is tuple or kind is list:
            _collect(value, found)  # type: ignore[arg-type]
        elif kind is dict and not value:
            continue
        elif isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (tuple, list)):
            _collect(value, found)
        elif isinstance(value, Mapping):
            _collect(value.values(), found)

"""One call as the recorder sees it arrive."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from attnshape.tracing.operations import module_name, operation_name

_PLAIN = frozenset({int, float, bool, str, type(None)})


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
        if isinstance(value, Tensor):
            found.append(value)
        elif type(value) in _PLAIN:
            continue
        elif isinstance(value, (tuple, list)):
            _collect(value, found)
        elif isinstance(value, Mapping):
            _collect(value.values(), found)

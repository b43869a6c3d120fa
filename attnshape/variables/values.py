"""What is kept of a variable's value: a tensor's shape and type, a number, a tuple of such, or only its kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_MOST_ITEMS = 64
"""Of a tuple or list; what has more is data."""


@dataclass(frozen=True, slots=True)
class SeenTensor:
    """A tensor: its shape, and its type without `torch.`."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class SeenItems:
    """The values in a tuple or a list."""

    kind: str
    """`tuple`, `list`, or the name of the class that is one."""
    items: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class SeenOther:
    """Anything else, by the name of its type."""

    type: str


Value = SeenTensor | SeenItems | SeenOther | int | None


def seen(value: object, depth: int = 2) -> Value:
    """Return what is kept of a value; tuples and lists are looked into `depth` deep.

    >>> seen((torch.ones(2, 3), 4, None))
    SeenItems(kind='tuple', items=(SeenTensor(shape=(2, 3), dtype='float32'), 4, None))
    >>> seen(True), seen("a")
    (SeenOther(type='bool'), SeenOther(type='str'))
    """
    kind = type(value)
    if value is None or kind is int:
        return value  # type: ignore[return-value]  # what `kind` says, mypy doesn't see
    if issubclass(kind, Tensor):
        return seen_tensor(value)  # type: ignore[arg-type]  # likewise
    # none of the value's own methods is called: what it does in them isn't meant to happen here
    plain: Any = tuple if issubclass(kind, tuple) else list if issubclass(kind, list) else None
    if plain is not None and depth and plain.__len__(value) <= _MOST_ITEMS:
        return SeenItems(kind.__name__, tuple(seen(item, depth - 1) for item in plain.__iter__(value)))
    return SeenOther(kind.__name__)


def seen_tensor(tensor: Tensor) -> SeenTensor | SeenOther:
    """Return a tensor's shape and type, unseen by whoever watches torch's calls; only its kind where it is nested."""
    with torch._C.DisableTorchFunction():
        if tensor.is_nested:
            return SeenOther(type(tensor).__name__)
        return SeenTensor(tuple(map(int, tensor.shape)), str(tensor.dtype).removeprefix("torch."))

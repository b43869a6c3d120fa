"""A target: code that can be built at any sizes and run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType

import torch

from attnshape.dims.sizes import Sizes
from attnshape.errors import AttnshapeError, Option
from attnshape.options.spec import RunOptions
from attnshape.tracing.runner import Runnable


@dataclass(frozen=True)
class Target:
    """Code that can be built at any sizes and run."""

    label: str
    sizes: Sizes
    """The user's sizes, the defaults, and the sizes derived from them."""
    build: Callable[[Mapping[str, int], RunOptions], Runnable]
    """Builds the code and its arguments at the given sizes."""
    is_builtin: bool
    """Whether it is a mechanism of the catalog, whose own annotations are checked as it runs."""
    resizable: bool = True
    """Whether it can be built at other sizes; False if the user passed actual tensors."""
    module: ModuleType | None = None
    """The Python module that defines it; None for a mechanism of the catalog."""
    prefers_meta: bool = False
    """Whether it is so large that a trace runs it on the meta device unless the user names another."""
    even: tuple[str, ...] = ()
    """Independent symbols that are known to be even, as a head's width where its features rotate in pairs."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Symbols that are known to count something, such as layers, and the fewest that show all there is.

    They are no part of any axis.
    """
    uneven: tuple[str, ...] = ()
    """Symbols in `counts` of layers that differ without regularity: with others, the steps aren't the user's."""
    found: str = ""
    """The flags that say what was worked out of its arguments; empty if nothing was."""
    notes: tuple[str, ...] = ()
    """What limits its results, such as packages that aren't installed."""
    is_search_cut_short: bool = False
    """Whether time ended the search for its arguments, so that a quieter machine may find other ones."""


def require_device(name: str) -> None:
    """Raise AttnshapeError if this machine, or this build of torch, has no such device."""
    kind, _, index = name.partition(":")
    if kind != "cuda":
        return
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count == 0:
        hint = ("leave ", Option("device"), " out: cpu")
        raise AttnshapeError(f"there is no device {name!r}: torch finds no CUDA here", hint)
    if index and int(index) >= count:
        raise AttnshapeError(f"there is no device {name!r}: torch finds {count}", f"the last is cuda:{count - 1}")

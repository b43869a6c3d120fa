"""What the user asked to run, and what it becomes: a target that can be built at any sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from attnshape.axis import AxisExpression
    from attnshape.tracing.runner import Runnable


@dataclass(frozen=True)
class Request:
    """A target as typed, with what belongs to it."""

    target: str
    init: str | None = None
    inputs: tuple[str, ...] = ()
    arguments: Mapping[str, str] = field(default_factory=dict)
    """`--with NAME=PYTHON`."""
    given: Mapping[str, int] = field(default_factory=dict)
    """The sizes from flags, by letter."""
    own: Mapping[str, AxisExpression] = field(default_factory=dict)
    """The author's own letters."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What only built-in mechanisms take: causal, padding, mask_value, dropout, bias."""
    callable: Any = None
    """What to run, where Python code gave it; `target` is its name then."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Arguments that are given as they are, by parameter."""


@dataclass(frozen=True)
class Placement:
    """Where and how a target is built and run."""

    device: torch.device
    dtype: torch.dtype
    seed: int
    train: bool
    grad: bool = False
    """Whether what gradients need is kept."""


@dataclass(frozen=True)
class Target:
    """Something that can be built anew at any sizes."""

    label: str
    used: tuple[str, ...]
    """The size symbols that it depends on."""
    given: Mapping[str, int]
    """The sizes from flags, by letter, as far as they concern it."""
    build: Callable[[Mapping[str, int], Placement], Runnable]
    library: bool
    """Whether its code was annotated and is checked as it runs."""
    varies: bool = True
    """Whether it can be built at other sizes; where tensors are given as they are, it can't."""

"""How a target is run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """Where, in what type, from which seed, and what is expected."""

    device: str = "cpu"
    dtype: str = "float32"
    seed: int = 0
    train: bool = False
    grad: bool = False
    """Whether what gradients need is kept, as in training."""
    expect: tuple[str, ...] = ()
    command: str = "attnshape trace"

"""Every probe, in the order in which they are made."""

from __future__ import annotations

from types import ModuleType

from attnshape.probes import (
    batch,
    biases,
    causality,
    heads,
    inputs,
    masks,
    merging,
    projections,
    reproduced,
    rotations,
    scale,
    shared,
    softmax,
    state,
    tokens,
    unused,
)

PROBES: tuple[ModuleType, ...] = (
    batch,
    tokens,
    heads,
    merging,
    shared,
    scale,
    unused,
    softmax,
    masks,
    causality,
    reproduced,
    rotations,
    biases,
    inputs,
    projections,
    state,
)
"""Each has `WHAT` it looks at, the `CODES` that it may find, and `examine`."""

"""Every probe, in the order in which they are made."""

from __future__ import annotations

from types import ModuleType

from attnshape.probes import batch, causality, heads, masks, merging, scale, shared, softmax, state, tokens, unused

PROBES: tuple[ModuleType, ...] = (
    batch,
    tokens,
    heads,
    merging,
    scale,
    unused,
    softmax,
    masks,
    causality,
    shared,
    state,
)
"""Each has `WHAT` it looks at, the `CODES` that it may find, and `examine`."""

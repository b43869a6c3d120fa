"""Every probe, in the order in which they are made."""

from __future__ import annotations

from types import ModuleType

from attnshape.probes import batch, heads, merging, scale, softmax, tokens, unused

PROBES: tuple[ModuleType, ...] = (
    batch,
    tokens,
    heads,
    merging,
    scale,
    unused,
    softmax,
)
"""Each has `WHAT` it looks at, the `CODES` that it may find, and `examine`."""

"""The kinds of failure: one line each, in the order in which they are tried."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from attnshape.failing.broadcasting import broadcasting
from attnshape.failing.contraction import contraction, tensordot
from attnshape.failing.devices import devices
from attnshape.failing.dtypes import dtypes
from attnshape.failing.einsum import einsum
from attnshape.failing.elements import unflattened, wrong_number
from attnshape.failing.expanding import expanding, writing
from attnshape.failing.finding import Finding
from attnshape.failing.indices import indices
from attnshape.failing.joining import joining
from attnshape.failing.multihead import multihead
from attnshape.failing.patterns import pattern
from attnshape.failing.ranks import ranks
from attnshape.failing.scene import Scene
from attnshape.failing.splitting import assertion, split_sizes, uneven_parts, unpacking
from attnshape.failing.strides import strides
from attnshape.failing.widths import channels, normalized

KINDS: tuple[Callable[[Scene], Finding | None], ...] = (
    devices,
    dtypes,
    multihead,
    einsum,
    contraction,
    tensordot,
    strides,
    wrong_number,
    unflattened,
    split_sizes,
    expanding,
    writing,
    joining,
    indices,
    normalized,
    channels,
    ranks,
    broadcasting,
    pattern,
    unpacking,
    assertion,
)


def explain(scene: Scene) -> Finding | None:
    """Return why the call failed, as the first kind that knows tells it; None where none does."""
    found = next((found for kind in KINDS if (found := kind(scene)) is not None), None)
    uneven = uneven_parts(scene) if found is not None and found.disagree else None
    return replace(found, explanation=f"{found.explanation}; {uneven}") if found is not None and uneven else found

"""Layers that are made for another width than their input has."""

from __future__ import annotations

import re

from attnshape.failing.finding import Finding, transposed
from attnshape.failing.scene import Scene, integers
from attnshape.failing.words import axis_of, quoted, size, sized

_CHANNELS = re.compile(r"to have (\d+) channels, but got (\d+) channels")
_NORMS = ("layer_norm", "rms_norm")


def normalized(scene: Scene) -> Finding | None:
    """Explain a normalization over another width than the last axes have."""
    party = scene.operand(0, "input")
    if scene.operation not in _NORMS or party is None:
        return None
    try:
        widths = list(integers(scene.argument(1, "normalized_shape")))
    except TypeError:
        return None
    if len(widths) > party.rank:
        return Finding(f"{scene.operation} is over {len(widths)} axes: {quoted(party)} has {party.rank}")
    wrong = [back for back in range(1, len(widths) + 1) if widths[-back] != party.shape[-back]]
    if not wrong:
        return None

    def width(back: int) -> str:
        text = scene.formula(lambda call: list(integers(call.args[1]))[-back], widths[-back])
        return sized(text, widths[-back])

    words = ", ".join(f"{width(back)}: {axis_of(party, party.rank - back)}" for back in wrong)
    swapped = transposed(party, 1, 2) if party.rank == 3 else []
    return Finding(
        f"{scene.operation} is over a width of {words}",
        {party.place: tuple(sorted(party.rank - back for back in wrong))},
        tuple(swapped),
    )


def channels(scene: Scene) -> Finding | None:
    """Explain a convolution over another number of channels than the input has."""
    found = _CHANNELS.search(scene.message)
    party, weight = scene.operand(0, "input"), scene.operand(1, "weight")
    if not found or party is None or weight is None or party.rank < 2:
        return None
    axis = 1 if party.rank == weight.rank else 0
    swapped = transposed(party, 1, 2) if party.rank == 3 else []
    return Finding(
        f"{scene.operation} takes {sized(weight.record.axes[1].expression, weight.shape[1])} channels: axis {axis} of "
        f"{quoted(party)} is {size(party, axis)}",
        {party.place: (axis,), weight.place: (1,)},
        tuple(swapped),
    )

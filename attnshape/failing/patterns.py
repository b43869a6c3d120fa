"""einops' patterns that don't fit their tensor."""

from __future__ import annotations

import re

from attnshape.failing.finding import Finding
from attnshape.failing.scene import Scene
from attnshape.failing.words import axes, quoted, size

_CHUNKS = re.compile(r"can't divide axis of length (\d+) in chunks of (\d+)")
_RANK = re.compile(r"[Ee]xpected (\d+) dims\. Received (\d+)-dim")


def pattern(scene: Scene) -> Finding | None:
    """Explain a pattern that names other axes than its tensor has, or splits one that doesn't divide."""
    if type(scene.failure.error).__name__ != "EinopsError" or len(scene.parties) != 1:
        return None
    party = scene.parties[0]
    if found := _RANK.search(scene.message):
        return Finding(f"{quoted(party)} has {axes(party)}: the pattern names {found[1]}")
    if found := _CHUNKS.search(scene.message):
        split = tuple(axis for axis, number in enumerate(party.shape) if number == int(found[1]))
        if len(split) == 1:
            return Finding(
                f"{size(party, split[0])} of {quoted(party)} isn't a multiple of {found[2]}", {party.place: split}
            )
    return None

"""Operations that name an axis which isn't there, or take another number of axes."""

from __future__ import annotations

import re

from attnshape.failing.finding import Finding
from attnshape.failing.scene import Scene
from attnshape.failing.words import axes, counted, quoted

_RANGE = re.compile(r"Dimension out of range \(expected to be in range of \[(-?\d+), (-?\d+)\], but got (-?\d+)\)")
_INDICES = re.compile(r"too many indices for tensor of dimension (\d+)")
_ORDER = re.compile(r"input\.dim\(\) = (\d+) is not equal to len\(dims\) = (\d+)")
_TAKES = re.compile(
    r"[Ee]xpected (.+?) input to (\w+), but got input of size|self must be a (matrix)|tensor with (<= 2) dim"
)
_SAME_RANK = "Index tensor must have the same number of dimensions"


def ranks(scene: Scene) -> Finding | None:
    """Explain an axis that isn't there."""
    if not scene.parties:
        return None
    party = scene.parties[0]
    has = f"{quoted(party)} has {axes(party)}"
    if found := _RANGE.search(scene.message):
        return Finding(f"{has}: {scene.operation} names axis {found[3]}, which isn't there")
    if found := _ORDER.search(scene.message):
        return Finding(f"{has}: {scene.operation} puts {counted(int(found[2]), 'axis', 'axes')} in order")
    if _INDICES.search(scene.message):
        return Finding(f"{has}: more of them are indexed than there are")
    if found := _TAKES.search(scene.message):
        takes = found[1] or ("2 axes" if found[3] else "at most 2 axes")
        return Finding(f"{has}: {scene.operation} takes {takes}{' input' if found[1] else ''}")
    if _SAME_RANK in scene.message and len(scene.parties) > 1:
        other = scene.parties[1]
        return Finding(
            f"the index of {scene.operation} must have as many axes as what it reads: {has}, "
            f"{quoted(other)} has {axes(other)}"
        )
    return None

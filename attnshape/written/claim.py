"""A claim at its place in the source, with what was measured of that of which it is made."""

from __future__ import annotations

from dataclasses import dataclass

from attnshape.written.annotations import Annotation
from attnshape.written.fitting import Demand

PROSE, LOOSE = 0.7, 0.9
"""What it counts that a claim is wrong: one in prose, one of which several tensors may be meant; 1 for all others."""


@dataclass(frozen=True)
class Written:
    """A claim at its place: what is written, what it is said of, in words, and what was measured."""

    line: int
    column: int
    text: str
    said_of: str
    written: str
    """The same, as it stands on the line."""
    demand: Demand
    annotation: Annotation | None = None

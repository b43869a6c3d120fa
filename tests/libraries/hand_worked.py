"""The format of the tables of signatures, derived by hand from a module's source and its paper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class HandWorked:
    """The signatures that a case must have, in its size symbols, and the sizes to trace it at."""

    sizes: tuple[Mapping[str, int], ...]
    outputs: tuple[str, ...]
    """The signatures of the returned tensors, in order."""
    scores: tuple[str, ...] = ()
    """Of each step that makes scores, in order."""
    named: str | None = None
    """The variable with the scores; if None, the scores are the steps with that role."""
    avoided: tuple[str, ...] = ()
    """Of the scores that each fused step avoids, in order."""
    without: str | None = None
    """Why no step makes scores."""

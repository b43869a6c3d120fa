"""What was worked out by hand, from a module's source and its paper, of one case: the form that the tables are in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class HandWorked:
    """The signatures that a case must have, in its size symbols, and the sizes to trace it at."""

    sizes: tuple[Mapping[str, int], ...]
    outputs: tuple[str, ...]
    """Of each tensor that the target returns, in order."""
    scores: tuple[str, ...] = ()
    """Of each step that makes scores, in order."""
    named: str | None = None
    """The variable that holds the scores; where None, they are the steps with the role."""
    avoided: tuple[str, ...] = ()
    """Of the scores that each fused step avoids, in order."""
    without: str | None = None
    """Why no step makes scores."""

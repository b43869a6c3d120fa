"""How a file is to be annotated. Imports no parser, which takes long to import."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Existing = Literal["keep", "replace", "check"]
EXISTING: tuple[Existing, ...] = ("keep", "replace", "check")
STYLE_NAMES = ("jaxtyping", "comment")


@dataclass(frozen=True)
class Asked:
    """What is to be written."""

    style: str
    existing: Existing
    """What is done with signatures that the source has already."""
    matched: bool
    """Whether axes are written that were only matched to a size."""
    enforce: bool
    """Whether what has annotations checked is written too."""

"""What is known of one number: its expression, and how."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from attnshape.model import Known


@dataclass(frozen=True)
class Formula:
    """An expression, and how it is known."""

    text: str
    known: Known
    missed: bool = False
    """Whether the number moved with the sizes and no formula gave it, or is known from one run only."""
    doubtful: bool = False
    """Whether it is a number that may follow from a size that wasn't varied."""
    where: str | None = None
    """The comparison of a size with another, or a number, under which it holds; None where it holds at all sizes."""


def matched(actual: int, sizes: Mapping[str, int]) -> Formula:
    """Return what can be said of an axis from one run alone: that it equals exactly one size, or its number."""
    equal = [letter for letter, size in sizes.items() if size == actual]
    return (
        Formula(equal[0], "matched") if actual > 1 and len(equal) == 1 else Formula(str(actual), "literal", missed=True)
    )

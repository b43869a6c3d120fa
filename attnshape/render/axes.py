"""Axes in words."""

from __future__ import annotations

from attnshape.model import TensorRecord
from attnshape.render.text import visible

HEADS = ("H", "Hkv")
"""The expressions of axes that count heads, whatever else the trace calls so."""

AxisSize = tuple[str, int]
"""An axis' expression and its size."""


def pairs(tensor: TensorRecord) -> list[AxisSize]:
    """Return a tensor's axes."""
    return list(zip((axis.expression for axis in tensor.axes), tensor.shape, strict=False))


def named(axis: AxisSize) -> str:
    """Return an axis with its number.

    >>> named(("Dk", 64)), named(("1", 1))
    ('Dk=64', '1')
    """
    expression, size = axis
    return str(size) if expression.isdecimal() else f"{visible(expression)}={size}"


def place(index: int, rank: int) -> str:
    """Return how one speaks of the axis of that index.

    >>> place(3, 4), place(2, 4), place(0, 4), place(1, 4)
    ('the last axis', 'the second last axis', 'the first axis', 'axis 1')
    """
    if index == rank - 1:
        return "the last axis"
    if index == 0:
        return "the first axis"
    return "the second last axis" if index == rank - 2 else f"axis {index}"

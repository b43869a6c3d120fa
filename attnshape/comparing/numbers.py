"""Tells a call with other numbers, such as softmax over another axis, from one that is only written differently."""

from __future__ import annotations

import re

from attnshape.comparing.outline import OutlineStep

_NUMBER = re.compile(r"(?<![\w.)\]])-?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w.])")
_SEEN_BY_SHAPE = frozenset(
    (
        *("view", "reshape", "flatten", "unflatten", "rearrange", "unsqueeze", "squeeze", "expand"),
        *("transpose", "permute", "swapaxes", "swapdims", "movedim", "moveaxis"),
    )
)
"""Operations whose numbers do nothing that the result's shape, strides and storage don't tell."""


def masked(text: str) -> str:
    """Return an expression with 0 in place of each number.

    >>> masked("softmax(x, dim=-1) * 0.5")
    'softmax(x, dim=0) * 0'
    """
    return _NUMBER.sub("0", text)


def others(old: tuple[OutlineStep, str], new: tuple[OutlineStep, str]) -> bool:
    """Say whether some number in a step's own text is another; an axis counted from either end is the same."""
    (step, before), (other, after) = old, new
    if {step.operation, other.operation} & _SEEN_BY_SHAPE:
        return False
    ranks = {len(output.shape) for one in (step, other) for output in one.outputs}
    pairs = zip(map(float, _NUMBER.findall(before)), map(float, _NUMBER.findall(after)), strict=False)
    return any(one != two and not any(_same_axis(one, two, rank) for rank in ranks) for one, two in pairs)


def _same_axis(one: float, two: float, rank: int) -> bool:
    axes = range(-rank, rank)
    return one in axes and two in axes and one % rank == two % rank

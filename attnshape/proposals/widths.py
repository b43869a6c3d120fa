"""Reads from an error of torch which width a layer has that isn't among the sizes of the constructor."""

from __future__ import annotations

import re
from collections.abc import Mapping

from attnshape.errors import exception_text

_MISMATCHES = (
    re.compile(r"mat1 and mat2 shapes cannot be multiplied \(\d+x(?P<got>\d+) and (?P<wanted>\d+)x\d+\)"),
    re.compile(r"normalized_shape=\[(?P<wanted>\d+)\].* got input of size\[(\d+, )*(?P<got>\d+)\]"),
    re.compile(r"to have (?P<wanted>\d+) channels, but got (?P<got>\d+) channels"),
)


def with_width_of_layer(tensors: Mapping[str, str], error: BaseException, width: int) -> dict[str, str] | None:
    """Return descriptions with the number that the failing layer wants in the place of the width.

    Such a layer is as wide as a constant of its module, `nn.Linear(n_embd, head_size)`, or as an image has channels.

    Args:
        tensors: The descriptions of a call that failed.
        error: Why it failed.
        width: The number that `D` had.

    Returns:
        The other descriptions; None where the failure is of another kind.

    >>> error = RuntimeError("mat1 and mat2 shapes cannot be multiplied (20x32 and 384x8)")
    >>> with_width_of_layer({"x": "B L D", "mask": "L L"}, error, 32)
    {'x': 'B L 384', 'mask': 'L L'}
    """
    found = next(filter(None, (pattern.search(exception_text(error)) for pattern in _MISMATCHES)), None)
    if found is None or int(found["got"]) != width:
        return None
    changed = {name: re.sub(r"\bD\b", found["wanted"], text) for name, text in tensors.items()}
    return changed if changed != tensors else None

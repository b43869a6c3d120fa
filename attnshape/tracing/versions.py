"""Which operand a call has written to in place, by the versions that tensors count."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from attnshape.tracing.mapped import is_mapped
from attnshape.tracing.operations import writes_receiver


def version(tensor: Tensor) -> int | None:
    """Return how often a tensor was written to; None for one that doesn't count that."""
    try:
        return None if is_mapped(tensor) else tensor._version
    except RuntimeError:  # one of inference mode
        return None


def written(func: Callable[..., Any], operands: Sequence[Tensor], versions: Sequence[int | None]) -> Tensor | None:
    """Return the first operand that was written to in place, given the versions before the call."""
    for operand, before in zip(operands, versions, strict=True):
        if before is not None and operand._version != before:
            return operand
    return operands[0] if operands and versions[0] is None and writes_receiver(func) else None

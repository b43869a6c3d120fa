"""How many bytes one operation of torch reads and writes, as terms: one for each operand and each result.

Each operand is read once and each result written once, whatever the caches of a processor do. A view moves nothing, an
operation in place reads and writes its operand. What is chosen by indices is counted as far as it is chosen: an
embedding reads the rows of its tokens, not its table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from attnshape.cost.operations import tensors_within
from attnshape.tracing.operations import (
    ALLOCATIONS,
    INDEXED_ADDITIONS,
    INDEXED_WRITES,
    LOOKUPS,
    OVERWRITES,
    base_name,
)
from attnshape.tracing.tensor_access import layout_of, storage_of


def bytes_moved(
    func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: object, before: set[int]
) -> tuple[int, ...] | None:
    """Return the bytes that one call below autograd moves; None if a tensor's layout doesn't show them.

    Args:
        func: The operator, such as `torch.ops.aten.add_.Tensor`.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        result: What it returned.
        before: The storages of its operands, by `_cdata`.
    """
    name = base_name(getattr(getattr(func, "overloadpacket", func), "__name__", ""))
    results = tensors_within(result)
    operands = list({id(one): one for one in tensors_within((*args, *kwargs.values()))}.values())
    schema = getattr(func, "_schema", None)  # operators of a higher order have none
    writes = schema is not None and schema.is_mutable
    if name in ALLOCATIONS or (results and not writes and all(_shares(one, before) for one in results)):
        return ()
    if any(layout_of(one) is not None for one in (*operands, *results)):
        return None
    if name in LOOKUPS and operands:
        chosen = sum(map(_bytes, results))
        return _positive(min(_bytes(operands[0]), chosen), *map(_bytes, (*operands[1:], *results)))
    if writes and name in INDEXED_WRITES and len(operands) > 1:
        # all but the elements at the indices stay as they are
        written = _bytes(operands[-1]) if operands[-1].numel() > 1 else _bytes(operands[0])
        return _positive(*map(_bytes, operands[1:]), *[written] * (1 + (name in INDEXED_ADDITIONS)))
    if writes and name in OVERWRITES and operands:
        operands = operands[1:]
    return _positive(*map(_bytes, (*operands, *results)))


def _positive(*terms: int) -> tuple[int, ...]:
    return tuple(term for term in terms if term)


def _shares(tensor: Tensor, before: set[int]) -> bool:
    storage = storage_of(tensor)
    return storage is not None and storage._cdata in before


def _bytes(tensor: Tensor) -> int:
    """Return the bytes of a tensor's elements, each counted once where it is expanded."""
    axes = zip(tensor.shape, tensor.stride(), strict=True)
    return math.prod(size if stride or not size else 1 for size, stride in axes) * tensor.itemsize

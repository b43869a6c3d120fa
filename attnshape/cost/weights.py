"""How many attention weights an operation makes, and how many of them a mask sets to exactly 0."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from attnshape.tracing.operations import SOFTMAXES, base_name

_FUSED = "scaled_dot_product"


def count_weights(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: object) -> tuple[int, int]:
    """Return how many weights a softmax or a fused attention makes, and how many of them are exactly 0.

    Of a tensor on meta, which has no numbers, none is counted.

    Args:
        func: The operator, such as `torch.ops.aten._softmax.default`.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        result: What it returned.

    >>> scores = torch.tensor([[1.0, -torch.inf], [1.0, 2.0]])
    >>> count_weights(torch.ops.aten._softmax.default, (scores, -1, False), {}, scores.softmax(-1))
    (4, 1)
    """
    name = getattr(getattr(func, "overloadpacket", func), "__name__", "")
    if base_name(name) in SOFTMAXES and isinstance(result, Tensor):
        return (result.numel(), _count(result == 0)) if not result.is_meta else (0, 0)
    if _FUSED in name and "backward" not in name:
        return _of_fused(func, args, kwargs)
    return 0, 0


def _of_fused(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[int, int]:
    named = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | dict(kwargs)
    query, key = named["query"], named["key"]
    rows, columns = query.shape[-2], key.shape[-2]
    outer = math.prod(query.shape[:-2])
    mask = named.get("attn_mask", named.get("attn_bias"))
    if named.get("is_causal"):
        visible = sum(min(row + 1, columns) for row in range(rows))
        return outer * rows * columns, outer * (rows * columns - visible)
    if mask is None or mask.is_meta:
        return outer * rows * columns, 0
    hidden = ~mask if mask.dtype is torch.bool else mask == -math.inf
    return outer * rows * columns, _count(hidden.expand(*query.shape[:-2], rows, columns))


def _count(values: Tensor) -> int:
    return int(values.sum())

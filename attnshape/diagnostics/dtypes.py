"""Operands whose devices or dtypes an operation refuses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from attnshape.diagnostics.broadcasting import fixes_to_broadcast
from attnshape.diagnostics.context import FailedOperand, FailureContext
from attnshape.diagnostics.diagnosis import Diagnosis, Fix, change_operand, quoted, replaced
from attnshape.diagnostics.indexing import embedding_operands
from attnshape.model.formatting import join_words

_FUSED = "scaled_dot_product_attention"
_MESSAGES = re.compile(
    r"dtype|scalar type|boolean mask|boolean tensor|not implemented for '|type Byte|tensors used as indices",
    re.IGNORECASE,
)
_CASTS = {
    "float32": ".float()",
    "float64": ".double()",
    "float16": ".half()",
    "bfloat16": ".bfloat16()",
    "bool": ".bool()",
    "int64": ".long()",
}
_MASKS = {"masked_fill": (1, "mask"), "where": (0, "condition"), _FUSED: (3, "attn_mask")}
_INDICES = {"gather": (2, "index"), "index_select": (2, "index")}


def devices(context: FailureContext) -> Diagnosis | None:
    """Explain operands on different devices."""
    firsts = {operand.record.device: operand for operand in reversed(context.operands)}
    if len(firsts) < 2 or "device" not in context.message.lower():
        return None
    in_order = sorted(firsts.values(), key=lambda operand: operand.position)
    named = join_words([f"{quoted(operand)} is on {operand.record.device}" for operand in in_order])
    away = [operand for operand in context.operands if operand.record.device.partition(":")[0] != context.device]
    home = [operand for operand in context.operands if operand not in away and operand.text is not None]
    fixes: list[Fix] = []
    # nothing can be copied from the meta device
    if len(away) == 1 and home and away[0].record.device != "meta":
        fixes = change_operand(
            away[0],
            f".to({home[0].text}.device)",
            # its placeholder may be on the meta device
            lambda tensor, tensors: torch.zeros_like(tensor, device=tensors[home[0].position].device),
        )
    return Diagnosis(f"the operands of {context.operation} are on different devices: {named}", fixes=fixes)


def dtypes(context: FailureContext) -> Diagnosis | None:
    """Explain dtypes that an operation refuses."""
    if not _MESSAGES.search(context.message) or "device" in context.message or not context.operands:
        return None
    return _mask(context) or _index(context) or _mixed(context) or _not_implemented(context)


def _mask(context: FailureContext) -> Diagnosis | None:
    mask = context.operand(*_MASKS.get(context.operation, (None,)))
    allowed = ["bool", *([context.operands[0].record.dtype] if context.operation == _FUSED else [])]
    if mask is None or mask.record.dtype in allowed:
        return None
    wanted = "bool" if context.operation != _FUSED else "bool, or have the queries' dtype"
    # for other numbers nobody knows which positions they hide
    fixes = _as_bool(context, mask) if mask.min_and_max is not None and set(mask.min_and_max) <= {0, 1} else ()
    problem = f"the mask of {context.operation} must be {wanted}: {quoted(mask)} is {mask.record.dtype}"
    return Diagnosis(problem, fixes=fixes)


def _as_bool(context: FailureContext, mask: FailedOperand) -> Iterator[Fix]:
    yield from change_operand(mask, ".bool()", lambda tensor, _: tensor.bool())
    rank = max(operand.rank for operand in context.operands)
    for fix in fixes_to_broadcast(mask, rank, True):
        yield replace(fix, text=f"{fix.text}.bool()", tensors=partial(_then_bool, mask, fix), rank=fix.rank + 1)


def _then_bool(mask: FailedOperand, fix: Fix, tensors: list[Tensor]) -> list[Tensor]:
    changed = fix.tensors(tensors)
    return replaced(changed, mask, changed[mask.position].bool())


def _index(context: FailureContext) -> Diagnosis | None:
    index, table = context.operand(*_INDICES.get(context.operation, (None,))), context.operands[0]
    if context.operation == "embedding":
        index, weight = embedding_operands(context)
        table = weight or table
    if context.operation in ("getitem", "setitem") and "indices" in context.message and len(context.operands) > 1:
        index = context.operands[1]
    if index is None or index.record.dtype in ("int64", "int32"):
        return None
    rows = min(table.shape, default=0)
    in_range = index.min_and_max is not None and all(0 <= extreme < rows for extreme in index.min_and_max)
    return Diagnosis(
        f"the indices of {context.operation} must be integers: {quoted(index)} is {index.record.dtype}",
        fixes=change_operand(index, ".long()", lambda tensor, _: tensor.long()) if in_range else (),
    )


def _mixed(context: FailureContext) -> Diagnosis | None:
    firsts: dict[str, FailedOperand] = {}
    for operand in context.operands:
        firsts.setdefault(operand.record.dtype, operand)
    if len(firsts) < 2:
        return None
    named = join_words([f"{quoted(operand)} is {dtype}" for dtype, operand in firsts.items()])
    return Diagnosis(f"the operands of {context.operation} have different dtypes: {named}", fixes=_casts(context))


def _casts(context: FailureContext) -> Iterator[Fix]:
    """Yield the cast of the one operand that doesn't have the floating-point dtype of the others."""
    floating = {operand.record.dtype for operand in context.operands if "float" in operand.record.dtype}
    home = context.dtype if context.dtype in floating else (floating.pop() if len(floating) == 1 else None)
    odd = [operand for operand in context.operands if operand.record.dtype not in (home, "bool")]
    if len(odd) == 1 and home in _CASTS:
        dtype = getattr(torch, home)
        yield from change_operand(odd[0], _CASTS[home], lambda tensor, _: tensor.to(dtype))


def _not_implemented(context: FailureContext) -> Diagnosis | None:
    if "not implemented for" not in context.message:
        return None
    operand = context.operands[0]
    dtype = operand.record.dtype
    fixes = change_operand(operand, ".float()", lambda tensor, _: tensor.float()) if "float" not in dtype else ()
    problem = f"{context.operation} isn't implemented for {dtype}, the dtype of {quoted(operand)}"
    return Diagnosis(problem, fixes=fixes)

"""Operands of different dtypes, and dtypes that an operation doesn't take."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from attnshape.failing.broadcasting import fitting
from attnshape.failing.finding import Candidate, Finding, any_result, on_operand
from attnshape.failing.indices import embedded
from attnshape.failing.scene import Party, Scene
from attnshape.failing.words import joined, quoted

_SAYS = re.compile(
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
_MASKS = {"masked_fill": (1, "mask"), "where": (0, "condition"), "scaled_dot_product_attention": (3, "attn_mask")}
_INDICES = {"gather": (2, "index"), "index_select": (2, "index")}
_WITHOUT_INDEX = ("getitem", "setitem")


def dtypes(scene: Scene) -> Finding | None:
    """Explain an operation that refuses the dtypes of its operands."""
    if not _SAYS.search(scene.message) or "device" in scene.message or not scene.parties:
        return None
    return _mask(scene) or _index(scene) or _mixed(scene) or _unknown_to(scene)


def _mask(scene: Scene) -> Finding | None:
    place = _MASKS.get(scene.operation)
    mask = scene.operand(*place) if place is not None else None
    if mask is None or mask.record.dtype == "bool":
        return None
    if scene.operation == "scaled_dot_product_attention" and mask.record.dtype == scene.parties[0].record.dtype:
        return None
    zeros_and_ones = mask.extremes is not None and set(mask.extremes) <= {0, 1}
    wanted = "bool" if scene.operation != "scaled_dot_product_attention" else "bool, or the queries' own"
    # of other numbers nobody knows which are meant to be hidden
    candidates = tuple(_as_bool(scene, mask)) if zeros_and_ones else ()
    return Finding(
        f"the mask of {scene.operation} must be {wanted}: {quoted(mask)} is {mask.record.dtype}", {}, candidates
    )


def _as_bool(scene: Scene, mask: Party) -> Iterator[Candidate]:
    yield from on_operand(mask, ".bool()", lambda tensor, _: tensor.bool())
    rank = max(party.rank for party in scene.parties)
    for one in fitting(mask, rank, True, any_result):
        yield replace(one, text=f"{one.text}.bool()", tensors=partial(_then_bool, mask.place, one), rank=one.rank + 1)


def _then_bool(place: int, candidate: Candidate, tensors: list[Tensor]) -> list[Tensor]:
    mended = list(candidate.tensors(tensors))
    mended[place] = mended[place].bool()
    return mended


def _index(scene: Scene) -> Finding | None:
    place = _INDICES.get(scene.operation)
    index = scene.operand(*place) if place is not None else None
    table = scene.parties[0]
    if scene.operation == "embedding":
        index, table = embedded(scene)[0], embedded(scene)[1] or table
    if scene.operation in _WITHOUT_INDEX and "indices" in scene.message and len(scene.parties) > 1:
        index = scene.parties[1]
    if index is None or index.record.dtype in ("int64", "int32"):
        return None
    fit = index.extremes is not None and all(0 <= one < min(table.shape, default=0) for one in index.extremes)
    return Finding(
        f"the indices of {scene.operation} must be whole numbers: {quoted(index)} is {index.record.dtype}",
        {},
        tuple(on_operand(index, ".long()", lambda tensor, _: tensor.long())) if fit else (),
    )


def _mixed(scene: Scene) -> Finding | None:
    kinds = {party.record.dtype for party in scene.parties}
    if len(kinds) < 2:
        return None
    first = {kind: next(party for party in scene.parties if party.record.dtype == kind) for kind in sorted(kinds)}
    named = joined(
        [f"{quoted(party)} is {kind}" for kind, party in sorted(first.items(), key=lambda one: one[1].place)]
    )
    return Finding(f"the operands of {scene.operation} differ in dtype: {named}", {}, tuple(_casts(scene)))


def _casts(scene: Scene) -> Iterator[Candidate]:
    """Yield the casts of the operands that are no floating-point numbers, else of those that differ from the run's."""
    floating = {party.record.dtype for party in scene.parties if "float" in party.record.dtype}
    home = scene.dtype if scene.dtype in floating else (floating.pop() if len(floating) == 1 else None)
    odd = [party for party in scene.parties if party.record.dtype not in (home, "bool")]
    if home is None or len({party.record.dtype for party in odd}) != 1:
        return
    dtype = getattr(torch, home)
    if len(odd) == 1 and home in _CASTS:
        yield from on_operand(odd[0], _CASTS[home], lambda tensor, _: tensor.to(dtype))


def _unknown_to(scene: Scene) -> Finding | None:
    if "not implemented for" not in scene.message:
        return None
    party = scene.parties[0]
    cast = on_operand(party, ".float()", lambda tensor, _: tensor.float()) if "float" not in party.record.dtype else []
    return Finding(f"{scene.operation} doesn't take {party.record.dtype}: {quoted(party)} is that", {}, tuple(cast))

"""What nn.MultiheadAttention refuses: widths, and masks of another shape than it takes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from attnshape.failing.finding import Candidate, Finding, receiver, transposed
from attnshape.failing.scene import Party, Scene
from attnshape.failing.words import axes, axis_of, quoted, sized

_WIDTH = re.compile(r"was expecting embedding dimension of (\d+), but got (\d+)")
_PADDING = re.compile(r"key_padd(?:ed|ing)_mask\.shape\[(\d)\] to be (\d+), but got (\d+)")
_MASK = re.compile(r"The shape of the (\d)D attn_mask is torch\.Size\(\[(.*?)\]\), but should be \((.*?)\)")
_WIDTH_AT, _HEADS_AT = 3, 4
"""Where the width and the number of heads stand among the arguments."""
_VALUES = "does not match value shape"


def multihead(scene: Scene) -> Finding | None:
    """Explain the assertions of torch's own multi-head attention."""
    if scene.operation != "multi_head_attention_forward":
        return None
    query, key, value = (scene.operand(place, name) for place, name in enumerate(("query", "key", "value")))
    if query is not None and (found := _WIDTH.search(scene.message)):
        last = query.rank - 1
        return Finding(
            f"the attention is built for a width of {sized(_width(scene, int(found[1])), int(found[1]))}: "
            f"{axis_of(query, last)}",
            {query.place: (last,)},
        )
    padding = _keyword(scene, "key_padding_mask")
    if padding is not None and (found := _PADDING.search(scene.message)):
        axis = int(found[1])
        return Finding(
            f"a key padding mask has an axis for the batch and one for the keys: {axis_of(padding, axis)}, "
            f"not {found[2]}",
            {padding.place: (axis,)},
            tuple(replace(one, inner=True) for one in transposed(padding, 0, 1)),
        )
    mask = _keyword(scene, "attn_mask")
    if mask is not None and (found := _MASK.search(scene.message)):
        return _mask(mask, [int(one) for one in re.findall(r"\d+", found[3])])
    if key is not None and value is not None and _VALUES in scene.message:
        return Finding(
            f"there must be as many values as keys: {quoted(key)} has {axes(key)}, {quoted(value)} has {axes(value)}",
            {
                party.place: tuple(
                    axis for axis, sizes in enumerate(zip(key.shape, value.shape, strict=False)) if len(set(sizes)) > 1
                )
                for party in (key, value)
            },
        )
    return None


def _keyword(scene: Scene, name: str) -> Party | None:
    return scene.operand(2**31, name)


def _width(scene: Scene, width: int) -> str:
    return scene.formula(lambda call: int(call.args[_WIDTH_AT]), width)


def _mask(mask: Party, wanted: list[int]) -> Finding:
    wrong = tuple(axis for axis, sizes in enumerate(zip(mask.shape, wanted, strict=False)) if len(set(sizes)) > 1)
    said = ", ".join(axis_of(mask, axis) for axis in wrong) or f"{quoted(mask)} has {axes(mask)}"
    heads = ", with one mask for each head of each sequence" if mask.rank == 3 else ""
    repeated = _for_each_head(mask, wanted) if wrong == (0,) and mask.rank == 3 else []
    return Finding(
        f"the mask must be {' '.join(map(str, wanted))}{heads}: {said}", {mask.place: wrong}, tuple(repeated)
    )


def _for_each_head(mask: Party, wanted: list[int]) -> list[Candidate]:
    """Return the candidate that repeats each sequence's mask for every head."""
    if mask.text is None or not mask.shape[0] or wanted[0] % mask.shape[0]:
        return []
    text = f"{receiver(mask.text)}.repeat_interleave({wanted[0] // mask.shape[0]}, dim=0)"
    return [Candidate(text, call=lambda call: replace(call, function=partial(_repeating, call.function)), inner=True)]


def _repeating(function: Callable[..., Any], *args: Any, attn_mask: Tensor, **keywords: Any) -> Any:
    return function(*args, attn_mask=attn_mask.repeat_interleave(args[_HEADS_AT], dim=0), **keywords)

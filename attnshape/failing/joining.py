"""Concatenating and stacking tensors whose other axes differ."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from torch import Tensor

from attnshape.failing.finding import Candidate, Finding, on_operand, transposed
from attnshape.failing.scene import Party, Scene
from attnshape.failing.words import axes, place, quoted, size
from attnshape.tracing.raw import RawCall

_JOINS = ("cat", "concat", "concatenate", "stack")


def joining(scene: Scene) -> Finding | None:
    """Explain tensors that can't be put together."""
    parties = scene.operands(0, "tensors")
    given = scene.argument(1, "dim", "axis")
    dim = given if type(given) is int else 0
    if scene.operation not in _JOINS or len(parties) < 2:
        return None
    first = parties[0]
    for other in parties[1:]:
        if other.rank != first.rank:
            return Finding(
                f"{scene.operation} takes tensors of as many axes: {quoted(first)} has {axes(first)}; "
                f"{quoted(other)} has {axes(other)}",
                {},
                tuple(_unsqueezed(first, other)),
            )
        along = None if scene.operation == "stack" or not -first.rank <= dim < first.rank else dim % first.rank
        wrong = tuple(axis for axis in range(first.rank) if axis != along and first.shape[axis] != other.shape[axis])
        if wrong:
            return _differ(scene, first, other, wrong, along)
    return None


def _differ(scene: Scene, first: Party, other: Party, wrong: tuple[int, ...], along: int | None) -> Finding:
    parts = [
        f"{place(axis, first.rank)} of {quoted(first)} is {size(first, axis)}, of {quoted(other)} {size(other, axis)}"
        for axis in wrong
    ]
    but = f" but {'the last' if along == first.rank - 1 else f'axis {along}'}" if along is not None else ""
    return Finding(
        f"{scene.operation} takes tensors that are alike in all axes{but}: {'; '.join(parts)}",
        {first.place: wrong, other.place: wrong},
        tuple(_ways(scene, first, other, along)),
    )


def _ways(scene: Scene, first: Party, other: Party, along: int | None) -> Iterator[Candidate]:
    """Yield the other axes to concatenate along, and tensors with two axes swapped."""
    if along is not None:
        given = scene.argument(1, "dim", "axis")
        for axis in range(first.rank):
            written = axis - first.rank if type(given) is int and given < 0 else axis
            text = re.sub(r"((?:dim|axis)\s*=\s*|[)\]]\s*,\s*)-?\d+\)$", rf"\g<1>{written})", scene.expression)
            if axis != along and text != scene.expression:
                yield Candidate(text, call=partial(_along, axis))
    for party in (other, first):
        for one, two in ((1, 2), (0, 1), (-2, -1)):
            if party.rank > max(one, two, 1):
                yield from transposed(party, one, two, rank=1)


def _unsqueezed(first: Party, other: Party) -> Iterator[Candidate]:
    """Yield the tensor of fewer axes with one of size 1 more."""
    small, large = sorted((first, other), key=lambda party: party.rank)
    if small.rank + 1 == large.rank:
        for axis in range(large.rank):
            yield from on_operand(small, f".unsqueeze({axis})", partial(_with_axis, axis))


def _with_axis(axis: int, tensor: Tensor, _: list[Tensor]) -> Tensor:
    return tensor.unsqueeze(axis)


def _along(axis: int, call: RawCall) -> RawCall:
    keywords = {word: value for word, value in call.keywords.items() if word not in ("dim", "axis")}
    return replace(call, args=call.args[:1], keywords={**keywords, "dim": axis})

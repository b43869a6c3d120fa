"""Indices beyond an axis' end."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from attnshape.failing.finding import Finding, transposed
from attnshape.failing.scene import Party, Scene
from attnshape.failing.words import place, quoted, size
from attnshape.tracing.raw import Slot

_ALONG = {
    "gather": (0, 1, 2),
    "index_select": (0, 1, 2),
    "take_along_dim": (0, 2, 1),
    "scatter": (0, 1, 2),
    "scatter_add": (0, 1, 2),
    "index_add": (0, 1, 2),
    "index_copy": (0, 1, 2),
    "index_fill": (0, 1, 2),
}
"""Where the tensor, the axis and the indices stand among the arguments."""
_NARROWED = re.compile(r"start \((-?\d+)\) \+ length \((\d+)\) exceeds dimension size")


def indices(scene: Scene) -> Finding | None:
    """Explain an index that is out of range."""
    if scene.operation == "embedding":
        return _embedding(scene)
    if scene.operation in _ALONG:
        return _along(scene)
    if scene.operation in ("getitem", "setitem"):
        return _item(scene)
    if scene.operation == "narrow" and (found := _NARROWED.search(scene.message)):
        party, axis = scene.operand(0, "input"), scene.argument(1, "dim")
        if party is not None and type(axis) is int and -party.rank <= axis < party.rank:
            axis %= party.rank
            end = int(found[1]) + int(found[2])
            return _beyond(party, axis, f"narrow reads {found[1]} to {end - 1}")
    return None


def _embedding(scene: Scene) -> Finding | None:
    ids, table = embedded(scene)
    if ids is None or table is None or ids.record.dtype not in ("int64", "int32") or not table.rank:
        return None
    if not (reaches := _outside(ids, table.shape[0])):
        return None
    return Finding(
        f"{quoted(ids)} holds {reaches}: the table {quoted(table)} has {size(table, 0)} rows, "
        f"0 to {table.shape[0] - 1}",
        {table.place: (0,)},
    )


def embedded(scene: Scene) -> tuple[Party | None, Party | None]:
    """Return an embedding's indices and its table."""
    # the function beneath that of torch.nn takes them in the other order
    places = (1, 0) if scene.failure.operation == "torch.embedding" else (0, 1)
    return scene.operand(places[0], "input", "indices"), scene.operand(places[1], "weight")


def _along(scene: Scene) -> Finding | None:
    at, along, by = _ALONG[scene.operation]
    party, axis, index = scene.operand(at, "input"), scene.argument(along, "dim"), scene.operand(by, "index", "indices")
    if party is None or index is None or type(axis) is not int or not -party.rank <= axis < party.rank:
        return None
    axis %= party.rank
    reaches = _outside(index, party.shape[axis])
    return _beyond(party, axis, f"{quoted(index)} holds {reaches}") if reaches else None


def _outside(index: Party, length: int) -> str | None:
    if index.extremes is None:
        return None
    smallest, largest = (int(one) for one in index.extremes)
    outside = [one for one in (smallest, largest) if not 0 <= one < length]
    return str(outside[-1]) if outside else None


def _item(scene: Scene) -> Finding | None:
    party, key = scene.operand(0), scene.argument(1)
    parts = list(key) if isinstance(key, tuple) else [key]
    if party is not None and "shape of the mask" in scene.message:
        return _mask(scene, party, parts)
    if party is None or "out of bounds" not in scene.message:
        return None
    for axis, part in _axes(scene, party, parts):
        length = party.shape[axis]
        if type(part) is int and not -length <= part < length:
            return _beyond(party, axis, f"the index is {part}")
        if isinstance(part, Slot):
            index = scene.parties[part.operand]
            outside = None
            if index.record.dtype != "bool" and index.extremes is not None:
                outside = next((int(one) for one in index.extremes if not -length <= one < length), None)
            if outside is not None:
                return _beyond(party, axis, f"{quoted(index)} holds {outside}")
    return None


def _mask(scene: Scene, party: Party, parts: list[Any]) -> Finding | None:
    for start, part in _axes(scene, party, parts):
        mask = scene.parties[part.operand] if isinstance(part, Slot) else None
        if mask is None or mask.record.dtype != "bool":
            continue
        wrong = tuple(
            axis for axis in range(min(mask.rank, party.rank - start)) if mask.shape[axis] != party.shape[start + axis]
        )
        if wrong:
            differ = ", ".join(f"{size(mask, axis)} for {size(party, start + axis)}" for axis in wrong)
            return Finding(
                f"a mask that picks elements has the sizes of what it picks from: {quoted(mask)} has {differ} of "
                f"{quoted(party)}",
                {mask.place: wrong, party.place: tuple(start + axis for axis in wrong)},
                # how much is picked depends on the mask's contents
                tuple(replace(one, inner=True) for one in transposed(mask, 0, 1)) if mask.rank == 2 else (),
            )
    return None


def _axes(scene: Scene, party: Party, parts: list[Any]) -> list[tuple[int, Any]]:
    """Return each part of an index with the axis that it is for."""
    takes = [_taken(scene, part) for part in parts]
    found = []
    axis = 0
    for part, count in zip(parts, takes, strict=True):
        if part is Ellipsis:
            axis += party.rank - sum(takes)
            continue
        if count and axis < party.rank:
            found.append((axis, part))
        axis += count
    return found


def _taken(scene: Scene, part: Any) -> int:
    """Return how many axes one part of an index is for."""
    if part is None or part is Ellipsis or isinstance(part, bool):
        return 0
    if isinstance(part, Slot) and scene.parties[part.operand].record.dtype == "bool":
        return scene.parties[part.operand].rank
    return 1


def _beyond(party: Party, axis: int, what: str) -> Finding:
    return Finding(
        f"{what}: {place(axis, party.rank)} of {quoted(party)} is {size(party, axis)}, "
        f"so its indices are 0 to {party.shape[axis] - 1}",
        {party.place: (axis,)},
    )

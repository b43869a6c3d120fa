"""`expand` and `repeat` to sizes that an operand doesn't take, and writes of another shape."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from torch import Tensor

from attnshape.failing.finding import Candidate, Finding, on_operand
from attnshape.failing.scene import Party, Scene, integers
from attnshape.failing.words import axes, counted, from_the_right, quoted, size, sized
from attnshape.tracing.raw import RawCall

_SAYS = ("must match", "number of sizes provided")


def expanding(scene: Scene) -> Finding | None:
    """Explain an expand or a repeat that doesn't fit its operand."""
    party, new = scene.operand(0, "input", "self"), _sizes(scene.call)
    if scene.operation not in ("expand", "repeat", "broadcast_to", "tile") or party is None or new is None:
        return None
    if party.rank > len(new):
        return Finding(
            f"{quoted(party)} has {axes(party)}: {scene.operation} is given {counted(len(new), 'size', 'sizes')}"
        )
    if scene.operation in ("repeat", "tile"):
        return None
    wrong = [
        back
        for back in range(1, party.rank + 1)
        if new[-back] not in (-1, party.shape[-back]) and party.shape[-back] != 1
    ]
    if not wrong:
        return None
    parts = [
        f"{from_the_right(party.rank - back, party.rank)} is {size(party, party.rank - back)}, "
        f"to become {sized(scene.formula(partial(_size_at, -back), new[-back]), new[-back])}"
        for back in wrong
    ]
    return Finding(
        f"{scene.operation} repeats axes of size 1 alone: of {quoted(party)} {'; '.join(parts)}",
        {party.place: tuple(party.rank - back for back in reversed(wrong))},
        tuple(_with_axes(party, len(new))),
    )


def _sizes(call: RawCall | None) -> list[int] | None:
    if call is None:
        return None
    given = call.args[1:] or tuple(
        call.keywords[word] for word in ("size", "sizes", "repeats") if word in call.keywords
    )
    try:
        return list(integers(given))
    except TypeError:
        return None


def _size_at(place: int, call: RawCall) -> int:
    return (_sizes(call) or [])[place]


def _with_axes(party: Party, rank: int) -> Iterator[Candidate]:
    """Yield the operand with one axis of size 1 more."""
    if party.rank + 1 != rank:
        return
    for axis in range(1, rank):
        yield from on_operand(party, f".unsqueeze({axis})", partial(_unsqueezed, axis))


def _unsqueezed(axis: int, tensor: Tensor, _: list[Tensor]) -> Tensor:
    return tensor.unsqueeze(axis)


def writing(scene: Scene) -> Finding | None:
    """Explain `x[…] = y` where y has another shape than what is written to."""
    if scene.operation != "setitem" or not any(words in scene.message for words in _SAYS):
        return None
    target, value = scene.operand(0), scene.operand(2)
    if target is None or value is None:
        return None
    written = _part(scene, target)
    if written is None:
        return None
    if value.rank > len(written):
        return Finding(
            f"{quoted(value)} has {axes(value)}: what is written to, a part of {quoted(target)}, has {len(written)}"
        )
    backs = [
        back
        for back in range(1, min(len(written), value.rank) + 1)
        if written[-back][1] != value.shape[-back] and value.shape[-back] != 1
    ]
    if not backs:
        return None
    parts = [
        f"{from_the_right(value.rank - back, value.rank)} is {written[-back][1]} in what is written to, "
        f"{size(value, value.rank - back)} in {quoted(value)}"
        for back in backs
    ]
    return Finding(
        f"{quoted(value)} doesn't fit into that part of {quoted(target)}: {'; '.join(parts)}",
        {
            target.place: tuple(sorted(written[-back][0] for back in backs)),
            value.place: tuple(value.rank - back for back in reversed(backs)),
        },
    )


def _part(scene: Scene, target: Party) -> list[tuple[int, int]] | None:
    """Return each axis of what an index by slices and numbers writes to, with its size; None of other indices."""
    key = scene.argument(1)
    parts = list(key) if isinstance(key, tuple) else [key]
    given = sum(part is not Ellipsis for part in parts)
    if Ellipsis in parts:
        at = parts.index(Ellipsis)
        parts[at : at + 1] = [slice(None)] * (target.rank - given)
    parts += [slice(None)] * (target.rank - len(parts))
    if len(parts) != target.rank or not all(isinstance(part, slice) or type(part) is int for part in parts):
        return None
    try:
        return [
            (axis, len(range(*part.indices(target.shape[axis]))))
            for axis, part in enumerate(parts)
            if isinstance(part, slice)
        ]
    except TypeError:  # a bound of the slice is a tensor
        return None

"""Makes one step of what is one step to a reader: `x[a] += y` arrives as reading, adding and writing."""

from __future__ import annotations

import dataclasses

from attnshape.model import Reference
from attnshape.tracing.raw import RawStep, RawTrace
from attnshape.tracing.renumber import renumbered

_WRITE = "torch.Tensor.__setitem__"
_READ = "torch.Tensor.__getitem__"


def fold(raw: RawTrace) -> RawTrace:
    """Return the trace with each update of an element in one step."""
    absorbed: dict[int, int] = {}
    operands: dict[int, list[Reference]] = {}
    for position, step in enumerate(raw.steps):
        parts = _parts(raw.steps, position)
        if parts:
            absorbed |= dict.fromkeys(parts, position)
            inner = {part + 1 for part in parts}
            every = [r for part in parts for r in raw.steps[part].operands] + step.operands
            operands[position] = list(dict.fromkeys(r for r in every if r.step not in inner))
    if not absorbed:
        return raw
    kept = {}
    for position, step in enumerate(raw.steps):
        if position in absorbed:
            continue
        kept[position] = step
        if position in operands:
            update = next(
                raw.steps[part] for part, whole in absorbed.items() if whole == position and not _reads(raw.steps[part])
            )
            kept[position] = dataclasses.replace(
                step, operands=operands[position], operation=update.operation, place=update.place
            )

    def move(reference: Reference, _: int | None) -> Reference:
        if reference.step is not None and reference.step - 1 in absorbed:
            return Reference(step=absorbed[reference.step - 1] + 1, output=reference.output)
        return reference

    return renumbered(raw, kept, move)


def _parts(steps: list[RawStep], position: int) -> list[int]:
    """Return the positions of the reading and the in-place operation that a write to an element completes."""
    step = steps[position]
    place = step.place
    if step.operation != _WRITE or place is None or place.statement is None:
        return []
    update = position - 1
    while update >= 0 and not (_same_update(steps[update], step) and not _reads(steps[update])):
        update -= 1
        if position - update > 1:
            return []
    source = next((r.step for r in steps[update].operands if r.step is not None), None)
    if source is None or not (_reads(steps[source - 1]) and _same_update(steps[source - 1], step)):
        return []
    return [source - 1, update]


def _same_update(step: RawStep, other: RawStep) -> bool:
    first, second = step.place, other.place
    if first is None or second is None:
        return False
    return (first.file, first.function, first.statement) == (second.file, second.function, second.statement)


def _reads(step: RawStep) -> bool:
    return step.operation == _READ

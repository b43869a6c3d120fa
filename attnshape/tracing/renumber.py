"""Takes steps out of a run's raw facts, and leaves every reference pointing at what it meant."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from attnshape.model import Reference
from attnshape.tracing.raw import RawStep, RawTensor, RawTrace

Move = Callable[[Reference, int | None], Reference]
"""Where a reference goes, given who refers: a step's position, or None for the run's result."""


def renumbered(raw: RawTrace, kept: Mapping[int, RawStep], move: Move) -> RawTrace:
    """Return the facts with only these steps, which are changed, by their old positions in order.

    `move` leads from a step that is taken out to one that stays; all numbers in it are old ones.
    """
    index = {position + 1: number for number, position in enumerate(kept, 1)}

    def to(reference: Reference, by: int | None) -> Reference:
        moved = move(reference, by)
        return moved if moved.step is None else Reference(step=index[moved.step], output=moved.output)

    def point(facts: RawTensor, by: int | None) -> None:
        facts.of = to(facts.of, by) if facts.of else None
        facts.root = to(facts.root, by) if facts.root else None

    for position, step in kept.items():
        step.parent = index[step.parent + 1] - 1 if step.parent is not None else None
        step.operands = [to(reference, position) for reference in step.operands]
        for output in step.outputs:
            point(output.tensor, position)
            # the composite's own result is found from inside of it
            output.inner = to(output.inner, output.inner.step - 1) if output.inner and output.inner.step else None
    for operand in raw.failure.operands if raw.failure is not None else ():
        point(operand.tensor, None)
    returned = [(name, to(reference, None)) for name, reference in raw.returned]
    return dataclasses.replace(raw, steps=list(kept.values()), returned=returned)

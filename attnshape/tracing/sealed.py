"""Makes one step of a library's call that does its work where nothing is seen, whatever it does around that."""

from __future__ import annotations

from collections.abc import Collection

from attnshape.model import Reference
from attnshape.tracing.raw import RawStep, RawTrace
from attnshape.tracing.renumber import renumbered

_REASONS = {"flex_attention": "its scores are made after all where it is not compiled"}


def sealed(raw: RawTrace) -> RawTrace:
    """Return the trace without the inner steps of such calls, which are marked as opaque."""
    around: dict[int, int] = {}
    """For each step that is taken out, the position of the call that it is part of."""
    for position, step in enumerate(raw.steps):
        reason = _REASONS.get(step.operation.rpartition(".")[2])
        if step.parent is not None and (step.parent in around or raw.steps[step.parent].opaque in _REASONS.values()):
            around[position] = around.get(step.parent, step.parent)
        elif reason is not None:
            step.opaque = reason
    calls = [position for position, step in enumerate(raw.steps) if step.opaque in _REASONS.values()]
    if not calls:
        return raw
    used = _used(raw, around)
    for call in calls:
        inner = {position for position, outer in around.items() if outer == call}
        if inner:
            _seal(call, raw.steps, inner)
        # it makes sums of its own next to its result, which its caller may not get
        outputs = raw.steps[call].outputs
        while len(outputs) > 1 and Reference(step=call + 1, output=len(outputs) - 1) not in used:
            outputs.pop()
    kept = {position: step for position, step in enumerate(raw.steps) if position not in around}

    def move(reference: Reference, _: int | None) -> Reference:
        outer = around.get(reference.step - 1) if reference.step is not None else None
        return reference if outer is None else Reference(step=outer + 1)

    return renumbered(raw, kept, move)


def _used(raw: RawTrace, around: Collection[int]) -> set[Reference]:
    """Return what steps that stay refer to, and what the run returns."""
    used = {reference for _, reference in raw.returned}
    for position, step in enumerate(raw.steps):
        if position in around:
            continue
        used.update(step.operands)
        for output in step.outputs:
            used.update(r for r in (output.tensor.of, output.tensor.root, output.inner) if r is not None)
    return used


def _seal(position: int, steps: list[RawStep], inner: set[int]) -> None:
    """Give the call what its last inner step was given, first of all: it is the one that does the work."""
    call = steps[position]
    worked_on = [_from_outside(reference, steps, inner) for reference in steps[max(inner)].operands]
    given = [reference for reference in (*worked_on, *call.operands) if reference is not None]
    call.operands = list(dict.fromkeys(given))
    for output in call.outputs:
        output.inner = None


def _from_outside(reference: Reference, steps: list[RawStep], inner: set[int]) -> Reference | None:
    """Return what came in as this, None for what was made inside of nothing."""
    while reference.step is not None and reference.step - 1 in inner:
        operands = steps[reference.step - 1].operands
        if not operands:
            return None
        reference = operands[0]
    return reference if not reference.constant else None

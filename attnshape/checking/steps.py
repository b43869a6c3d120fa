"""Checks every signature of a trace: the source's own annotations and the inferred ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from attnshape.checking.signatures import bound, holds
from attnshape.model import NamedTensor, Step, TensorRecord
from attnshape.tracing.raw import RawStep, RawTrace

Runs = Sequence[tuple[Mapping[str, int], RawTrace]]
"""Runs of one target, each with its sizes."""


@dataclass(frozen=True)
class Checked:
    """Inputs and steps with what was checked, and the annotations that don't hold."""

    inputs: tuple[NamedTensor, ...]
    steps: tuple[Step, ...]
    wrong: tuple[str, ...] = ()


def check_steps(inputs: Sequence[NamedTensor], steps: Sequence[Step], runs: Runs) -> Checked:
    """Check each tensor's inferred signature at the sizes of the first run, and each annotation in all runs.

    Sizes that the user made equal differ in the other runs, so an annotation that holds by luck fails there.
    """
    numbers, actual = runs[0]
    wrong = []
    with bound(numbers):
        checked_inputs = tuple(NamedTensor(named.name, _inferred(named.tensor)) for named in inputs)
        inferred = [tuple(NamedTensor(o.name, _inferred(o.tensor)) for o in step.outputs) for step in steps]
    checked_steps = []
    for position, (step, outputs) in enumerate(zip(steps, inferred, strict=True)):
        dims = _annotation(actual.steps[position])
        if dims is not None:
            sound = all(_annotation_holds(dims, position, run, sizes) for sizes, run in runs)
            outputs = tuple(_declared(output, dims, sound) for output in outputs)
            if not sound:
                wrong.append(_complaint(step, dims))
        checked_steps.append(msgspec.structs.replace(step, outputs=outputs))
    return Checked(checked_inputs, tuple(checked_steps), tuple(wrong))


def _annotation(step: RawStep) -> str | None:
    """Return the dims string that the source declares for the step's one output, where that is what is assigned."""
    if step.place is None or len(step.outputs) != 1 or step.outputs[0].name not in step.place.targets:
        return None
    return step.place.declared


def _annotation_holds(dims: str, position: int, run: RawTrace, sizes: Mapping[str, int]) -> bool:
    """Whether an annotation holds in a run; letters that are no size symbols may be any size."""
    if position >= len(run.steps):
        return True
    tensor = run.steps[position].outputs[0].tensor
    with bound(sizes):
        return holds(dims, tensor.shape, tensor.dtype)


def _inferred(tensor: TensorRecord) -> TensorRecord:
    sound = holds(tensor.signature, tensor.shape, tensor.dtype)
    return msgspec.structs.replace(tensor, checked="inferred" if sound else None)


def _declared(output: NamedTensor, dims: str, sound: bool) -> NamedTensor:
    checked = "declared" if sound else None
    return NamedTensor(output.name, msgspec.structs.replace(output.tensor, declared=dims, checked=checked))


def _complaint(step: Step, dims: str) -> str:
    where = f"{step.source.file}:{step.source.line}: " if step.source else ""
    output = step.outputs[0]
    return f"wrong annotation: {where}{output.name} is declared {dims!r} and is {output.tensor.signature!r}"

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
        checked_inputs = tuple(map(_checked, inputs))
        inferred = [tuple(map(_checked, step.outputs)) for step in steps]
    checked_steps = []
    for position, (step, outputs) in enumerate(zip(steps, inferred, strict=True)):
        dims, kind = _annotation(actual.steps[position])
        if dims is not None:
            sound = all(_annotation_holds(dims, kind, position, run, sizes) for sizes, run in runs)
            outputs = tuple(_declared(output, dims, sound) for output in outputs)
            if not sound:
                wrong.append(_complaint(step, dims, kind))
        checked_steps.append(msgspec.structs.replace(step, outputs=outputs))
    return Checked(checked_inputs, tuple(checked_steps), tuple(wrong))


def _annotation(step: RawStep) -> tuple[str | None, str | None]:
    """Return dims string and kind that the source declares for the step's one output, where that is assigned."""
    if step.place is None or len(step.outputs) != 1 or step.outputs[0].name not in step.place.targets:
        return None, None
    return step.place.declared, step.place.declared_kind


def _annotation_holds(dims: str, kind: str | None, position: int, run: RawTrace, sizes: Mapping[str, int]) -> bool:
    """Whether an annotation holds in a run; letters that are no size symbols may be any size."""
    if position >= len(run.steps):
        return True
    tensor = run.steps[position].outputs[0].tensor
    with bound(sizes):
        return holds(dims, tensor.shape, tensor.dtype, kind)


def _checked(output: NamedTensor) -> NamedTensor:
    return msgspec.structs.replace(output, tensor=_inferred(output.tensor))


def _inferred(tensor: TensorRecord) -> TensorRecord:
    sound = holds(tensor.signature, tensor.shape, tensor.dtype)
    return msgspec.structs.replace(tensor, checked="inferred" if sound else None)


def _declared(output: NamedTensor, dims: str, sound: bool) -> NamedTensor:
    checked = "declared" if sound else None
    return msgspec.structs.replace(
        output, tensor=msgspec.structs.replace(output.tensor, declared=dims, checked=checked)
    )


def _complaint(step: Step, dims: str, kind: str | None) -> str:
    where = f"{step.source.file}:{step.source.line}: " if step.source else ""
    output = step.outputs[0]
    declared, found = repr(dims), repr(output.tensor.signature)
    if output.tensor.signature == dims:
        declared, found = f"{kind} {declared}", f"{output.tensor.dtype} {found}"
    return f"wrong annotation: {where}{output.name} is declared {declared} and is {found}"

"""What references of a trace lead to: the tensor, its record, the role of its step, and its name in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnshape.model.trace import NamedTensor, Reference, Role, Step, TensorRecord, Trace

if TYPE_CHECKING:
    from attnshape.model.difference import OutlineStep


def resolve(trace: Trace, reference: Reference) -> NamedTensor | None:
    """Return the input or output that a reference names; None for parameters, constants and missing steps."""
    if reference.input is not None:
        return next((tensor for tensor in trace.inputs if tensor.name == reference.input), None)
    if reference.step is None or not 0 < reference.step <= len(trace.steps):
        return None
    outputs = trace.step(reference.step).outputs
    return outputs[reference.output] if 0 <= reference.output < len(outputs) else None


def operand_records(trace: Trace, step: Step) -> list[TensorRecord]:
    """Return the records of a step's operands, as far as the trace has them."""
    operands = (resolve(trace, operand) for operand in step.operands)
    return [operand.tensor for operand in operands if operand is not None]


def operand_role(trace: Trace, reference: Reference) -> Role | None:
    """Return the role of the step that a reference names, None if it names no step."""
    index = reference.step
    return trace.step(index).role if index is not None and 0 < index <= len(trace.steps) else None


def reference_name(reference: Reference | None, steps: Sequence[Step] | Sequence[OutlineStep]) -> str:
    """Return a reference in words: the number of a step, the name of an input or a parameter."""
    if reference is None:
        return "an unseen tensor"
    if reference.step is None:
        return reference.input or reference.parameter or "a constant"
    outputs = steps[reference.step - 1].outputs if 0 < reference.step <= len(steps) else ()
    if len(outputs) < 2:
        return str(reference.step)
    name = outputs[reference.output].name if 0 <= reference.output < len(outputs) else None
    return f"{reference.step} ({name})" if name else f"{reference.step}[{reference.output}]"

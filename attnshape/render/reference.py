"""References of a trace, followed and put in words."""

from __future__ import annotations

from attnshape.model import NamedTensor, Reference, Role, Step, TensorRecord, Trace
from attnshape.render.numbers import memory
from attnshape.render.text import visible
from attnshape.step_text import operation as operation


def resolve(trace: Trace, reference: Reference) -> NamedTensor | None:
    """Return the input or the step's output that is meant; None for parameters, constants, and what isn't there."""
    if reference.input is not None:
        return next((tensor for tensor in trace.inputs if tensor.name == reference.input), None)
    if reference.step is None or not 0 < reference.step <= len(trace.steps):
        return None
    outputs = trace.step(reference.step).outputs
    return outputs[reference.output] if 0 <= reference.output < len(outputs) else None


def role(trace: Trace, reference: Reference) -> Role | None:
    """Return the role of the step that made what is meant, None where it has none or no step made it."""
    index = reference.step
    return trace.step(index).role if index is not None and 0 < index <= len(trace.steps) else None


def words(trace: Trace, reference: Reference | None) -> str:
    """Return a reference as a table names it: a step's number, an input's or a parameter's name."""
    if reference is None:
        return "an unseen tensor"
    if reference.step is None:
        name = reference.input or reference.parameter
        return visible(name) if name else "a constant"
    step = trace.step(reference.step) if 0 < reference.step <= len(trace.steps) else None
    if step is None or len(step.outputs) < 2:
        return str(reference.step)
    name = step.outputs[reference.output].name if 0 <= reference.output < len(step.outputs) else None
    return f"{reference.step} ({visible(name)})" if name else f"{reference.step}[{reference.output}]"


def storage(trace: Trace, tensor: TensorRecord) -> str:
    """Return where a step's result lies: `new 120 KiB`, `view of 2`, `same as 3` or `writes 4`."""
    if tensor.storage.kind == "new":
        return f"new {memory(tensor.bytes)}"
    verb = {"view": "view of", "same": "same as", "inplace": "writes"}[tensor.storage.kind]
    return f"{verb} {words(trace, tensor.storage.of)}"


def operands(trace: Trace, step: Step) -> list[TensorRecord]:
    """Return the records of a step's operands, as far as the trace has them."""
    found = (resolve(trace, operand) for operand in step.operands)
    return [one.tensor for one in found if one is not None]

"""Says over which axes a tensor is broadcast that is added to the scores, or hides some of them."""

from __future__ import annotations

from attnshape.explanation.attention import Attention, given_records
from attnshape.explanation.sentences import AxisSize, axis_label, tensor_axes
from attnshape.explanation.writing import SectionWriter, quoted
from attnshape.model.formatting import join_words, strip_self, unfold
from attnshape.model.trace import NamedTensor, Step
from attnshape.tracing import operations as ops


def broadcast_sentence(attention: Attention, step: Step, text: SectionWriter) -> str:
    """Return how the other operand of a step on the way to the softmax fits the scores; empty if it has none."""
    found = _other(attention, step)
    if found is None:
        return ""
    name, other = found
    whole, axes = tensor_axes(step.outputs[0].tensor), tensor_axes(other.tensor)
    if len(axes) > len(whole):
        return ""
    missing = whole[: len(whole) - len(axes)]
    of_one = [axis for axis, own in zip(whole[len(missing) :], axes, strict=True) if own[1] == 1 and axis[1] != 1]
    signature = f"`{other.tensor.signature}`"
    if not missing and not of_one:
        return f"{name} is {signature}: it has a number of its own for each score."
    reasons = []
    if missing:
        count = text.counted(f"missing axes in step {step.index}", len(missing), "axes of the scores without one")
        which = join_words([axis[0] for axis in missing])
        reasons.append(
            f"it lacks the first {count} axes of the scores, {which}"
            if len(missing) > 1
            else f"it has no axis for {which}"
        )
    if of_one:
        which = join_words([axis[0] for axis in of_one])
        reasons.append(
            f"its {'axes' if len(of_one) > 1 else 'axis'} for {which} {'have' if len(of_one) > 1 else 'has'} size 1"
        )
    shared: list[AxisSize] = [*missing, *of_one]
    return (
        f"{name} is {signature}: {' and '.join(reasons)}, so that torch uses it again for each of "
        f"{' × '.join(map(axis_label, shared))}."
    )


def _other(attention: Attention, step: Step) -> tuple[str, NamedTensor] | None:
    """Return the operand of a step that isn't the scores, and how the source writes it."""
    place = attention.place_of_scores(step)
    for at, named in enumerate(given_records(attention.trace, step)):
        if at == place or named is None or not named.tensor.shape:
            continue
        made = step.operands[at].step
        if named.name:
            return quoted(named.name), named
        if made is not None and ops.base_name(attention.trace.step(made).operation):
            return quoted(strip_self(unfold(attention.trace.step(made).expression))), named
    return None

"""A cache: keys and values that the code is given, and to which it joins those of new tokens."""

from __future__ import annotations

from collections.abc import Iterator

from attnshape.explanation.attention import Attention, codes_of
from attnshape.explanation.sentences import AxisSize, axis_label, tensor_axes
from attnshape.explanation.writing import SectionWriter
from attnshape.inference.dataflow import innermost
from attnshape.model.explanation import Section
from attnshape.model.formatting import join_words
from attnshape.model.references import resolve
from attnshape.model.trace import Step
from attnshape.tracing import operations as ops


def cache(attention: Attention) -> Section | None:
    """Explain keys and values of an input that are joined with those of new tokens."""
    found = [(step, *tokens) for step in attention.of("operands", "heads") for tokens in _joined(attention, step)]
    if not found:
        return None
    steps = [step for step, *_ in found]
    _, given, new, every = found[0]
    product = attention.product
    compared = attention.links.upstream(product) if product is not None else {}
    held = {"keys" if step.index in compared and not attention.traced.is_fused else "values" for step in steps}
    what = join_words(sorted(held)) if len(held) == len(steps) else "keys and values"
    text = SectionWriter("cache", "Take what is known of earlier tokens: the cache", steps)
    text.what(
        f"{codes_of(steps)} join{'' if len(steps) > 1 else 's'} the {what} of {axis_label(new)} new tokens to those of "
        f"{axis_label(given)} others, which the code is given: {axis_label(every)} in all."
    )
    text.why(
        f"What is given needn't be computed again: only {axis_label(new)} tokens pass the projections, and all "
        f"{axis_label(every)} can be attended to."
    )
    times = text.computed("tokens for each new one", every[1] / new[1], f"({every[0]})/({new[0]})")
    text.without(
        f"The {what} of all {axis_label(every)} tokens would have to be projected again whenever new ones come: "
        f"{times} times as many vectors as now, and more with each token."
    )
    return text.section()


def _joined(attention: Attention, step: Step) -> Iterator[tuple[AxisSize, AxisSize, AxisSize]]:
    """Yield the numbers of given, new and all tokens if a step joins computed ones to those of an input."""
    if ops.base_name(step.operation) not in ops.CONCATENATIONS or len(step.operands) != 2 or attention.pairs is None:
        return
    read = [innermost(attention.trace.steps, operand) for operand in step.operands]
    records = [resolve(attention.trace, one) for one in read]
    is_input = [one.input is not None for one in read]
    if sum(is_input) != 1 or None in records:
        return
    given, new = (
        tensor_axes(record.tensor)
        for wanted in (True, False)
        for record, own in zip(records, is_input, strict=True)
        if own is wanted and record is not None
    )
    whole = tensor_axes(step.outputs[0].tensor)
    for one, other, axis in zip(given, new, whole, strict=False):
        if axis == attention.pairs[1] and one != axis and other != axis:
            yield one, other, axis

"""Weights that are subtracted from each other before they meet the values."""

from __future__ import annotations

from attnshape.checks.attention.cores import Core
from attnshape.explanation.attention import Attention, code_of
from attnshape.explanation.writing import SectionWriter
from attnshape.model.explanation import Section
from attnshape.model.trace import Step
from attnshape.tracing import operations as ops


def combining(attention: Attention) -> list[Step]:
    """Return the steps that subtract weights from each other, and those between the softmax and them."""
    steps = [one for one in attention.of("softmax") if one.role != "softmax"]
    return steps if any(ops.base_name(one.operation) in ops.SUBTRACTIONS for one in steps) else []


def difference(attention: Attention) -> Section | None:
    """Explain the difference of two sets of weights, if the values are multiplied by one."""
    core = attention.core
    steps = combining(attention)
    step = next((one for one in steps if ops.base_name(one.operation) in ops.SUBTRACTIONS), None)
    if step is None or not isinstance(core, Core) or len(core.key_axes) != 1:
        return None
    text = SectionWriter("difference", "Subtract weights from each other", steps)
    weights = core.weights.double()
    sums = weights.sum(core.key_axes[0])
    negative = text.observed_share(
        "negative weights", float((weights < 0).double().mean()), "share of what the values are multiplied by"
    )
    mean = text.observed("mean sum of a row of differences", float(sums.mean()), "mean over rows")
    text.what(
        f"{code_of(step)} subtracts one set of weights from another, and the values are multiplied by the difference. "
        f"Its rows sum to {mean} on average in this run, and {negative} of its numbers are negative."
    )
    text.why(
        "Each set is a softmax of its own. What both give to a key cancels; a key keeps a weight only as far as they "
        "disagree about it."
    )
    text.without(
        "Each weight would be at least 0: attention that all keys get a little of, whatever they hold, could not be "
        "taken away."
    )
    return text.section()

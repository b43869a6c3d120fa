"""A cap on the scores: a nonlinear function that keeps them within bounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import torch

from attnshape.checks.attention.cores import Core
from attnshape.checks.interventions.experiment import Intervention
from attnshape.explanation.attention import Attention, codes_of
from attnshape.explanation.writing import SectionWriter
from attnshape.model.explanation import Section
from attnshape.model.trace import Step
from attnshape.tracing import operations as ops

_LARGE = 1e6
"""What the products are replaced by to see whether the softmax reads such numbers too."""


def _around(attention: Attention, bending: Sequence[Step]) -> list[Step]:
    """Return nonlinear steps with those right before and after them that scale, but not all scores by one factor."""
    scaling = [step for step in attention.on_the_way if ops.base_name(step.operation) in ops.SCALINGS]
    beside = [
        step
        for step in scaling
        if step not in attention.of("scale")
        and any(step in attention.links.inputs(one) or one in attention.links.inputs(step) for one in bending)
    ]
    return sorted((*bending, *beside), key=lambda step: step.index)


def cap(attention: Attention) -> Section | None:
    """Explain a nonlinear function of the scores, if small runs show that it bounds them."""
    core, values, scores = attention.core, attention.values, attention.scores
    bending = [step for step in attention.on_the_way if ops.base_name(step.operation) in ops.NONLINEARITIES]
    if not bending or not isinstance(core, Core) or values is None or scores is None:
        return None
    place, order = core.softmax.place, core.softmax.owner.order
    change = Intervention(results={core.scores.ref: partial(torch.full_like, fill_value=_LARGE)})
    run = values.subject.experiment.run(change)
    if not run.follows(values.subject.base):
        return None
    read = run.events[order - 1].operand_values[place].double()[~scores.hidden]
    bound = float(read.max())
    if not math.isfinite(bound) or bound >= _LARGE * scores.factor / 2:
        return None
    text = SectionWriter("cap", "Cap the scores", _around(attention, bending))
    most = text.observed("cap of the scores", bound, f"what the softmax reads if every product is {_LARGE:.0e}")
    actual = core.softmax.scores.double()[~scores.hidden]
    largest = text.observed("largest score", float(actual.abs().max()), "largest magnitude of a visible score")
    text.what(
        f"{codes_of(bending)} bends the scores: however large a product is, the softmax never reads more than {most}. "
        f"The largest score of this run is {largest}; scores that are small beside the cap hardly change."
    )
    text.why(
        "In training queries and keys can become ever longer, and their products with them. The cap keeps the scores "
        "within bounds all the same."
    )
    return text.section()

"""Are weights that sum values a second time, such as those that another layer takes over, summed over the same axis?

LookViT (Koner et al. 2024, https://arxiv.org/abs/2407.12753, section 3.2) attends back with the transposed scores of a
cross-attention: their softmax has to be taken again, over the other axis.
"""

from __future__ import annotations

from collections.abc import Iterator

from attnshape.checks.attention.cores import Core, product, sum_to_one
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.replay import Producer
from attnshape.checks.rules.protocol import Violation
from attnshape.tracing import operations as ops


def check_used_again(subject: Subject) -> Iterator[Violation]:
    """Yield a violation for a product that sums values by the weights of a softmax over another axis than its own."""
    for measured in subject.measured:
        yield from _of_core(subject, measured.core)


def _of_core(subject: Subject, core: Core) -> Iterator[Violation]:
    if core.softmax.deferred or sum_to_one(core.weights, core.key_axes) is not True:
        return
    moved: set[Producer] = {core.softmax.ref}
    for event in subject.base.events[core.softmax.event.order :]:
        if not event.producers & moved:
            continue
        if event.name in ops.SAME_VALUES | ops.DROPOUTS:
            moved.update(event.refs)
            continue
        found = product(event, subject.graph)
        if found is None or event.order == core.value.first.order:
            continue
        for place in found.places:
            weights, summed = found.operand(place), found.contracted(place)
            others = [axis for axis in range(weights.ndim) if axis not in summed]
            if moved.isdisjoint(found.sources(place)) or not summed or sum_to_one(weights, summed) is not False:
                continue
            if any(sum_to_one(weights, axis) is True for axis in others if weights.shape[axis] > 1):
                message = "weights sum values again, and over another axis than the one along which they sum to one"
                hint = "transpose the scores instead, and take their softmax again"
                evidence = "summed the weights over the axis that this product sums over"
                yield Violation("AS301", message, found.ref, hint, evidence, "measured")
                return

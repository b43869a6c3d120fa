"""Weights that are divided by a sum of theirs after the softmax: does the division make them sum to one over the keys?

A softmax over the queries lets them compete for each key; a weighted mean then needs weights that are divided by their
sum over the keys (slot attention, Locatello et al. 2020, https://arxiv.org/abs/2006.15055). A sink adds to the sum of
the exponentials: added to the sum of weights that sum to one already, it takes the same part of each query's weights.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from attnshape.checks.attention.cores import Core, sum_to_one
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.replay import ReplayedCall
from attnshape.checks.interventions.small_sizes import symbol_or_number
from attnshape.checks.rules.protocol import Violation
from attnshape.tracing import operations as ops

_SMALL = 1e-3
"""Smaller numbers that are added to a divisor keep it from zero."""
_BROADCASTS = ops.UNIT_AXES | ops.EXPANSIONS | ops.CASTS


def check_renormalised(subject: Subject, core: Core, chain: Sequence[ReplayedCall]) -> Violation | None:
    """Return a violation if weights are divided by a sum that is one already, or by one to which something is added.

    `chain` are the calls between the softmax and the product with the values.
    """
    if sum_to_one(core.weights, core.key_axes) is not False:
        return None
    for place, event in enumerate(chain):
        own = {ref for call in chain for ref in call.refs} | {core.softmax.ref}
        is_by_own = event.name in ops.DIVISIONS and len(event.sources) == 2
        if not is_by_own or any(own.isdisjoint(sources) for sources in event.sources):
            continue
        if any(later.name not in ops.SAME_VALUES for later in chain[place + 1 :]):
            continue
        weights, divisor = event.operand_values
        if weights.ndim != divisor.ndim:
            continue
        axes = [axis for axis in range(weights.ndim) if _is_one_sum(weights, divisor, axis)]
        if len(axes) != 1:
            continue
        divisors = divisor[divisor.abs() > _SMALL]
        summed = symbol_or_number(weights.shape[axes[0]], subject.numbers)
        if bool(torch.isclose(divisors, torch.ones_like(divisors), rtol=_SMALL).all()):
            message = f"weights are divided by their sum over axis {axes[0]} ({summed}), which is one already: "
            message += "their sums over the keys are not one"
            hint = "divide by the sum over the keys: weights / weights.sum(dim=-1, keepdim=True)"
            return _violation(message, event, hint)
        if bool((divisors > 1 + _SMALL).all()) and _is_increased(subject, event):
            message = f"weights sum to one over axis {axes[0]} ({summed}) before something is added to their sum: "
            message += "what it stands for takes a part that doesn't depend on the scores"
            hint = "add it to the sum of the exponentials, or append it to the scores before the softmax"
            return _violation(message, event, hint)
    return None


def _is_one_sum(weights: Tensor, divisor: Tensor, axis: int) -> bool:
    """Return whether weights sum to one along an axis, and are divided by one number at all of its indices."""
    is_shared = weights.shape[axis] > 1 and torch.equal(divisor, divisor.narrow(axis, 0, 1).expand_as(divisor))
    return is_shared and sum_to_one(weights, axis) is True


def _is_increased(subject: Subject, division: ReplayedCall) -> bool:
    """Return whether a call divides by a sum to which something is added."""
    event = subject.graph.input_node(division, 1)
    while event is not None and event.name in _BROADCASTS:
        event = subject.graph.input_node(event, 0)
    if event is None or event.name not in ops.ADDITIONS:
        return False
    return any(call.name in ops.SUMS for call in subject.graph.input_nodes(event))


def _violation(message: str, event: ReplayedCall, hint: str) -> Violation:
    evidence = "summed the weights before the division and at the product with the values, and read the divisor"
    return Violation("AS302", message, event.refs[0], hint, evidence, "measured")

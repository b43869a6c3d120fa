"""Finds weights of several heads that are summed although the result takes them for one distribution.

Each head's weights sum to one, so their sum over n heads sums to n. Where a result would be a distribution if that sum
were divided by n, and isn't one as it is, the mean was meant: as in a mixture of `gate * words + (1 - gate) * copied`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from attnshape.checks.attention.cores import softmaxes, sum_to_one
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Intervention
from attnshape.checks.interventions.replay import Producer, ReplayedCall
from attnshape.checks.rules.protocol import Violation
from attnshape.tracing import operations as ops

_CLOSE = 1e-5


def check_summed_heads(subject: Subject) -> Iterator[Violation]:
    """Divide each sum over several rows of weights by their number: no result may become a distribution by that."""
    for event, number in _sums_of_weights(subject):
        divide = partial(_divided, number)
        run = subject.experiment.run(Intervention(results={event.refs[0]: divide}))
        if not run.follows(subject.base):
            continue
        for (path, before), (_, after) in zip(subject.base.returned, run.returned, strict=True):
            sums = _sums_that_become_one(before, after)
            # the weights alone, moved to other places, may be meant as a score of each key
            if sums is None or bool((sums - number).abs().le(_CLOSE).all()):
                continue
            spread = f"{sums.min():.4g}" if float(sums.max() - sums.min()) < _CLOSE else None
            spread = spread or f"{sums.min():.4g} to {sums.max():.4g}"
            message = (
                f"{number} distributions of weights are summed, not averaged: rows of {path} sum to {spread}, "
                f"and to one if this sum is divided by {number}"
            )
            evidence = f"divided the sum of the weights by {number}"
            yield Violation("AS302", message, event.refs[0], "take the mean instead of the sum", evidence)
            break


def _divided(number: int, value: Tensor) -> Tensor:
    return value / number


def _sums_of_weights(subject: Subject) -> Iterator[tuple[ReplayedCall, int]]:
    """Yield the calls that sum the weights of a softmax over other axes than the keys, with the number of summands."""
    for softmax in softmaxes(subject.graph):
        if softmax.event.name in ops.LOG_SOFTMAXES:
            continue
        reached: set[Producer] = {softmax.ref}
        for event in subject.base.events[softmax.event.order :]:
            if not event.producers & reached:
                continue
            if event.name in ops.SAME_VALUES | ops.DROPOUTS:
                reached.update(event.refs)
            elif event.name in ops.SUMS:
                number = event.operand_values[0].numel() // max(event.numel, 1)
                mean = event.values[0] / max(number, 1)
                if number > 1 and mean.ndim and any(sum_to_one(mean, axis) is True for axis in range(mean.ndim)):
                    yield event, number


def _sums_that_become_one(before: Tensor, after: Tensor) -> Tensor | None:
    """Return the sums of a result's rows if they aren't one, and are in the other run; None if that isn't so.

    The result may be the logarithms of what sums to one.
    """
    if not before.is_floating_point() or before.shape != after.shape or before.ndim < 2:
        return None
    if bool((after < 0).any()):
        before, after = before.exp(), after.exp()
    for axis, size in enumerate(after.shape):
        if 1 < size < after.numel() and _are_one(after.sum(axis)):
            return None if _are_one(before.sum(axis)) else before.sum(axis)
    return None


def _are_one(sums: Tensor) -> bool:
    return bool(torch.isfinite(sums).all()) and bool((sums - 1).abs().le(_CLOSE).all())

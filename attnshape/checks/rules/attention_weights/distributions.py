"""Finds results that would be distributions, such as over words, if weights were moved there in another way.

A pointer-generator (See et al. 2017, https://arxiv.org/abs/1704.04368, section 2.2) mixes words of a vocabulary with
words that are copied: `gate * words + (1 - gate) * copied`. Each head's weights sum to one, so that a sum over n heads
sums to n, where the mean was meant. And a word that occurs twice gets the weights of both places, added.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from attnshape.checks.attention.cores import softmaxes, sum_to_one
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Intervention
from attnshape.checks.interventions.replay import Producer, Replace, ReplayedCall
from attnshape.checks.rules.protocol import Violation
from attnshape.tracing import operations as ops

_CLOSE = 1e-5


@dataclass(frozen=True)
class _Repair:
    """What a call would give instead, if its weights were meant to be parts of one distribution."""

    event: ReplayedCall
    change: Replace
    mistake: str
    cure: str
    """What makes rows of a result sum to one."""
    hint: str
    count: int = 0
    """How many distributions are summed, if they are."""


def check_distributions(subject: Subject) -> Iterator[Violation]:
    """Repair each call that may have been meant otherwise: no result may become a distribution by that."""
    for repair in (*_means(subject), *_additions(subject)):
        run = subject.experiment.run(Intervention(results={repair.event.refs[0]: repair.change}))
        if not run.follows(subject.base):
            continue
        for (path, before), (_, after) in zip(subject.base.returned, run.returned, strict=True):
            sums = _sums_that_become_one(before, after)
            # the weights alone, moved to other places, may be meant as a score of each key
            if sums is None or (repair.count and bool((sums - repair.count).abs().le(_CLOSE).all())):
                continue
            spread = f"{sums.min():.4g}" if float(sums.max() - sums.min()) < _CLOSE else None
            spread = spread or f"{sums.min():.4g} to {sums.max():.4g}"
            message = f"{repair.mistake}: rows of {path} sum to {spread}, and to one if {repair.cure}"
            yield Violation(
                "AS302", message, repair.event.refs[0], repair.hint, f"changed the call so that {repair.cure}"
            )
            break


def _means(subject: Subject) -> Iterator[_Repair]:
    """Yield the sums of several distributions, to be divided by their number."""
    for event, number in _sums_of_weights(subject):
        mistake = f"{number} distributions of weights are summed, not averaged"
        cure = f"this sum is divided by {number}"
        yield _Repair(event, partial(_divided, number), mistake, cure, "take the mean instead of the sum", number)


def _additions(subject: Subject) -> Iterator[_Repair]:
    """Yield the writes of weights to places of which some are the same, to be added there."""
    weights = subject.graph.downstream({softmax.ref for softmax in softmaxes(subject.graph)})
    for event in subject.base.events:
        if event.name != "scatter" or len(event.operand_values) != 3 or weights.isdisjoint(event.sources[2]):
            continue
        start, index, source = event.operand_values
        axis = event.keywords.get("dim", next((one for one in event.args[1:2] if isinstance(one, int)), None))
        if not isinstance(axis, int) or event.unusual is not None or start.shape != event.values[0].shape:
            continue
        added = start.scatter_add(axis, index, source)
        counts = torch.zeros_like(start).scatter_add(axis, index, torch.ones_like(source))
        if bool((counts > 1).any()):
            mistake = "weights are written over each other where several have the same index"
            yield _Repair(event, partial(_instead, added), mistake, "they are added there", "use scatter_add")


def _instead(value: Tensor, _: Tensor) -> Tensor:
    return value.clone()


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

"""The factor of scores whose exponentials weight the values, and are divided by their sum elsewhere.

A running softmax (Milakov and Gimelshein 2018, https://arxiv.org/abs/1805.02867) subtracts the maximum of all chunks so
far. That is the same number for all keys of a query, so that the differences between keys show the factor.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from attnshape.checks.attention.cores import Core, exponential_cores
from attnshape.checks.attention.elementwise import HIDES
from attnshape.checks.attention.operands import AttentionOperand
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Intervention

_CLOSE = 1e-5


@dataclass(frozen=True)
class RunningScores:
    """Scores of one chunk."""

    core: Core
    own: tuple[AttentionOperand, AttentionOperand]
    """The queries and the keys."""
    factor: float
    """From the product to the exponential."""


def running_scores(subject: Subject) -> Iterator[RunningScores]:
    """Replace the scores of all chunks by random numbers, and read the factor at the exponentials.

    Yield nothing if a chunk's exponentials don't depend on its scores by a factor. A chunk of one key shows nothing.
    """
    cores = exponential_cores(subject.graph)
    if not cores:
        return
    results = {core.scores.ref: _random for core in cores}
    run = subject.experiment.run(Intervention(results=results))
    if not run.follows(subject.base):
        return
    found = []
    for core in cores:
        read = run.events[core.softmax.owner.order - 1].operand_values[core.softmax.place].double()
        if not core.key_axes:
            continue
        keys = _axis_of_keys(core)
        if keys is None:
            return
        axis, own = keys
        factor = _factor_along(run.value(core.scores.ref).double() - core.scores.added, read, axis)
        if factor is None:
            return
        found.append(RunningScores(core, own, factor))
    yield from found


def _axis_of_keys(core: Core) -> tuple[int, tuple[AttentionOperand, AttentionOperand]] | None:
    """Return the axis of the scores that holds the keys, with the queries and the keys; None if it isn't one axis."""
    if len(core.key_axes) != 1 or core.weights.shape != core.scores.result.shape:
        return None
    axis, (left, right) = core.key_axes[0], core.scores.places
    query, key = (right, left) if axis in core.scores.free(left) else (left, right)
    event = core.scores.first
    return axis, (AttentionOperand("query", core, event, query), AttentionOperand("key", core, event, key))


def _factor_along(scores: Tensor, read: Tensor, axis: int) -> float | None:
    """Return the factor by which differences along an axis are multiplied; None if they aren't by one."""
    shown = torch.isfinite(read) & (read > HIDES)
    count = shown.sum(axis, keepdim=True).clamp(min=1)
    before, after = (
        value.where(shown, 0.0) - value.where(shown, 0.0).sum(axis, keepdim=True) / count for value in (scores, read)
    )
    before, after = before[shown], after[shown]
    if not before.numel() or not bool((before.abs() > _CLOSE).any()):
        return None
    factor = float((before * after).sum() / before.square().sum())
    is_factor = torch.allclose(after, factor * before, rtol=_CLOSE, atol=_CLOSE * float(after.abs().max()))
    return factor if is_factor and factor else None


def _random(value: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(17)
    return torch.randn(value.shape, generator=generator, dtype=torch.float64).to(value.dtype)

"""Looks for queries and keys that have unit length along another axis than their product sums over."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from attnshape.checks.attention.cores import FusedCore
from attnshape.checks.attention.operands import AttentionOperand, by_attention
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.replay import OutputRef, ReplayedCall
from attnshape.tracing import operations as ops

_SAME = 1e-4
"""The relative difference up to which lengths are equal; some code adds a small number to them."""
_ROOTS = {"sqrt", "rsqrt", "pow"}
_SUMS = ops.SUMS | {"mean"}


@dataclass(frozen=True)
class MisplacedNorm:
    """Queries or keys whose vectors along an axis that their product keeps all have one length."""

    operand: AttentionOperand
    at: OutputRef
    """The call that computes the lengths."""
    axis: int
    """The axis along which they are normalised."""
    summed: int
    """The axis over which the product sums."""


def misplaced_norms(subject: Subject) -> Iterator[MisplacedNorm]:
    """Yield the queries and keys that are normalised along another axis than their product sums over.

    What the values are computed from too is normalised for more than the scores, and doesn't count.
    """
    for query, key, value in by_attention(subject):
        of_values = {event.order for event in subject.graph.upstream(value.sources)}
        for operand in (query, key):
            if len(operand.contracted) != 1 or not operand.value.is_floating_point():
                continue
            summed = operand.contracted[0]
            vectors = operand.value.double()
            along = next((axis for axis in _kept_axes(operand) if _have_one_length(vectors, axis, summed)), None)
            at = _norm(subject, operand, of_values)
            if along is not None and at is not None and not _have_one_length(vectors, summed, along):
                yield MisplacedNorm(operand, at, along, summed)


def _kept_axes(operand: AttentionOperand) -> list[int]:
    """Return the axes of queries or keys that only they bring to the scores."""
    if isinstance(operand.core, FusedCore):
        return [operand.value.ndim - 2]
    scores = operand.core.scores
    free = scores.free(operand.place)
    return [axis for axis, stays in enumerate(scores.axes[operand.place]) if stays & free]


def _have_one_length(value: Tensor, axis: int, across: int) -> bool:
    """Return whether vectors along an axis have one length at all indices of another axis, and aren't centred.

    The length may differ from head to head, as by a factor for each.
    """
    if value.shape[axis] < 2 or value.shape[across] < 2:
        return False
    lengths = value.norm(dim=axis, keepdim=True).movedim(across, -1)
    same = torch.isclose(lengths, lengths[..., :1], rtol=_SAME, atol=0.0)
    # a normalisation to mean 0 and variance 1 gives one length too, and makes no cosines
    sums = value.sum(axis, keepdim=True).movedim(across, -1).abs()
    return bool(same.all()) and bool((lengths > 0).all()) and not bool((sums < _SAME * lengths).all())


def _norm(subject: Subject, operand: AttentionOperand, of_values: set[int]) -> OutputRef | None:
    """Return the last call that computes lengths for the queries or keys alone."""
    for event in subject.graph.upstream(operand.sources):
        if event.order in of_values or event.refs[0] not in subject.graph.depends_on_data:
            continue
        if event.name in ops.VECTOR_NORMS or _is_root_of_sum(subject, event):
            return event.refs[0]
    return None


def _is_root_of_sum(subject: Subject, event: ReplayedCall) -> bool:
    """Return whether a call takes the root of a sum, apart from a small number that is added to it or bounds it."""
    if event.name not in _ROOTS:
        return False
    between = ops.ADDITIONS | ops.LOWER_BOUNDS | ops.SCALINGS
    for earlier in subject.graph.upstream(event.sources[0]):
        if earlier.name in _SUMS:
            return True
        if earlier.name not in between:
            return False
    return False

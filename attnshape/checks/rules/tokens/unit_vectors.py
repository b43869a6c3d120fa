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
            along = next((axis for axis in kept_axes(operand) if have_one_length(vectors, axis, summed)), None)
            at = _norm(subject, operand, of_values)
            if along is not None and at is not None and not have_one_length(vectors, summed, along):
                yield MisplacedNorm(operand, at, along, summed)


@dataclass(frozen=True)
class JointNorm:
    """Queries or keys whose vectors have one length over all heads together, and none in each head."""

    operand: AttentionOperand
    at: OutputRef
    """The call that computes the lengths."""


def joint_norms(subject: Subject) -> Iterator[JointNorm]:
    """Yield the queries and keys whose vectors were divided by their length before they were split into heads.

    A norm by the mean square is left alone: some models have it over all heads (OLMo 2, https://arxiv.org/abs/2501.00656).
    """
    heads = {subject.numbers.get("H", 0), subject.numbers.get("Hkv", 0)} - {0, 1}
    for query, key, value in by_attention(subject):
        of_values = {event.order for event in subject.graph.upstream(value.sources)}
        for operand in (query, key):
            kept = kept_axes(operand)
            if len(operand.contracted) != 1 or len(kept) != 1 or not operand.value.is_floating_point():
                continue
            summed = operand.contracted[0]
            others = [axis for axis in range(operand.value.ndim) if axis not in (summed, *kept)]
            of_heads = [axis for axis in others if operand.value.shape[axis] in heads]
            at = _norm(subject, operand, of_values)
            if len(of_heads) != 1 or at is None or _divides_by_mean(subject, at):
                continue
            if have_one_length(operand.value.double(), of_heads[0], summed):
                continue  # the lengths are those over the heads alone, which mix them
            lengths = operand.value.double().norm(dim=summed, keepdim=True)
            whole = lengths.norm(dim=of_heads[0])
            is_one = torch.isclose(whole, whole.flatten()[0], rtol=_SAME, atol=0.0).all()
            if bool(is_one) and not have_one_length(operand.value.double(), summed, kept[0]):
                yield JointNorm(operand, at)


def _divides_by_mean(subject: Subject, at: OutputRef) -> bool:
    """Return whether lengths are roots of a mean."""
    event = subject.base.event(at)
    calls = subject.graph.upstream(event.sources[0])
    return event.name in _ROOTS and next((call.name for call in calls if call.name in _SUMS), "") == "mean"


def kept_axes(operand: AttentionOperand) -> list[int]:
    """Return the axes of queries or keys that only they bring to the scores."""
    if isinstance(operand.core, FusedCore):
        return [operand.value.ndim - 2]
    scores = operand.core.scores
    free = scores.free(operand.place)
    return [axis for axis, stays in enumerate(scores.axes[operand.place]) if stays & free]


def have_one_length(value: Tensor, axis: int, across: int) -> bool:
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

"""Looks for heads that share some features of a projection, while other features of it are in no head."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from attnshape.checks.attention.cores import between
from attnshape.checks.attention.definitions import index_definition
from attnshape.checks.attention.layouts import combined, feature_axes, layouts, projection_of
from attnshape.checks.attention.operands import AttentionOperand, operands
from attnshape.checks.attention.perturbation import others_where
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Intervention
from attnshape.checks.interventions.replay import OutputRef, ReplayedCall
from attnshape.checks.rules.head_split.scattered import vector_axes
from attnshape.checks.rules.protocol import Violation

_Head = frozenset[int]
"""The features of a projection that one head has."""


def overlapping(subject: Subject) -> Violation | None:
    """Return the violation if two heads share some of their features, and others change nothing since no head has them.

    Heads that share all of their features are repeated. Heads may overlap on purpose, as where they share a part that
    is rotated, but then nothing of the projection is left over.
    """
    for start, own in _by_projection(subject).items():
        features = _features(subject, start)
        heads = [(operand, _heads(subject, operand, start, features)) for operand in own]
        found = _first_overlap(heads)
        if found is None:
            continue
        read = {feature for _, of_operand in heads for head in of_operand for feature in head}
        unread = _without_effect(subject, start, features, [one for one in _present(features) if one not in read])
        if unread:
            return _violation(subject, start, features, found, unread)
    return None


def _by_projection(subject: Subject) -> dict[OutputRef, list[AttentionOperand]]:
    found: dict[OutputRef, list[AttentionOperand]] = {}
    for operand in operands(subject):
        start = projection_of(subject, operand.sources)
        if start is not None:
            found.setdefault(start, []).append(operand)
    return found


def _features(subject: Subject, start: OutputRef) -> Tensor:
    """Return for each element of a projection, flattened, which feature it is."""
    return combined(tuple(subject.base.value(start).shape), _axes(subject, start))


def _present(features: Tensor) -> list[int]:
    return list(range(int(features.max()) + 1)) if features.numel() else []


def _heads(subject: Subject, operand: AttentionOperand, start: OutputRef, features: Tensor) -> list[_Head]:
    """Return the features that each head of an operand has, in the order of the heads; none if that can't be told."""
    followed = layouts(subject).followed(start, (operand.event, operand.place))
    own = vector_axes(operand)
    if followed is None or not own:
        return []
    slots = [axis for axis in range(len(followed.shape)) if axis not in own]

    def by_slot(values: Tensor) -> Tensor:
        of_all = torch.where(followed.source >= 0, values[followed.source.clamp(min=0)], -1)
        return of_all.reshape(followed.shape).permute(*slots, *own).flatten(len(slots)).flatten(0, -2)

    vector = combined(
        followed.start, [axis for axis in range(len(followed.start)) if axis not in _axes(subject, start)]
    )
    vectors, held = by_slot(vector), by_slot(features)
    if bool(((vectors >= 0) & (vectors != vectors.amax(-1, keepdim=True))).any()):
        return []  # not the features of one token each
    rows = held.sort(dim=-1).values
    different = list(dict.fromkeys(map(tuple, torch.unique(rows, dim=0).tolist())))
    return [frozenset(row) - {-1} for row in sorted(different) if max(row) >= 0]


def _axes(subject: Subject, start: OutputRef) -> tuple[int, ...]:
    """Return the axes of a projection that hold its features."""
    return feature_axes(subject, subject.base.event(start)) or ()


def _first_overlap(
    heads: Sequence[tuple[AttentionOperand, Sequence[_Head]]],
) -> tuple[AttentionOperand, _Head, _Head] | None:
    """Return the first head that shares some features with an earlier one of its role, its operand first."""
    for role in ("query", "key", "value"):
        known: list[_Head] = []
        for operand, head in ((operand, head) for operand, own in heads if operand.role == role for head in own):
            other = next((one for one in known if one & head and one != head), None)
            if other is not None:
                return operand, other, head
            known.append(head)
    return None


def _without_effect(subject: Subject, start: OutputRef, features: Tensor, candidates: Sequence[int]) -> list[int]:
    """Return adjacent features of a projection that are among the candidates and change nothing."""
    shape = subject.base.value(start).shape
    for block in [candidates, *_adjacent(candidates)]:
        mask = torch.isin(features, torch.tensor(block)).reshape(shape) if block else None
        if mask is not None and subject.perturb(Intervention(results={start: others_where(mask)})).has_no_effect:
            return list(block)
    return []


def _adjacent(numbers: Sequence[int]) -> Iterator[list[int]]:
    """Yield the parts of sorted numbers in which each is one more than the one before."""
    for _, part in itertools.groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        yield [number for _, number in part]


def _violation(
    subject: Subject,
    start: OutputRef,
    features: Tensor,
    found: tuple[AttentionOperand, _Head, _Head],
    unread: Sequence[int],
) -> Violation:
    operand, first, second = found
    at = _selection(subject, start, features, operand, unread)
    of_all, roles = len(_present(features)), "queries" if operand.role == "query" else f"{operand.role}s"
    message = (
        f"heads overlap: two heads of the {roles} share {len(first & second)} of their {len(second)} features, "
        f"while {len(unread)} of {of_all} features of the projection are in no head"
    )
    hint = "let head h begin at feature h * Dk: slice(h * Dk, (h + 1) * Dk)"
    made = index_definition(subject, at)
    return Violation("AS121", message, at, hint, f"changed {len(unread)} features of the projection", made=made)


def _selection(
    subject: Subject, start: OutputRef, features: Tensor, operand: AttentionOperand, unread: Sequence[int]
) -> OutputRef:
    """Return the first call that leaves out the features that no head has, or repeats some more often than others."""
    calls = between(subject.graph, start, operand.sources)
    for place, call in enumerate(calls):
        if _is_uneven(subject, start, features, call) or not any(
            _held(subject, start, features, later) & set(unread) for later in calls[place:]
        ):
            return call.refs[0]
    return operand.core.context


def _held(subject: Subject, start: OutputRef, features: Tensor, call: ReplayedCall) -> set[int]:
    """Return the features of a projection that the results of a call have."""
    followed = (layouts(subject).followed(start, ref) for ref in call.refs)
    return {feature for one in followed if one is not None for feature in one.of(features).tolist()}


def _is_uneven(subject: Subject, start: OutputRef, features: Tensor, call: ReplayedCall) -> bool:
    """Return whether a call's result has some features of a projection more often than others."""
    followed = layouts(subject).followed(start, call.refs[0])
    counts = torch.bincount(followed.of(features)) if followed is not None else torch.zeros(0)
    return len(set(counts[counts > 0].tolist())) > 1

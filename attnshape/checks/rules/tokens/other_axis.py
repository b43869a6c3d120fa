"""Looks for scores that depend on the key at the query's own place: a length broadcast along the wrong axis.

The cosine of query i and key j divides by the lengths of both. With a length for each key in the shape (…, keys, 1),
which also fits the axis of queries, it divides by that of key i.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from attnshape.checks.attention.cores import FusedCore
from attnshape.checks.attention.elementwise import HIDES
from attnshape.checks.attention.operands import AttentionOperand, by_attention
from attnshape.checks.attention.perturbation import others_where
from attnshape.checks.attention.subject import Subject
from attnshape.checks.attention.visibility import VisibleKeys, explain_visibility
from attnshape.checks.interventions.experiment import Intervention
from attnshape.checks.interventions.replay import OutputRef, Producer, Replace, ReplayedCall
from attnshape.checks.rules.tokens.unit_vectors import kept_axes
from attnshape.tracing import operations as ops


@dataclass(frozen=True)
class CrossedNorm:
    """Keys, or queries, of which each changes the scores of the query, or of the key, at its own place too."""

    operand: AttentionOperand
    at: OutputRef
    """The call that combines what is computed from them with what belongs to the other ones."""
    index: int
    """The key or query that was changed."""


def crossed_norms(subject: Subject) -> Iterator[CrossedNorm]:
    """Yield the keys and queries of which each scales, or shifts, the scores at its own place along the other axis."""
    visible = {one.visible.core.context: one.visible for one in explain_visibility(subject)[0]}
    for query, key, _ in by_attention(subject):
        seen = visible.get(query.core.context)
        if seen is None or seen.keys.shape[-2] != seen.keys.shape[-1]:
            continue
        for operand, other in ((key, query), (query, key)):
            start = _start(subject, operand, other)
            at = _meeting(subject, operand, other, start) if start is not None else None
            index = seen.keys.shape[-1] // 2
            if start is not None and at is not None and _crosses(subject, operand, start, seen, index):
                yield CrossedNorm(operand, at, index)


def _start(subject: Subject, operand: AttentionOperand, other: AttentionOperand) -> Producer | None:
    """Return the input or result of which an operand is a layout, as early as it isn't the other operand's too."""
    found: Producer | None = None
    shared = _layouts_of(subject, other)
    for one in _layouts_of(subject, operand):
        if one in shared:
            break
        found = one
    return found


def _layouts_of(subject: Subject, operand: AttentionOperand) -> list[Producer]:
    """Return the results, and perhaps the input, of which an operand is a layout only, the last one first."""
    found: list[Producer] = []
    sources = operand.sources
    while len(sources) == 1:
        source = sources[0]
        if isinstance(source, OutputRef) or source in subject.inputs:
            found.append(source)
        event = subject.base.event(source) if isinstance(source, OutputRef) else None
        moves = event is not None and event.name in ops.LAYOUT | ops.CASTS and len(event.sources) == 1
        sources = event.sources[0] if event is not None and moves else ()
    return found


def _meeting(subject: Subject, operand: AttentionOperand, other: AttentionOperand, start: Producer) -> OutputRef | None:
    """Return the first call that combines an operand with the other one apart from the product of both."""
    graph, core = subject.graph, operand.core
    end = core.event if isinstance(core, FusedCore) else core.softmax.owner
    own = _computed_apart(subject, start, operand.event)
    ancestors = {producer for event in graph.upstream((start,)) for producer in event.producers}
    theirs: set[Producer] = {*other.sources}
    theirs |= {producer for event in graph.upstream(other.sources) for producer in event.producers}
    theirs = {one for one in theirs - own - ancestors if isinstance(one, OutputRef) or one in subject.inputs}
    others = theirs | graph.downstream(theirs)
    before = {event.order for sources in end.sources for event in graph.upstream(sources)}
    for event in subject.base.events[: end.order - 1]:
        if event.order not in before or event is operand.event or event.name in ops.PRODUCTS:
            continue
        reads_own = [any(one in own for one in sources) for sources in event.sources]
        reads_other = [any(one in others for one in sources) for sources in event.sources]
        if any(a and not b for a, b in zip(reads_own, reads_other, strict=True)) and any(
            b and not a for a, b in zip(reads_own, reads_other, strict=True)
        ):
            return event.refs[0]
    return None


def _computed_apart(subject: Subject, start: Producer, product: ReplayedCall) -> set[Producer]:
    """Return what depends on an input or a result other than through the product of queries and keys."""
    reached = {start}
    for event in subject.base.events:
        if event is not product and not reached.isdisjoint(event.producers):
            reached.update(event.refs)
    return reached


def _changed(start: Producer, change: Replace) -> Intervention:
    return (
        Intervention(results={start: change}) if isinstance(start, OutputRef) else Intervention(inputs={start: change})
    )


def _crosses(subject: Subject, operand: AttentionOperand, start: Producer, seen: VisibleKeys, index: int) -> bool:
    """Return whether one key, or query, changes all scores at its own place along the other axis, all alike."""
    elements = _elements_at(subject, operand, start, index)
    if elements is None:
        return False
    run = subject.perturb_each(_changed(start, others_where(elements))).run
    before, after = (seen.scores_in(one) if one.follows(subject.base) else None for one in (subject.base, run))
    if before is None or after is None or before.shape != after.shape:
        return False
    added = seen.added.expand_as(before)
    if operand.role == "query":
        before, after, added = before.mT, after.mT, added.mT
    # rows are now those of the other operand, columns those that belong to what was changed
    columns = torch.arange(before.shape[-1]) != index
    before, after, added = (one[..., columns] for one in (before, after, added))
    shown = (before > HIDES) & (after > HIDES) & added.isfinite()
    differing = shown & ~torch.isclose(before, after, rtol=1e-6, atol=1e-9)
    rows = differing.flatten(0, 1).any(0).any(-1)
    if rows.nonzero().flatten().tolist() != [index]:
        return False
    row_before, row_after, row_added, counted = (one[..., index, :] for one in (before, after, added, shown))
    # a bias of positions is added to scores that were divided by the lengths before
    factors = (row_after - row_added) / (row_before - row_added)
    return _are_alike(factors, counted) or _are_alike(row_after - row_before, counted)


def _are_alike(numbers: Tensor, counted: Tensor) -> bool:
    """Return whether the counted numbers of each row are equal."""
    first = torch.where(counted, numbers, torch.nan).nanmedian(-1, keepdim=True).values
    return bool((torch.isclose(numbers, first, rtol=1e-4, atol=1e-9) | ~counted).all())


def _elements_at(subject: Subject, operand: AttentionOperand, start: Producer, index: int) -> Tensor | None:
    """Return which elements of a result become the operand's at one place of its axis of tokens; None if unknown."""
    axes = kept_axes(operand)
    value = subject.base.value(start) if isinstance(start, OutputRef) else subject.base.inputs[start]
    if len(axes) != 1 or value.numel() != operand.value.numel():
        return None
    numbers = torch.arange(value.numel(), dtype=torch.float64).reshape(value.shape)
    run = subject.perturb_each(_changed(start, lambda old: numbers.to(old.dtype))).run
    if not run.follows(subject.base):
        return None
    places = operand.of(run).select(axes[0], index).flatten().round().long()
    if not bool(((places >= 0) & (places < value.numel())).all()):
        return None
    elements = torch.zeros(value.numel(), dtype=torch.bool)
    elements[places] = True
    return elements.reshape(value.shape)

"""Weights of edges: exponentials divided by sums over those with the same index. Do they sum to one?

Messages are values times weights, summed at the nodes to which they go. With every value set to 1, what a node gets is
the sum of its weights. It is one if the exponentials were summed at the same nodes. Sums without such weights, such as
means over neighbours, are no attention.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Intervention
from attnshape.checks.interventions.replay import OutputRef, Producer, ReplayedCall
from attnshape.checks.rules.protocol import Outcome, Undecided, Verification, Violation
from attnshape.inference.dataflow import numbers_read
from attnshape.tracing import operations as ops
from attnshape.tracing.raw import SourceLocation
from attnshape.tracing.source_locations import SourceLocator

_MOVES = ops.SAME_VALUES | ops.GATHERS
_GUARDS = ops.ADDITIONS | ops.LOWER_BOUNDS
_SMALL = 0.01
"""Larger numbers that are added to a sum are meant to keep the weights' sum below one."""
_CLOSE = 1e-3
_SUM_NAMES = ("sum", "add")


def sums_by_index(event: ReplayedCall) -> bool:
    """Return whether a call sums numbers by their indices."""
    given = (*event.args, *event.keywords.values())
    if event.name == "index_put":
        return any(value is True for value in given)
    if event.name in ops.INDEXED_ADDITIONS:
        return True
    return event.name in ops.INDEXED_REDUCTIONS and any(isinstance(one, str) and one in _SUM_NAMES for one in given)


@dataclass(frozen=True)
class _Weights:
    """Exponentials that are divided by their sums, before or after they multiply the values."""

    exponential: ReplayedCall
    summed: ReplayedCall
    """The call that sums the exponentials."""
    quotient: ReplayedCall
    """The call that divides by the sums."""


@dataclass(frozen=True)
class _Messages:
    """Values times weights, and where they are summed."""

    product: ReplayedCall
    place: int
    """The place of the weights among the operands."""
    summed: ReplayedCall
    context: OutputRef
    """The sums, divided by those of the exponentials if that comes last."""


def check_indexed(subject: Subject, topic: str) -> Iterator[Outcome]:
    """Check that the weights of edges sum to one at each node that sums values with them."""
    judged = [(weights, *found) for weights in _weights(subject) if (found := _sums(subject, weights)) is not None]
    wrong = [one for one in judged if not _are_whole(one[2], 1)]
    for weights, messages, sums in wrong:
        if _are_whole(sums, sums.round()):
            # the weights of each kind of edges may sum to one by themselves
            yield Undecided(topic, "the weights that are summed at one index sum to whole numbers")
        else:
            yield _violation(subject, weights, messages, sums)
    if judged and not wrong:
        yield Verification("the weights with which values are summed by their indices sum to one")


def _are_whole(sums: Tensor, numbers: Tensor | int) -> bool:
    return bool((sums - numbers).abs().le(_CLOSE).all())


def _violation(subject: Subject, weights: _Weights, messages: _Messages, sums: Tensor) -> Violation:
    message = (
        "the weights that are summed at one index don't sum to one: "
        f"if every value is 1, the sums are {sums.min():.4g} to {sums.max():.4g}"
    )
    hint = "sum the exponentials by the index by which the weighted values are summed"
    evidence = "set the values to 1 everywhere, and read the sums of the weights"
    at, place = weights.summed.refs[0], _call_with_index(weights, messages)
    if _same_index(weights.summed, messages.summed) and (gather := _last_gather(subject, weights)) is not None:
        at, place = gather, None
        hint = "divide by the sums at the index by which the weighted values are summed"
    return Violation("AS302", message, at, hint, evidence, place=place)


def _call_with_index(weights: _Weights, messages: _Messages) -> SourceLocation | None:
    """Return where a function that only makes the weights gets the index; None if the values are weighed there too."""
    calls, functions = weights.summed.calls, {frame.f_code for frame in messages.product.calls}
    helper = weights.quotient.calls[0].f_code if weights.quotient.calls else None
    for level, frame in enumerate(calls):
        if frame.f_code in functions:
            return SourceLocator().find(frame)[0] if level else None
        if frame.f_code is helper:
            return SourceLocator().find(calls[level + 1])[0] if level + 1 < len(calls) else None
    return None


def _weights(subject: Subject) -> Iterator[_Weights]:
    """Yield the exponentials that are divided by sums of themselves over those with the same index."""
    graph = subject.graph
    for event in subject.base.events:
        if event.name not in ops.SCALINGS or len(event.sources) != 2:
            continue
        denominators = (1,) if event.name in ops.DIVISIONS else (0, 1)
        for place in denominators:
            summed = _index_sum(subject, event, place)
            exponential = _moved_from(subject, _source(summed)) if summed is not None else None
            if summed is None or exponential is None or exponential.name not in ops.EXPONENTIALS:
                continue
            if any(ref in graph.downstream_of(exponential.refs[0]) for ref in event.sources[1 - place]):
                yield _Weights(exponential, summed, event)
                break


def _source(event: ReplayedCall) -> tuple[Producer, ...]:
    """Return the producers of what a call sums by index: its last operand of floating-point numbers."""
    floating = [
        sources for value, sources in zip(event.operand_values, event.sources, strict=True) if value.is_floating_point()
    ]
    return floating[-1] if floating else ()


def _moved_from(subject: Subject, sources: tuple[Producer, ...]) -> ReplayedCall | None:
    """Return the call whose numbers a tensor holds."""
    refs = [source for source in sources if isinstance(source, OutputRef)]
    event = subject.base.event(refs[-1]) if refs else None
    while event is not None and event.name in _MOVES:
        event = subject.graph.input_node(event, 0)
    return event


def _index_sum(subject: Subject, event: ReplayedCall, place: int) -> ReplayedCall | None:
    """Return the call that sums by index what a call divides by: only small numbers may be added to it."""
    inverted = event.name in ops.DIVISIONS
    before = _moved_from(subject, event.sources[place])
    while before is not None and not sums_by_index(before):
        if before.name in ops.REVERSED_DIVISIONS | {"reciprocal"}:
            inverted = True
        elif before.name not in _GUARDS or any(abs(number) > _SMALL for number in _numbers(before)):
            return None
        before = _moved_from(subject, before.sources[0])
    return before if inverted else None


def _numbers(event: ReplayedCall) -> list[float]:
    return [value for value in (*event.args, *event.keywords.values()) if isinstance(value, (int, float))]


def _sums(subject: Subject, weights: _Weights) -> tuple[_Messages, Tensor] | None:
    """Return what each index gets if every value is 1, of those that get anything; None if that can't be told."""
    messages = _messages(subject, weights)
    if messages is None:
        return None
    given = messages.product.operand_values[messages.place].expand(messages.product.values[0].shape)
    runs = [
        subject.experiment.run(Intervention(results={messages.product.refs[0]: replacement}))
        for replacement in (partial(_constant, given), torch.zeros_like)
    ]
    if not all(run.follows(subject.base) for run in runs):
        return None
    ones, nothing = (run.value(messages.context) for run in runs)
    # what messages are added to may not be zero
    sums = (ones - nothing)[torch.isfinite(ones)]
    sums = sums[sums != 0]
    return (messages, sums) if sums.numel() else None


def _constant(value: Tensor, _: Tensor) -> Tensor:
    return value.clone()


def _messages(subject: Subject, weights: _Weights) -> _Messages | None:
    """Return where the weights multiply values and are summed by index; None unless there is one such place."""
    deferred = not _moved_to(subject, weights.exponential, {weights.quotient.order})
    start = weights.exponential if deferred else weights.quotient
    found = []
    for product, place in _products(subject, start):
        for summed in readers_after_moves(subject, product):
            if not sums_by_index(summed) or _moved_from(subject, _source(summed)) is not product:
                continue
            context = weights.quotient.refs[0] if deferred else summed.refs[0]
            if not deferred or weights.quotient.order > summed.order:
                found.append(_Messages(product, place, summed, context))
    return found[0] if len(found) == 1 else None


def _moved_to(subject: Subject, event: ReplayedCall, orders: set[int]) -> bool:
    return any(reader.order in orders for reader in readers_after_moves(subject, event))


def readers_after_moves(subject: Subject, event: ReplayedCall) -> Iterator[ReplayedCall]:
    """Yield the calls that read a call's numbers, perhaps moved to other places, and do more than move them."""
    reached: set[Producer] = set(event.refs)
    for reader in subject.base.events[event.order :]:
        if any(map(reached.intersection, numbers_read(reader))):
            if reader.name in _MOVES or (reader.name in ops.DROPOUTS and _drops_nothing(reader)):
                reached.update(reader.refs)
            else:
                yield reader


def _drops_nothing(event: ReplayedCall) -> bool:
    return event.values[0].shape == event.operand_values[0].shape and torch.equal(
        event.values[0], event.operand_values[0]
    )


def _products(subject: Subject, start: ReplayedCall) -> Iterator[tuple[ReplayedCall, int]]:
    """Yield the calls that multiply values of several features each by weights, with the place of the weights."""
    graph, downstream = subject.graph, subject.graph.downstream_of(start.refs[0])
    for event in readers_after_moves(subject, start):
        if event.name not in ops.MULTIPLICATIONS or len(event.sources) != 2:
            continue
        for place in (0, 1):
            other = event.sources[1 - place]
            is_weights = not downstream.isdisjoint(event.sources[place]) and downstream.isdisjoint(other)
            if is_weights and graph.carries_data(other) and event.numel > event.operand_values[place].numel():
                yield event, place


def _index(event: ReplayedCall) -> Tensor | None:
    """Return the indices by which a call sums, one for each place along its first axis."""
    found = [value for value in event.operand_values if not value.is_floating_point() and value.ndim]
    if len(found) != 1:
        return None
    if event.name == "segment_reduce":
        return torch.arange(len(found[0])).repeat_interleave(found[0]) if found[0].ndim == 1 else None
    return found[0].reshape(found[0].shape[0], -1)[:, 0]


def _same_index(one: ReplayedCall, other: ReplayedCall) -> bool:
    first, second = _index(one), _index(other)
    return first is not None and second is not None and torch.equal(first, second)


def _last_gather(subject: Subject, weights: _Weights) -> OutputRef | None:
    """Return the call that selects the sums for the division."""
    downstream = subject.graph.downstream_of(weights.summed.refs[0])
    for place in (1, 0):
        for event in subject.graph.upstream(weights.quotient.sources[place]):
            if event.name in ops.GATHERS | ops.SELECTIONS | ops.REPEATS and event.refs[0] in downstream:
                return event.refs[0]
    return None

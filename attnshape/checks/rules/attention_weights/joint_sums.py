"""Weights that a projection gives, without scores of pairs: do all that sum values into one context sum to one?

Deformable attention (Zhu et al. 2020, https://arxiv.org/abs/2010.04159, section 4.1) projects each query to the weights
of points on several levels. A context sums the values of all levels, so that a softmax over the points of each level by
itself counts it once for each level. One over the points of all heads gives each context a part of the weights only.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from attnshape.checks.attention.cores import Softmax, softmaxes
from attnshape.checks.attention.products import recompute
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Intervention
from attnshape.checks.interventions.replay import OutputRef, Producer, Replace, ReplayedCall
from attnshape.checks.interventions.small_sizes import symbol_or_number
from attnshape.checks.rules.attention_weights.indexed_sums import readers_after_moves
from attnshape.checks.rules.protocol import Outcome, Verification, Violation
from attnshape.inference.dataflow import numbers_read
from attnshape.tracing import operations as ops

_CLOSE = 1e-4
_SAME = 1e-9
"""The rounding error of sums of weights."""
_WEIGHTED = ops.MULTIPLICATIONS | ops.PRODUCTS - {"linear"}
_LINEAR = ops.SAME_VALUES | ops.JOINS | ops.SUMS | ops.ADDITIONS
"""Operations of which the result sums what it reads, or holds it at other places."""


def check_joint(subject: Subject) -> Iterator[Outcome]:
    """Set the values to 1 that the weights of one projection multiply: what is summed from them must be 1."""
    verified = False
    for group in _by_projection(subject):
        weighted = [found for softmax in group for found in _weighted(subject, softmax)]
        sums = _sums(subject, weighted) if weighted else []
        if len(group) == 1 and (contexts := _contexts_of(subject, group[0], sums)) is not None:
            yield _violation_of_contexts(subject, group[0], contexts)
            return
        number = common_number(sums)
        if number is None or any(number % size == 0 for size in counted_sizes(subject)):
            continue
        if number == 1:
            verified = True
        else:
            yield _violation(subject, group, number)
            return
    if verified:
        yield Verification("all weights with which values are summed into one context sum to one")


def counted_sizes(subject: Subject) -> set[int]:
    """Return the numbers of batch elements, heads and tokens: sums over these are poolings, and no context's own."""
    return ({subject.batch_size} | subject.head_sizes | {subject.numbers[one] for one in subject.lengths}) - {0, 1}


def common_number(sums: Sequence[Tensor]) -> int | None:
    """Return the whole number, 1 or more, that each element of the last tensors is; None if there is none."""
    found = {
        round(float(one.flatten()[0]))
        for one in sums
        if one.numel()
        and bool(torch.isfinite(one).all())
        and bool((one - one.flatten()[0].round()).abs().le(_CLOSE).all())
    } - {0}
    return max(found) if found and min(found) > 0 else None


def _violation(subject: Subject, group: Sequence[Softmax], number: int) -> Violation:
    at = group[0].ref
    message = (
        f"the weights of a query sum to {number}, not to one: {number} rows of weights, "
        "each with a softmax of its own, sum values into one context"
    )
    hint = "take one softmax over all weights that are summed, such as those of all levels and points"
    evidence = "set the values to 1 everywhere, and read the sums of the weights"
    split, softmax = subject.place(_split(subject, group[0])), subject.place(at)
    # who passes split numbers to another function leaves it to that one over which axes it normalises
    is_near = split is not None and softmax is not None and split.function == softmax.function
    made = split if len(group) == 1 and is_near else None
    return Violation("AS302", message, at, hint, evidence, made=made)


def _contexts_of(subject: Subject, softmax: Softmax, sums: Sequence[Tensor]) -> int | None:
    """Return over the weights of how many contexts a softmax runs, if its axis is split into those of each afterwards.

    None if it isn't. Otherwise the weights of all contexts together sum to one, and those of each don't.
    """
    counted = {subject.batch_size, *(subject.numbers[one] for one in subject.lengths)}
    moved: set[Producer] = {softmax.ref}
    for event in subject.base.events[softmax.event.order :]:
        if event.name not in ops.SAME_VALUES or moved.isdisjoint(event.sources[0]):
            continue
        moved.update(event.refs)
        weights = event.values[0]
        for parts, summed in itertools.permutations(range(weights.ndim), 2):
            part = weights.sum(summed)
            if (
                weights.shape[parts] not in counted
                and _are_ones(weights.sum((parts, summed)))
                and not _is_constant(part)
                and any(_have_the_same_numbers(one, part) for one in sums)
            ):
                return weights.shape[parts]
    return None


def _are_ones(sums: Tensor) -> bool:
    return bool((sums - 1).abs().le(_CLOSE).all())


def _is_constant(value: Tensor) -> bool:
    return bool((value - value.flatten()[0]).abs().le(_CLOSE).all())


def _have_the_same_numbers(one: Tensor, other: Tensor) -> bool:
    """Return whether each number of either tensor is one of the other's too."""
    numbers = [value.double().flatten().sort().values for value in (one, other)]
    return all(_are_among(*pair) for pair in (numbers, numbers[::-1]))


def _are_among(numbers: Tensor, others: Tensor) -> bool:
    """Return whether each of some numbers is one of others, which are sorted."""
    above = torch.searchsorted(others, numbers).clamp(max=len(others) - 1)
    nearest = [(numbers - others[place]).abs() for place in (above, (above - 1).clamp(min=0))]
    return bool((torch.minimum(*nearest) <= _SAME).all())


def _violation_of_contexts(subject: Subject, softmax: Softmax, contexts: int) -> Violation:
    count = symbol_or_number(contexts, subject.numbers)
    message = f"one softmax runs over the weights of {count} contexts together, so that those of one don't sum to one"
    hint = "split the axis before the softmax, so that it runs over the weights of one context"
    evidence = "set the values to 1 everywhere, and read the sums of the weights"
    return Violation("AS302", message, softmax.ref, hint, evidence)


def _by_projection(subject: Subject) -> Iterator[list[Softmax]]:
    """Yield the softmaxes that one line takes of the numbers of one result, other than scores of pairs."""
    groups: dict[tuple[Producer, object], list[Softmax]] = {}
    with_scores = {core.softmax.ref for core in subject.cores}
    for softmax in softmaxes(subject.graph):
        if softmax.ref in with_scores or softmax.event.name in ops.LOG_SOFTMAXES or softmax.deferred:
            continue
        *_, root = _moved_from(subject, softmax)
        if subject.graph.carries_data((root,)):
            groups.setdefault((root, subject.source(softmax.ref)), []).append(softmax)
    yield from groups.values()


def _moved_from(subject: Subject, softmax: Softmax) -> Iterator[Producer]:
    """Yield the producer of the numbers that a softmax reads, and those from which they are only moved."""
    sources = softmax.sources
    while sources:
        producer = sources[-1]
        yield producer
        if not isinstance(producer, OutputRef) or subject.base.event(producer).name not in ops.SAME_VALUES:
            return
        sources = subject.base.event(producer).sources[0]


def _split(subject: Subject, softmax: Softmax) -> OutputRef | None:
    """Return the reshape that splits the axis over which a softmax runs."""
    for producer in _moved_from(subject, softmax):
        if isinstance(producer, OutputRef) and subject.base.event(producer).name in ops.RESHAPES:
            return producer
    return None


def _weighted(subject: Subject, softmax: Softmax) -> Iterator[tuple[ReplayedCall, Tensor]]:
    """Yield the calls that multiply values by the weights of a softmax, with their results if every value is 1."""
    graph, downstream = subject.graph, subject.graph.downstream_of(softmax.ref)
    for event in readers_after_moves(subject, softmax.event):
        if event.name not in _WEIGHTED or len(event.sources) != 2 or event.unusual is not None:
            continue
        for place in (0, 1):
            other = event.sources[1 - place]
            is_weights = not downstream.isdisjoint(event.sources[place]) and downstream.isdisjoint(other)
            if is_weights and graph.carries_data(other):
                yield event, recompute(event, {1 - place: torch.ones_like(event.operand_values[1 - place])})


def _sums(subject: Subject, weighted: Sequence[tuple[ReplayedCall, Tensor]]) -> list[Tensor]:
    """Return what is summed in the end if every value is 1."""
    results: dict[OutputRef, Replace] = {event.refs[0]: partial(_other, ones) for event, ones in weighted}
    run = subject.experiment.run(Intervention(results=results))
    if not run.follows(subject.base):
        return []
    return [run.value(ref) for ref in _ends(subject, set(results))]


def _other(value: Tensor, _: Tensor) -> Tensor:
    return value.clone()


def _ends(subject: Subject, starts: set[OutputRef]) -> list[OutputRef]:
    """Return the last results that only move and sum what some results hold."""
    reached: set[Producer] = set(starts)
    read: set[Producer] = set()
    for event in subject.base.events:
        operands = [producers for producers in numbers_read(event) if not reached.isdisjoint(producers)]
        if not operands or event.name not in _LINEAR or not _adds_nothing_else(event, reached):
            continue
        read.update(*operands)
        reached.update(event.refs)
    return sorted(ref for ref in reached - read if isinstance(ref, OutputRef))


def _adds_nothing_else(event: ReplayedCall, reached: set[Producer]) -> bool:
    operands = zip(event.operand_values, event.sources, strict=True)
    return all(not reached.isdisjoint(sources) or not bool(value.any()) for value, sources in operands)

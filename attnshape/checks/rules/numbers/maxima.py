"""Does a softmax that is spelled out by exponentials survive scores that are large, or far apart from row to row?

A softmax stays the same if one number is added to all scores of a row. So a row's own maximum can be subtracted, after
which no exponential is larger than one, and one of them is one. With a maximum of several rows, all exponentials of a
row far below it become zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attnshape.checks.attention.cores import Core, between, exponential_cores
from attnshape.checks.attention.perturbation import PerturbationDiff
from attnshape.checks.attention.subject import Subject, once
from attnshape.checks.interventions.experiment import Intervention
from attnshape.checks.interventions.replay import OutputRef, ReplayedCall
from attnshape.checks.rules.numbers.finite import first_not_finite
from attnshape.checks.rules.protocol import Violation
from attnshape.tracing import operations as ops

_LARGE_SCORE = 1000
_APART = 10_000
"""How far apart rows of scores are put: exponentials of less than -745 are zero in float64."""
_FACTOR = 1000
"""How many times larger the inputs are made, to see whether they make scores so large."""


def check_maxima(subject: Subject) -> Iterator[Violation]:
    """Add numbers to the scores of each softmax that is spelled out, which must not change its weights."""
    for core in subject.cores:
        if core.softmax.event.name in ops.SOFTMAXES:
            continue
        subtracted = _subtracted_maximum(subject, core)
        found = _of_other_rows(subject, core, subtracted) if subtracted is not None else _missing(subject, core)
        if found is not None:
            yield found
            return
    if not subject.cores:
        yield from _of_exponentials(subject)


@dataclass(frozen=True)
class _Maximum:
    """A maximum that is subtracted from scores before their exponential."""

    event: ReplayedCall
    scores: OutputRef
    """The scores from which it is subtracted."""


def _subtracted_maximum(subject: Subject, core: Core) -> _Maximum | None:
    """Return the maximum that is subtracted between a product of queries and keys and the exponential."""
    path = between(subject.graph, core.scores.ref, core.softmax.sources)
    for event in reversed([*path, core.softmax.owner]):
        if event.name not in ops.SUBTRACTIONS or len(event.sources) != 2 or not event.sources[0]:
            continue
        scores = event.sources[0][-1]
        upstream = subject.graph.upstream(event.sources[1])
        maximum = next((call for call in upstream if call.name in ops.MAXIMA - {"logsumexp"}), None)
        if maximum is not None and isinstance(scores, OutputRef) and maximum.order > core.scores.ref.order:
            return _Maximum(maximum, scores)
    return None


def _of_other_rows(subject: Subject, core: Core, maximum: _Maximum) -> Violation | None:
    """Put every second row of scores far above the others: weights must stay as they are."""
    axis = _key_axis(core, subject.base.value(maximum.scores))
    if axis is None:
        return None

    def stays(distance: float) -> bool:
        moved = subject.perturb(Intervention(results={maximum.scores: _apart(axis, distance)}))
        if core.softmax.deferred:
            return moved.has_no_effect
        return moved.comparable and not moved.any(core.softmax.ref)

    if not stays(1.0) or stays(_APART):
        return None
    reached = _scaled_inputs(subject, lambda moved: not _are_weights(moved, core))
    message = (
        "the softmax underflows where the scores of one row are far below those of another, by 104 in float32: "
        "the maximum that is subtracted isn't the row's own"
    )
    hint = "subtract the maximum of each row, scores.amax(dim=-1, keepdim=True), or use torch.softmax"
    return _violation(message, OutputRef(maximum.event.order), hint, f"added {_APART} to every second row", reached)


def _key_axis(core: Core, scores: Tensor) -> int | None:
    """Return the axis of the scores over which a softmax runs; None if it isn't one axis of the same index."""
    axes: frozenset[int] | tuple[int, ...] = core.softmax.axes
    if core.softmax.deferred and core.weights.shape == scores.shape:
        axes = core.key_axes
    same = scores.shape == core.softmax.event.values[0].shape and len(axes) == 1
    return next(iter(axes)) if same else None


def _apart(axis: int, distance: float) -> Callable[[Tensor], Tensor]:
    """Return a replacement that adds a distance to every second row along an axis."""

    def change(value: Tensor) -> Tensor:
        shape = [1 if place == axis else size for place, size in enumerate(value.shape)]
        number = torch.ones(shape, dtype=torch.int64).flatten().cumsum(0).reshape(shape)
        return value + distance * (number % 2).to(value.dtype)

    return change


def _are_weights(moved: PerturbationDiff, core: Core) -> bool:
    """Return whether every row of weights that summed to one still does; of deferred ones, whether all is finite."""
    if core.softmax.deferred:
        return first_not_finite(moved.changed) is None
    axes = tuple(core.softmax.axes)
    before, after = core.softmax.event.values[0].sum(axes), moved.changed.value(core.softmax.ref).sum(axes)
    return bool(torch.isclose(before, after, atol=1e-4).all())


def _missing(subject: Subject, core: Core) -> Violation | None:
    """Add a large number to the scores that a softmax reads: no weight may become infinite or NaN."""
    source = core.softmax.sources[0]
    if not isinstance(source, OutputRef):
        return None
    moved = subject.perturb(Intervention(results={source: lambda value: value + _LARGE_SCORE}))
    if not moved.comparable or bool(torch.isfinite(moved.changed.value(core.softmax.ref)).all()):
        return None
    return _overflow(subject, OutputRef(core.softmax.owner.order), f"added {_LARGE_SCORE} to every score")


def _of_exponentials(subject: Subject) -> Iterator[Violation]:
    """Add a number to what all exponentials read: results that a small one leaves alone must survive a large one."""
    chunks = exponential_cores(subject.graph)
    subtracted = _subtracted_maximum(subject, chunks[0]) if len(chunks) == 1 else None
    if subtracted is not None and (found := _of_other_rows(subject, chunks[0], subtracted)):
        yield found
        return
    sources = {
        event.sources[0][0]: event
        for event in subject.base.events
        if event.name in ops.EXPONENTIALS and subject.graph.carries_data(event.sources[0])
    }
    refs = {ref: event for ref, event in sources.items() if isinstance(ref, OutputRef)}
    if not refs or len(refs) < len(sources) or any(_depends_on_maximum(subject, ref) for ref in refs):
        return

    def shifted(number: float) -> PerturbationDiff:
        return subject.perturb(Intervention(results=dict.fromkeys(refs, lambda value: value + number)))

    if not shifted(1.0).has_no_effect:
        return  # they are no softmax
    large = shifted(_LARGE_SCORE)
    if large.comparable and first_not_finite(large.changed) is not None:
        of_scores = any(_read_scores(subject, ref) for ref in refs)
        if not of_scores and _are_bounded(subject, refs.values()):
            return
        at = min(refs.values(), key=lambda event: event.order).refs[0]
        found = _overflow(subject, at, f"added 1, and then {_LARGE_SCORE}, to what every exponential reads")
        yield found if of_scores else replace(found, level="notice")


def _are_bounded(subject: Subject, exponentials: Iterable[ReplayedCall]) -> bool:
    """Return whether no exponential becomes infinite with much larger inputs, as where a length is subtracted.

    exp(w·x - |x|²/2) is at most exp(|w|²/2), whatever x is (Choromanski et al. 2021, lemma 1).
    """
    scaled = _with_scaled_inputs(subject)
    values = [scaled.changed.value(event.refs[0]) for event in exponentials] if scaled.comparable else []
    return bool(values) and not any(bool(value.isinf().any()) for value in values)


def _read_scores(subject: Subject, ref: OutputRef) -> bool:
    """Return whether a result comes from a product of data with other data, as scores do.

    Features of keys don't, and the square of a vector's length is a product of data with itself.
    """
    return any(
        event.name in ops.PRODUCTS | ops.MULTIPLICATIONS
        and len(event.sources) > 1
        and event.sources[0] != event.sources[1]
        and all(subject.graph.carries_data(sources) for sources in event.sources[:2])
        for event in subject.graph.upstream((ref,))
    )


def _depends_on_maximum(subject: Subject, ref: OutputRef) -> bool:
    """Return whether a result is a difference from a maximum, which no number that is added changes."""
    names = ops.MAXIMA | ops.INDEXED_REDUCTIONS | {"maximum"}
    return any(event.name in names for event in subject.graph.upstream((ref,)))


def _overflow(subject: Subject, at: OutputRef, evidence: str) -> Violation:
    """Return the finding of a softmax whose exponentials become infinite."""
    message = "the softmax overflows for large scores, above 88 in float32: their maximum isn't subtracted"
    hint = "subtract the maximum of each row before exp, or use torch.softmax"
    reached = _scaled_inputs(subject, lambda moved: first_not_finite(moved.changed) is not None)
    return _violation(message, at, hint, evidence, reached)


def _scaled_inputs(subject: Subject, is_wrong: Callable[[PerturbationDiff], bool]) -> bool:
    """Return whether something is wrong where every input is much larger: nothing bounds the scores."""
    scaled = _with_scaled_inputs(subject)
    return not scaled.has_no_effect and scaled.comparable and is_wrong(scaled)


@once
def _with_scaled_inputs(subject: Subject) -> PerturbationDiff:
    """Return what changes where every input is much larger."""
    names = [name for name, value in subject.inputs.items() if value.is_floating_point()]
    return subject.perturb(Intervention(inputs=dict.fromkeys(names, lambda value: value * _FACTOR)))


def _violation(message: str, at: OutputRef, hint: str, evidence: str, reached: bool) -> Violation:
    """Return the finding: an error where large inputs make it, a notice where something bounds the scores."""
    evidence += f", and made every input {_FACTOR} times larger" * reached
    return Violation("AS208", message, at, hint, evidence, level="error" if reached else "notice")

"""Do batch elements affect each other? In attention every sequence of a batch is on its own."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from attnshape.checks.attention.cores import product, reaches_by_data_movement
from attnshape.checks.attention.divergences import splits_fused_projection
from attnshape.checks.attention.perturbation import (
    Divergence,
    PerturbationDiff,
    changed_indices,
    differs,
    divergences,
    is_at_one_index,
)
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Intervention
from attnshape.checks.interventions.replay import OutputRef, Producer, Replace, ReplayedCall
from attnshape.checks.rules.protocol import Outcome, Undecided, Verification, Violation
from attnshape.checks.rules.tokens import wrong_cut
from attnshape.tracing.operations import DATA_MOVEMENT

CODES: tuple[str, ...] = ("AS101", "AS102", "AS105", "AS113", "AS114", "AS116")
TOPIC = "batch elements"
INDEPENDENT = "batch elements don't affect each other"
_ONE_ORDER = "fold and unfold in the same order: (B, H, …) to (B*H, …) and back"


def check(subject: Subject) -> Iterator[Outcome]:
    """Change one batch element of every input, then all others, and look at which elements of the results change."""
    symbol = subject.batch
    if symbol is None or subject.numbers[symbol] < 2:
        yield Undecided(TOPIC, "no axis of the inputs is the batch")
        return
    index = subject.numbers[symbol] // 2
    change = subject.at_index(symbol, index)
    if not change:
        yield Undecided(TOPIC, f"no input has an axis {symbol}")
        return
    diff = subject.perturb(Intervention(inputs=change))
    if not diff.comparable:
        yield Undecided(TOPIC, "with different values in one batch element, the code takes a different path")
        return
    alone = _changes_alone(subject, diff, symbol, index)
    if False not in alone:
        other = _reaching(subject, symbol, index)
        if other is None:
            holds = True in alone
            yield Verification(INDEPENDENT) if holds else Undecided(TOPIC, f"no result has an axis {symbol}")
            return
        index, change, diff = other
    first = next(divergences(diff, symbol, index, subject.numbers, change), None)
    if first is None:
        yield Undecided(TOPIC, "batch elements affect each other, but the call that mixes them was not identified")
        return
    if first.event.order in {core.softmax.event.order for core in subject.cores}:
        return  # a softmax over the batch is one over the wrong axis
    yield _violation(subject, diff, first, symbol, index, next(iter(change)))


def _reaching(subject: Subject, symbol: str, index: int) -> tuple[int, dict[str, Replace], PerturbationDiff] | None:
    """Return an element that affects others, with its change and the effect, if changing all others changes one.

    A maximum over the batch, for example, changes with an element only if that one holds the maximum.
    """
    every = subject.perturb(Intervention(inputs=subject.except_index(symbol, index)))
    number = subject.numbers[symbol]
    reached = every.comparable and any(
        index in changed_indices(mask, axis)
        for _, mask in every.returned()
        for axis, size in enumerate(mask.shape)
        if size == number and mask.shape.count(size) == 1 and mask.any()
    )
    for one in range(number) if reached else ():
        change = subject.at_index(symbol, one)
        diff = subject.perturb(Intervention(inputs=change))
        if diff.comparable and False in _changes_alone(subject, diff, symbol, one):
            return one, change, diff
    return None


def _changes_alone(subject: Subject, diff: PerturbationDiff, symbol: str, index: int) -> list[bool | None]:
    """Return for each changed result whether only the batch element changed; None if the result has no batch axis."""
    return [is_at_one_index(mask, symbol, index, subject.numbers)[0] for _, mask in diff.returned() if mask.any()]


def _violation(
    subject: Subject, diff: PerturbationDiff, first: Divergence, symbol: str, index: int, name: str
) -> Violation:
    reached = ", ".join(str(one) for one in first.indices if one != index) or "others"
    evidence = f"changed batch element {index} of {name}"
    folded = _folded_otherwise(subject, diff, first, symbol)
    if folded is not None:
        return Violation(
            code="AS116",
            message=f"batch and heads are folded in a different order here than in the product's other operand: batch "
            f"element {index} meets {reached}",
            at=folded,
            hint=_ONE_ORDER,
            evidence=evidence,
        )
    flat = _flattened(subject, first, symbol)
    if flat is not None:
        return Violation(
            code="AS101",
            message=f"batch and tokens are merged into one axis, and attention runs over it: batch element {index} "
            f"affects {reached}",
            at=flat,
            hint="keep a separate batch axis: (B, L, D)",
            evidence=evidence,
        )
    products = {order for core in subject.cores for order in (core.scores.first.order, core.scores.last.order)}
    if first.event.order in products | {core.event.order for core in subject.fused}:
        return Violation(
            code="AS102",
            message=f"attention runs over the batch: it treats {symbol} as the sequence, so batch element {index} "
            f"affects {reached}",
            at=first.ref,
            hint="pass batch_first=True, or transpose the first two axes before and after",
            evidence=evidence,
        )
    if first.event.name in DATA_MOVEMENT:
        return _misplaced(subject, first, symbol, index, evidence)
    summary = first.summary or first.event
    return Violation(
        code="AS101",
        message=f"batch element {index} affects {reached}: {summary.short_name} runs over the batch",
        at=summary.refs[0],
        hint=f"let {summary.short_name} run over the last axis instead of {symbol}",
        evidence=evidence,
    )


def _misplaced(subject: Subject, first: Divergence, symbol: str, index: int, evidence: str) -> Violation:
    """Return the violation for a layout operation that puts a batch element at the indices of others."""
    where = f"axis {first.axis} has the size of {symbol}, but batch element {index} ends up at"
    if _merges(subject, first.event):
        return Violation(
            code="AS114",
            message=f"heads are merged without transposing back: {where} {first.indices_text}",
            at=first.ref,
            hint="transpose the axes back before the view, in the order in which they were folded",
            evidence=evidence,
        )
    if not _has_heads(subject, first.event):
        return Violation(
            code="AS105",
            message=f"tokens and batch are scrambled: {where} {first.indices_text}",
            at=first.ref,
            hint="transpose the first two axes; a view doesn't swap them",
            evidence=evidence,
        )
    if splits_fused_projection(subject, first):
        return wrong_cut(first.ref, symbol, first, f"batch element {index}", evidence)
    return Violation(
        code="AS116",
        message=f"batch and heads are unfolded in a different order than folded: {where} {first.indices_text}",
        at=first.ref,
        hint=_ONE_ORDER,
        evidence=evidence,
    )


def _merges(subject: Subject, event: ReplayedCall) -> bool:
    """Return whether a call only rearranges contexts, and leaves no axis of heads."""
    contexts = [core.context for core in subject.attentions]
    return not subject.head_sizes & set(event.values[0].shape) and reaches_by_data_movement(
        subject.graph, contexts, event
    )


def _has_heads(subject: Subject, event: ReplayedCall) -> bool:
    """Return whether heads are an axis of an operand or result, alone or folded with the batch."""
    shapes = [*(tuple(one.shape) for one in event.given), *(tuple(one.shape) for one in event.values)]
    given = event.given[0].shape[-1] if event.given and event.given[0].ndim else 0
    return any(subject.head_sizes & set(shape) for shape in shapes) or given % 3 == 0


def _flattened(subject: Subject, first: Divergence, symbol: str) -> OutputRef | None:
    """Return the call that merges the batch and the tokens into one axis, if attention runs over that axis."""
    sizes = {subject.numbers[symbol] * subject.numbers[one] for one in subject.lengths}
    for core in subject.cores:
        size = core.weights.shape[core.key_axes[0]] if core.key_axes else 0
        if first.event.order == core.scores.first.order and size in sizes:
            return _fold_of(subject, core.scores.sources(core.scores.right), size)
    for fused in subject.fused:
        if first.event is fused.event and fused.tensor("key").shape[-2] in sizes:
            return _fold_of(subject, fused.sources("key"), fused.tensor("key").shape[-2])
    return None


def _folded_otherwise(subject: Subject, diff: PerturbationDiff, first: Divergence, symbol: str) -> OutputRef | None:
    """Return where one operand of a product was folded with the heads first, and the other with the batch first."""
    made = product(first.event, subject.graph)
    number = subject.numbers[symbol]
    if made is None:
        return None
    for place in (made.left, made.right):
        shape, other = made.given(place).shape, made.given(made.other(place)).shape
        axis = next((a for a, size in enumerate(shape) if size > number and size % number == 0 and size in other), None)
        if axis is None or not made.axes[place][axis] & made.shared:
            continue
        after = diff.changed.events[made.first.order - 1].given[place]
        found = sorted(changed_indices(differs(made.given(place), after, 1e-9), axis))
        if len(found) == shape[axis] // number and all(b - a == number for a, b in pairwise(found)):
            return _fold_of(subject, made.sources(place), shape[axis])
    return None


def _fold_of(subject: Subject, sources: tuple[Producer, ...], size: int) -> OutputRef | None:
    """Return the call that folded an axis of this size."""
    found = None
    for event in subject.graph.upstream(sources):
        if size not in event.values[0].shape:
            break
        found = event.refs[0]
    return found

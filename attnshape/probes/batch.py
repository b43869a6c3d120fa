"""Whether a batch element reaches another."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from attnshape.attention.chain import by_moves_only
from attnshape.attention.core import product
from attnshape.attention.cuts import cut, cuts_fused
from attnshape.attention.following import Moved, Parting, along, differs, partings, stays
from attnshape.attention.kinds import MOVES
from attnshape.attention.outcome import Mistake, NotExamined, Outcome, Proved
from attnshape.attention.subject import Subject
from attnshape.replaying.bench import Change
from attnshape.replaying.replay import Address, Event, Replace, Source

CODES = ("AS101", "AS102", "AS105", "AS113", "AS114", "AS116")
WHAT = "batch elements"
APART = "batch elements stay apart"


def examine(subject: Subject) -> Iterator[Outcome]:
    """Change one batch element of every input, then all others, and see which elements of the results move."""
    letter = subject.batch
    if letter is None or subject.numbers[letter] < 2:
        yield NotExamined(WHAT, "no axis of the inputs is the batch")
        return
    index = subject.numbers[letter] // 2
    change = subject.at_index(letter, index)
    if not change:
        yield NotExamined(WHAT, f"no input has an axis {letter}")
        return
    moved = subject.moved(Change(inputs=change))
    if not moved.comparable:
        yield NotExamined(WHAT, "with other numbers in one batch element the code takes other steps")
        return
    verdicts = _verdicts(subject, moved, letter, index)
    parts = any(verdict is False for verdict in verdicts)
    other = _reaching(subject, letter, index) if not parts else None
    if other is not None:
        index, change, moved = other
    elif not parts:
        if any(verdict is True for verdict in verdicts):
            yield Proved(APART)
        else:
            yield NotExamined(WHAT, f"no result has an axis {letter}")
        return
    first = next(partings(moved, letter, index, subject.numbers, change), None)
    if first is None:
        yield NotExamined(WHAT, "where they meet can't be told")
        return
    if first.event.order in {core.softmax.event.order for core in subject.cores}:
        return  # a softmax over the batch is one over the wrong axis
    yield _mistake(subject, moved, first, letter, index, next(iter(change)))


def _reaching(subject: Subject, letter: str, index: int) -> tuple[int, dict[str, Replace], Moved] | None:
    """Return an element that reaches others, with its change, where one doesn't move when all others are changed.

    What takes the largest number of all elements moves others only where that is the changed element's own.
    """
    every = subject.moved(Change(inputs=subject.except_index(letter, index)))
    number = subject.numbers[letter]
    reached = every.comparable and any(
        index in along(mask, axis)
        for _, mask in every.returned()
        for axis, size in enumerate(mask.shape)
        if size == number and mask.shape.count(size) == 1 and mask.any()
    )
    for one in range(number) if reached else ():
        change = subject.at_index(letter, one)
        moved = subject.moved(Change(inputs=change))
        if moved.comparable and any(verdict is False for verdict in _verdicts(subject, moved, letter, one)):
            return one, change, moved
    return None


def _verdicts(subject: Subject, moved: Moved, letter: str, index: int) -> list[bool | None]:
    """Say of each result that moved whether it is the batch element alone."""
    return [stays(mask, letter, index, subject.numbers)[0] for _, mask in moved.returned() if mask.any()]


def _mistake(subject: Subject, moved: Moved, first: Parting, letter: str, index: int, name: str) -> Mistake:
    reached = ", ".join(str(one) for one in first.found if one != index) or "others"
    evidence = f"changed batch element {index} of {name}"
    folded = _folded_otherwise(subject, moved, first, letter)
    if folded is not None:
        return Mistake(
            code="AS116",
            message=f"batch and heads are folded in another order here than in what this is multiplied with: batch "
            f"element {index} meets {reached}",
            at=folded,
            hint="fold and unfold in one order: (B, H, …) as (B*H, …), and back",
            evidence=evidence,
        )
    flat = _flattened(subject, first, letter)
    if flat is not None:
        return Mistake(
            code="AS101",
            message=f"batch and tokens are one axis here, which attention then runs over: batch element {index} "
            f"reaches {reached}",
            at=flat,
            hint="keep the batch an axis of its own: (B, L, D)",
            evidence=evidence,
        )
    products = {order for core in subject.cores for order in (core.scores.first.order, core.scores.last.order)}
    if first.event.order in products | {core.event.order for core in subject.fused}:
        return Mistake(
            code="AS102",
            message=f"attention runs over the batch: {letter} is where it takes the sequence to be, so batch element "
            f"{index} reaches {reached}",
            at=first.address,
            hint="pass batch_first=True, or transpose the first two axes on the way in and out",
            evidence=evidence,
        )
    if first.event.name in MOVES:
        return _laid_out(subject, first, letter, index, evidence)
    summary = first.summary or first.event
    return Mistake(
        code="AS101",
        message=f"batch element {index} reaches {reached}: {summary.name} runs over the batch",
        at=summary.addresses[0],
        hint=f"let {summary.name} run over the last axis, not over {letter}",
        evidence=evidence,
    )


def _laid_out(subject: Subject, first: Parting, letter: str, index: int, evidence: str) -> Mistake:
    """Return the finding for a layout operation that puts a batch element at indices of others."""
    if _merges(subject, first.event):
        return Mistake(
            code="AS114",
            message=f"heads are merged without transposing back: axis {first.axis} is {letter} by its size, but batch "
            f"element {index} is found at {first.places}",
            at=first.address,
            hint="transpose the axes back before the view, in the order in which they were folded",
            evidence=evidence,
        )
    if not _has_heads(subject, first.event):
        return Mistake(
            code="AS105",
            message=f"tokens and batch are scrambled: axis {first.axis} is {letter} by its size, but batch element "
            f"{index} is found at {first.places}",
            at=first.address,
            hint="transpose the first two axes; a view doesn't exchange them",
            evidence=evidence,
        )
    if cuts_fused(subject, first):
        return cut(first.address, letter, first, f"batch element {index}", evidence)
    return Mistake(
        code="AS116",
        message=f"axis {first.axis} is {letter} by its size, but batch element {index} is found at "
        f"{_listed(first)}: batch and heads were folded in another order",
        at=first.address,
        hint="fold and unfold in one order: (B, H, …) as (B*H, …), and back",
        evidence=evidence,
    )


def _merges(subject: Subject, event: Event) -> bool:
    """Say whether a call lays out what attention has made, with nothing between, and leaves no axis of heads."""
    contexts = [core.context for core in subject.attentions]
    return not subject.head_sizes & set(event.values[0].shape) and by_moves_only(subject.flow, contexts, event)


def _has_heads(subject: Subject, event: Event) -> bool:
    """Say whether heads are an axis of what a call is given or makes, alone or folded with the batch."""
    shapes = [*(tuple(one.shape) for one in event.given), *(tuple(one.shape) for one in event.values)]
    given = event.given[0].shape[-1] if event.given and event.given[0].ndim else 0
    return any(subject.head_sizes & set(shape) for shape in shapes) or given % 3 == 0


def _flattened(subject: Subject, first: Parting, letter: str) -> Address | None:
    """Return the call that makes one axis of the batch and the tokens, where attention runs over that."""
    sizes = {subject.numbers[letter] * subject.numbers[one] for one in subject.lengths}
    for core in subject.cores:
        size = core.weights.shape[core.key_axes[0]] if core.key_axes else 0
        if first.event.order == core.scores.first.order and size in sizes:
            return _fold_of(subject, core.scores.sources(core.scores.right), size)
    for fused in subject.fused:
        if first.event is fused.event and fused.tensor("key").shape[-2] in sizes:
            return _fold_of(subject, fused.sources("key"), fused.tensor("key").shape[-2])
    return None


def _folded_otherwise(subject: Subject, moved: Moved, first: Parting, letter: str) -> Address | None:
    """Return where an operand of a product was folded heads first, while the other has the batch first."""
    made = product(first.event, subject.flow)
    number = subject.numbers[letter]
    if made is None:
        return None
    for place in (made.left, made.right):
        shape, other = made.given(place).shape, made.given(made.other(place)).shape
        axis = next((a for a, size in enumerate(shape) if size > number and size % number == 0 and size in other), None)
        if axis is None or not made.axes[place][axis] & made.shared:
            continue
        after = moved.changed.events[made.first.order - 1].given[place]
        found = sorted(along(differs(made.given(place), after, 1e-9), axis))
        if len(found) == shape[axis] // number and all(b - a == number for a, b in pairwise(found)):
            return _fold_of(subject, made.sources(place), shape[axis])
    return None


def _fold_of(subject: Subject, sources: tuple[Source, ...], size: int) -> Address | None:
    """Return the call that made a folded axis."""
    found = None
    for event in subject.flow.upstream(sources):
        if size not in event.values[0].shape:
            break
        found = event.addresses[0]
    return found


def _listed(first: Parting) -> str:
    return f"index {first.found[0]}" if len(first.found) == 1 else f"indices {', '.join(map(str, first.found))}"

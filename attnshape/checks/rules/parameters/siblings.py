"""Finds a parameter that nothing reads although its sibling of the same shape is used in its place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from torch import Tensor

from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.replay import OutputRef, Producer, ReplayedCall
from attnshape.checks.rules.protocol import Violation
from attnshape.tracing.operations import ADDITIONS, COPIES, DATA_MOVEMENT, GATHERS, MULTIPLICATIONS, PRODUCTS, SUMS

_TO_SCORES = DATA_MOVEMENT | GATHERS | COPIES | SUMS
"""What may come between a product with a parameter and the addition of two such products."""


def used_in_place_of(
    subject: Subject,
    unread: Sequence[str],
    values: Mapping[str, Tensor],
    readers: Callable[[str], Sequence[ReplayedCall]],
) -> Iterator[Violation]:
    """Yield the first parameter that no call reads and whose sibling is used twice.

    Two lines of one function read the sibling, or scores that it makes are added to themselves, at other indices.
    """
    for name in unread:
        for twin in values:
            uses = readers(twin) if _are_siblings(name, twin) else []
            if values[twin].shape != values[name].shape or not uses:
                continue
            if (second := _second_use(subject, uses)) is not None:
                message = f"{twin} is used twice, and {name} never"
                yield Violation("AS807", message, second, f"use {name} here, or remove it", f"nothing reads {name}")
                return
            if (only := _added_to_itself(subject, uses)) is not None:
                message = f"what is multiplied by {twin} is added to itself, and {name} is never used"
                hint = f"use {name} for one of the two summands, or remove it"
                yield Violation("AS807", message, only, hint, f"nothing reads {name}")
                return


def _are_siblings(name: str, other: str) -> bool:
    """Return whether two parameters, or their modules, are two attributes of one module, not items of a list."""
    pairs = list(zip(name.split("."), other.split("."), strict=False))
    differing = [place for place, (a, b) in enumerate(pairs) if a != b]
    if len(differing) != 1 or name.count(".") != other.count(".") or len(pairs) - differing[0] > 2:
        return False
    return not any(part.isdigit() for part in pairs[differing[0]])


def _second_use(subject: Subject, uses: Sequence[ReplayedCall]) -> OutputRef | None:
    """Return the last call that reads a parameter, if two lines of one function read it."""
    lines: dict[str, set[int]] = {}
    for event in uses:
        place = subject.place(event.refs[0])
        if place is not None:
            lines.setdefault(place.function, set()).add(place.line)
    for event in reversed(uses):
        place = subject.place(event.refs[0])
        if place is not None and len(lines[place.function]) > 1:
            return event.refs[0]
    return None


def _added_to_itself(subject: Subject, uses: Sequence[ReplayedCall]) -> OutputRef | None:
    """Return the last call that multiplies by a parameter, if an addition reads its scores in both operands.

    Only sums and moves come in between, as in additive scores `(a @ x)[i] + (a @ x)[j]`.
    """
    reached: set[Producer] = set()
    scores: set[Producer] = set()
    orders = {use.order for use in uses}
    for event in subject.base.events[min(orders) - 1 :]:
        if event.name in ADDITIONS and len(event.sources) == 2:
            if all(scores.intersection(sources) for sources in event.sources):
                return uses[-1].refs[0]
            continue
        begins = event.order in orders and event.name in PRODUCTS | MULTIPLICATIONS
        if begins or (event.name in _TO_SCORES and event.producers & reached):
            reached.update(event.refs)
            if event.producers & scores or _sums_features(subject, event):
                scores.update(event.refs)
    return None


def _sums_features(subject: Subject, event: ReplayedCall) -> bool:
    """Return whether a call leaves fewer numbers of the data than it reads, as scores are fewer than features."""
    read = zip(event.operand_values, event.sources, strict=True)
    data = [value.numel() for value, sources in read if subject.graph.carries_data(sources)]
    return event.name in PRODUCTS | SUMS and event.numel < max(data, default=0)

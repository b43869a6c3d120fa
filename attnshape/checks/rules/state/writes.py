"""Which calls write to arguments, parameters and buffers, and what they find there."""

from __future__ import annotations

from collections.abc import Iterator

from attnshape.checks.attention.perturbation import differs
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.replay import OutputRef, Producer, ReplayedCall
from attnshape.tracing.storage import memory_of


def written(subject: Subject, event: ReplayedCall) -> set[str]:
    """Return the names of the inputs, parameters and buffers whose memory a call writes to."""
    names: set[str] = set()
    for operand, sources in zip(event.operands, event.sources, strict=True):
        for source in sources if operand is event.outputs[0] else ():
            owner: Producer | None = source
            while isinstance(owner, OutputRef):
                maker = subject.base.event(owner)
                memory = memory_of(maker.outputs[owner.output])
                views = [at for at, view in enumerate(maker.operands) if memory_of(view) == memory]
                owner = maker.sources[views[0]][0] if views and memory is not None else None
            if owner is not None:
                names.add(owner)
    return names


def writers(subject: Subject, name: str) -> list[ReplayedCall]:
    """Return the calls that write to the memory of an input, a parameter or a buffer, in order."""
    return [event for event in subject.base.events if event.in_place and name in written(subject, event)]


def read_again(subject: Subject, names: set[str]) -> Iterator[str]:
    """Yield the names of tensors that a line changes in one layer and reads again, changed, in another one.

    Twice inverted, a mask is again what it was, and a comparison before and after the call shows nothing. A line that
    undoes what another one has done leaves every layer the same numbers.
    """
    calls: dict[str, list[ReplayedCall]] = {}
    for event in subject.base.events:
        for name in written(subject, event) & names if event.in_place else ():
            calls.setdefault(name, []).append(event)
    for name, events in calls.items():
        first, *later = events
        again = [event for event in later if event.operation == first.operation]
        on_one_line = len({subject.source(event.refs[0]) for event in events}) == 1
        if on_one_line and any(_read_other_numbers(first, event) for event in again):
            yield name


def _read_other_numbers(first: ReplayedCall, second: ReplayedCall) -> bool:
    return bool(differs(first.operand_values[0], second.operand_values[0], 0.0).any())

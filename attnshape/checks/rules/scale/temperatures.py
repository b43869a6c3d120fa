"""Learned temperatures: does one multiply the scores once?

A parameter of one number, or of one for each head, that multiplies queries and keys, or queries and scores, enters the
scores as its square.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.replay import OutputRef, Producer, ReplayedCall
from attnshape.checks.rules.protocol import Violation
from attnshape.tracing import operations as ops

_ROOTS = {"sqrt", "rsqrt", "pow"}
"""Roots of a temperature that multiply queries and keys multiply the scores by it once."""


def check_temperatures(subject: Subject) -> Iterator[Violation]:
    """Yield a notice for each learned temperature by which the scores of one attention are scaled a second time."""
    seen: set[OutputRef] = set()
    heads = max(1, subject.numbers.get("H", 1))
    for core in subject.cores:
        first: dict[str, OutputRef] = {}
        calls = _own_calls(subject, core.context, core.softmax.sources)
        for event in calls:
            name = _temperature(subject, event, heads)
            if name is None:
                continue
            ref = event.refs[0]
            is_squared = name in first and _are_multiplied(subject, calls, first[name], ref)
            if is_squared and subject.source(ref) not in map(subject.source, seen):
                seen.add(ref)
                yield _violation(subject, name, first[name], ref)
            first.setdefault(name, ref)


def _own_calls(subject: Subject, context: OutputRef, sources: tuple[Producer, ...]) -> list[ReplayedCall]:
    """Return the calls that make the scores of an attention, in order, and none of those before earlier attentions."""
    calls = list(subject.graph.upstream(sources))[::-1]
    ends = {core.context for core in subject.attentions} - {context}
    ends |= {core.softmax.ref for core in subject.cores if core.context != context}
    earlier = [place for place, call in enumerate(calls) if not ends.isdisjoint(call.refs)]
    return calls[earlier[-1] + 1 :] if earlier else calls


def _are_multiplied(subject: Subject, calls: Sequence[ReplayedCall], first: OutputRef, second: OutputRef) -> bool:
    """Return whether a result depends on another one, or a product takes both; terms of a sum are scaled once each."""
    one, other = (subject.graph.downstream_of(ref) for ref in (first, second))
    if second in one:
        return True
    for event in calls:
        reads_one, reads_other = ([not ends.isdisjoint(sources) for sources in event.sources] for ends in (one, other))
        if any(reads_one) and any(reads_other):
            return event.name in ops.PRODUCTS | ops.MULTIPLICATIONS
    return False


def _temperature(subject: Subject, event: ReplayedCall, heads: int) -> str | None:
    """Return the parameter with one number, or one for each head, that alone decides by what a call scales data."""
    if event.name not in ops.SCALINGS or len(event.sources) != 2:
        return None
    carries = [subject.graph.carries_data(sources) for sources in event.sources]
    if carries[0] == carries[1]:
        return None
    factor = event.sources[carries.index(False)]
    names = subject.graph.origins(factor) & subject.parameters.keys()
    if len(names) != 1 or any(call.name in _ROOTS for call in subject.graph.upstream(factor)):
        return None
    name = next(iter(names))
    return name if subject.parameters[name].numel() in (1, heads) else None


def _violation(subject: Subject, name: str, first: OutputRef, second: OutputRef) -> Violation:
    place = subject.place(first)
    where = f", after line {place.line}" if place is not None else ""
    message = f"{name} scales the scores a second time{where}: they get its square"
    hint = "scale the scores, or either queries or keys, once, or if it is meant, "
    hint += "put # attnshape: ignore[AS203] on the line"
    evidence = f"followed the scores back to the calls that multiply or divide by {name} alone"
    return Violation("AS203", message, second, hint, evidence, "measured", level="notice")

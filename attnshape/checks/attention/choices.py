"""Finds what affects the results only through a choice, such as that of the largest scores, which has no gradient."""

from __future__ import annotations

from attnshape.checks.attention.dead_ends import live_results
from attnshape.checks.attention.subject import Subject, once
from attnshape.checks.interventions.replay import OutputRef, Producer, ReplayedCall
from attnshape.inference.dataflow import reads_numbers
from attnshape.tracing.operations import CHOICES
from attnshape.tracing.storage import memory_of


def choosing_call(subject: Subject, name: str) -> ReplayedCall | None:
    """Return the first call that chooses by what a parameter computes, if it affects the results in no other way."""
    if not subject.base.results or name in _act_by_their_numbers(subject):
        return None
    live, downstream = live_results(subject), subject.graph.downstream({name})
    for event in subject.base.events:
        if any(_is_choice(event, ref) and ref in live and ref in downstream for ref in event.refs):
            return event
    return None


@once
def _act_by_their_numbers(subject: Subject) -> frozenset[Producer]:
    """Return what the target's results depend on by more than a choice."""
    returned = {id(tensor) for tensor in subject.base.results}
    memories = {memory_of(tensor) for tensor in subject.base.results} - {None}
    found: set[Producer] = set()
    for event in reversed(subject.base.events):
        found |= {ref for ref in event.refs if id(event.outputs[ref.output]) in returned}
        if event.in_place and memory_of(event.outputs[0]) in memories:
            found.add(event.refs[0])
        if reads_numbers(event) and any(ref in found and not _is_choice(event, ref) for ref in event.refs):
            found |= event.producers
    return frozenset(found)


def _is_choice(event: ReplayedCall, ref: OutputRef) -> bool:
    """Return whether a result consists of indices, or of yes and no, that a call chose by numbers."""
    value = event.values[ref.output]
    return event.name in CHOICES and not (value.is_floating_point() or value.is_complex())

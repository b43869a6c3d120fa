"""Finds what affects the results only through a choice, such as that of the largest scores, which has no gradient."""

from __future__ import annotations

from collections.abc import Collection

from attnshape.checks.attention.cores import reaches_by_data_movement
from attnshape.checks.attention.dead_ends import live_results
from attnshape.checks.attention.subject import Subject, once
from attnshape.checks.interventions.replay import OutputRef, Producer, ReplayedCall
from attnshape.checks.interventions.uses import kept_results
from attnshape.inference.dataflow import reads_numbers
from attnshape.tracing.operations import CHOICES, PRODUCTS
from attnshape.tracing.storage import memory_of


def choosing_call(subject: Subject, name: str) -> ReplayedCall | None:
    """Return the first call that chooses by what a parameter computes, if it affects the results in no other way."""
    if not subject.base.results or name in _act_by_their_numbers(subject):
        return None
    live, downstream = live_results(subject), subject.graph.downstream({name})
    for event in subject.base.events:
        if any(is_choice(event, ref) and ref in live and ref in downstream for ref in event.refs):
            return event
    return None


def hard_gates(subject: Subject, choice: ReplayedCall, names: Collection[str]) -> OutputRef | None:
    """Return the gates that a choice makes for heads, if no other loss can see the scores that it compares.

    `names` are the parameters that affect the results only through the choice. Keys that are chosen get weights of
    their own afterwards; heads that are chosen after attention get none. A bias of the scores, such as one that
    balances the load, may be adjusted without a gradient: the scores themselves must come from a parameter of `names`.
    """
    if not any(event.name in PRODUCTS for name in names for event, _ in subject.graph.consumers.get(name, ())):
        return None
    if _followed_to_choices(subject, names) & kept_results(subject.experiment):
        return None
    contexts = [core.context for core in subject.attentions]
    gates = [ref for ref in choice.refs if is_choice(choice, ref)]
    for event in subject.base.events[choice.order :]:
        reads_gates = [not set(gates).isdisjoint(sources) for sources in event.sources]
        if not any(reads_gates):
            continue
        if not all(reads_gates) and reaches_by_data_movement(subject.graph, contexts, event):
            numbers = (ref for ref in gates if subject.base.value(ref).is_floating_point())
            return next(numbers, gates[0])
        gates += [ref for ref in event.refs if ref not in subject.gradients.differentiable]
    return None


def is_gated_by_choice(subject: Subject, event: ReplayedCall) -> bool:
    """Return whether one operand of a call, and not every one, depends on what the data choose."""
    chosen = _chosen(subject)
    return 0 < sum(not chosen.isdisjoint(sources) for sources in event.sources) < len(event.sources)


@once
def _chosen(subject: Subject) -> set[OutputRef]:
    """Return the results that depend on what is chosen by the data."""
    data = subject.graph.depends_on_data
    choices = {ref for event in subject.base.events for ref in event.refs if is_choice(event, ref) and ref in data}
    return subject.graph.downstream(choices)


def _followed_to_choices(subject: Subject, names: Collection[str]) -> set[Producer]:
    """Return the results that depend on parameters by more than a choice."""
    found: set[Producer] = set(names)
    for event in subject.base.events:
        if reads_numbers(event) and event.producers & found:
            found.update(ref for ref in event.refs if not is_choice(event, ref))
    return found


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
        if reads_numbers(event) and any(ref in found and not is_choice(event, ref) for ref in event.refs):
            found |= event.producers
    return frozenset(found)


def is_choice(event: ReplayedCall, ref: OutputRef) -> bool:
    """Return whether a result consists of indices, or of yes and no, that a call chose by numbers."""
    value = event.values[ref.output]
    return event.name in CHOICES and not (value.is_floating_point() or value.is_complex())

"""Does a gradient reach the inputs of attention through its queries, keys or values?"""

from __future__ import annotations

from collections.abc import Iterator

from attnshape.checks.attention.operands import AttentionOperand, by_attention
from attnshape.checks.attention.perturbation import other_numbers
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Intervention
from attnshape.checks.interventions.replay import OutputRef, Producer, ReplayedCall
from attnshape.checks.interventions.uses import gradients
from attnshape.checks.rules.protocol import Violation
from attnshape.tracing.operations import ADDITIONS, CUTS_GRADIENTS


def cut_attentions(subject: Subject) -> Iterator[Violation]:
    """Yield the attentions through which no gradient reaches the inputs, although one reaches what they are added to.

    A memory may be detached on purpose, and so may all that a part of a model reads: an auxiliary head, a step that is
    differentiated implicitly, proposals of an earlier stage. So queries, keys and values must all be without a
    gradient, and what attention returns must be added to a tensor with one, from an input of the queries.
    """
    inputs = {name for name, value in subject.inputs.items() if value.is_floating_point()}
    found = gradients(subject.experiment, inputs, parameters=False) if inputs and subject.attentions else None
    if found is None or not found.results_are_finite or found.calls != len(subject.base.events):
        return
    reached: set[Producer] = {*found.differentiable, *found.reached}
    for own in by_attention(subject):
        if any(not reached.isdisjoint(operand.sources) for operand in own):
            continue
        query = own[0]
        added_to = _added_to(subject, query.core.context, reached)
        names = sorted(subject.graph.origins(query.sources) & subject.graph.origins(added_to) & inputs)
        cut = _cut(subject, query, reached) if names else None
        if cut is None or not all(_depends(subject, operand, names) for operand in own):
            continue
        stops = "stops it" if cut.name in CUTS_GRADIENTS else "runs without autograd"
        message = f"no gradient passes through this attention to {', '.join(names)}: {cut.short_name} {stops}"
        hint = "detach the memory alone, before it is joined with the tokens that attend"
        evidence = (
            "ran it with autograd: what attention is added to gets a gradient, its queries, keys and values don't"
        )
        yield Violation("AS808", message, cut.refs[0], hint, evidence)


def _added_to(subject: Subject, context: OutputRef, reached: set[Producer]) -> tuple[Producer, ...]:
    """Return the producers of the first tensor with a gradient to which what attention returns is added, if any."""
    downstream = subject.graph.downstream_of(context)
    for event in subject.base.events[context.order :]:
        if event.name not in ADDITIONS or len(event.sources) != 2 or not event.producers & downstream:
            continue
        for attended, other in (event.sources, event.sources[::-1]):
            alone = reached.isdisjoint(attended) and downstream.isdisjoint(other)
            if not downstream.isdisjoint(attended) and alone and not reached.isdisjoint(other):
                return other
    return ()


def _cut(subject: Subject, operand: AttentionOperand, reached: set[Producer]) -> ReplayedCall | None:
    """Return the first call on the way to an operand that reads a tensor with a gradient, and returns one without.

    None if that is an integer, which has none.
    """
    for event in reversed(list(subject.graph.upstream(operand.sources))):
        if event.producers & reached and reached.isdisjoint(event.refs):
            return event if event.values[0].is_floating_point() else None
    return None


def _depends(subject: Subject, operand: AttentionOperand, names: list[str]) -> bool:
    """Return whether an operand's numbers depend on some inputs."""
    moved = subject.perturb(Intervention(inputs=dict.fromkeys(names, other_numbers)))
    refs = [producer for producer in operand.sources if isinstance(producer, OutputRef)]
    return moved.comparable and any(map(moved.any, refs))

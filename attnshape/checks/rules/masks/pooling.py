"""Finds results that are pooled over, or read at, tokens which attention leaves out: those that a mask or length hides.

No key gets weight for such a token, but the token is also a query, and its own result is a number like any other. A
mean over all tokens takes it in, and the last position is padding in all but the longest sequences. The tokens are
changed in the inputs: where a call only gets numbers that differ at these tokens, and makes numbers of them that belong
to no token, it is the call that pools. A selection is, if no result differs once its numbers are put back.
"""

from __future__ import annotations

import torch

from attnshape.checks.attention.perturbation import PerturbationDiff, constant, differs
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import UNCHANGED, Intervention
from attnshape.checks.interventions.replay import OutputRef, ReplayedCall
from attnshape.checks.rules.masks.hidden_tokens import TokenChange, spread_tokens
from attnshape.checks.rules.protocol import Violation
from attnshape.model.formatting import join_words
from attnshape.tracing.operations import DATA_MOVEMENT, GATHERS, SELECTIONS


def judge_pooling(
    subject: Subject, name: str, hidden: TokenChange, given: Intervention = UNCHANGED
) -> Violation | None:
    """Return what pools results over the tokens that an argument hides from all queries, or None.

    `given` holds other numbers for the argument, to which the hidden tokens belong.
    """
    inputs = hidden.inputs(subject)
    if not inputs or not subject.attentions:
        return None
    before = subject.base if given is UNCHANGED else subject.experiment.run(given)
    after = subject.experiment.run(Intervention(inputs={**inputs, **given.inputs}))
    diff = PerturbationDiff(before, after, subject.experiment.tolerance)
    if before.error is not None or not before.follows(subject.base) or not hidden.reaches(subject, diff):
        return None
    evidence = f"changed such tokens of {join_words(sorted(inputs))}: attention leaves them out, and the results don't"
    at = _first_pooling(subject, hidden, diff)
    if at is not None:
        message = f"results are pooled over all tokens, also over those that {name} hides from attention"
        hint = "leave these tokens out: set their results to 0 before the sum, and divide by the number of the others"
        return Violation("AS412", message, at, hint, evidence, claims=(name,))
    for end, position in (("last", -1), ("first", 0)):
        at = _only_selection(subject, hidden, diff, given, position)
        if at is not None:
            message = f"results are read at the {end} position, which {name} hides from attention where it is padding"
            hint = f"read each batch element at the {end} token that {name} keeps"
            return Violation("AS412", message, at, hint, evidence, claims=(name,))
    return None


def _only_selection(
    subject: Subject, hidden: TokenChange, diff: PerturbationDiff, given: Intervention, position: int
) -> OutputRef | None:
    """Return the selection of a position after attention through which alone results depend on hidden tokens, if any.

    As many tokens at that end may be hidden in every element for another reason, such as one that is to be predicted.
    """
    at_end = hidden.tokens if position == 0 else hidden.tokens.flip(-1)
    if len(set(at_end.int().cumprod(-1).sum(-1).tolist())) == 1:
        return None
    after = subject.graph.downstream([core.context for core in subject.attentions])
    for event in diff.base.events:
        if event.name not in SELECTIONS | GATHERS or event.producers.isdisjoint(after):
            continue
        if not _is_at(subject, hidden, event, position) or not _pools(subject, hidden, diff, event, after):
            continue
        put_back = {event.refs[0]: constant(event.values[0])}
        change = Intervention(inputs={**hidden.inputs(subject), **given.inputs}, results=put_back)
        without = PerturbationDiff(diff.base, subject.experiment.run(change), subject.experiment.tolerance)
        return event.refs[0] if hidden.reaches(subject, without) is False else None
    return None


def _is_at(subject: Subject, hidden: TokenChange, event: ReplayedCall, position: int) -> bool:
    """Return whether a call selects all numbers at one position of what it reads, in every batch element."""
    read, number = event.operand_values[0], subject.numbers[hidden.symbol]
    if list(read.shape).count(number) != 1:
        return False
    return torch.equal(read.select(list(read.shape).index(number), position).flatten(), event.values[0].flatten())


def _first_pooling(subject: Subject, hidden: TokenChange, diff: PerturbationDiff) -> OutputRef | None:
    """Return the first result of a call after attention that pools hidden tokens with others.

    Another attention, which the mask should reach as well, has findings of its own.
    """
    contexts = {core.context for core in subject.attentions}
    after = subject.graph.downstream(contexts)
    events = (event for event in diff.base.events if event.name not in DATA_MOVEMENT and event.producers & after)
    pooled = next((event.refs[0] for event in events if _pools(subject, hidden, diff, event, after)), None)
    return None if pooled in contexts else pooled


def _pools(
    subject: Subject, hidden: TokenChange, diff: PerturbationDiff, event: ReplayedCall, after: set[OutputRef]
) -> bool:
    """Return whether a call reads results that differ at hidden tokens only, and returns numbers of no token."""
    number, tolerance = subject.numbers[hidden.symbol], subject.experiment.tolerance
    if any(number in value.shape for value in event.values) or not any(map(diff.any, event.refs)):
        return False
    values = diff.changed.events[event.order - 1].operand_values
    for sources, value, changed_value in zip(event.sources, event.operand_values, values, strict=True):
        if after.isdisjoint(sources):
            continue
        where = spread_tokens(subject, hidden.symbol, hidden.tokens, value.shape)
        # what is zero at the other tokens is meant to be about the hidden ones
        if where is None or bool((differs(value, changed_value, tolerance) & ~where).any()) or not value[~where].any():
            return False
    return True

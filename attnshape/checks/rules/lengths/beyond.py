"""Judges claimed lengths by what results depend on: no token beyond those that an element has.

All tokens beyond are changed in one run, so it doesn't matter how attention is computed.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from attnshape.checks.attention.perturbation import PerturbationDiff, constant, is_pattern
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Intervention
from attnshape.checks.interventions.replay import OutputRef
from attnshape.checks.rules.masks.hidden_tokens import TokenChange
from attnshape.tracing.operations import DATA_MOVEMENT, ORDER_COMPARISONS


def uses_no_others(
    subject: Subject, name: str, given: Iterator[tuple[str, Tensor, Intervention]], more: int
) -> bool | None:
    """Return whether no element uses a token beyond those that its number counts; None if that can't be told.

    The tokens may be the first or the last ones. `given` has other numbers for the argument.
    """
    judged: list[bool | None] = []
    for symbol, numbers, change in given:
        first = torch.arange(subject.numbers[symbol]) < numbers[:, None] + more
        for kept in (first, first.flip(-1)):
            hidden = TokenChange(symbol, ~kept, kept, by_every_query=True)
            reached = is_reached(subject, hidden, change)
            if reached is False and is_reached(subject, hidden, _whole(subject, name, symbol, more)):
                return True
            judged.append(reached)
    return False if judged and all(judged) and _decides_alone(subject, name) else None


def is_reached(subject: Subject, hidden: TokenChange, given: Intervention) -> bool | None:
    """Return whether results depend on tokens where they must not, at the given numbers; None if that can't be told."""
    before = subject.experiment.run(given)
    after = subject.experiment.run(Intervention(inputs={**hidden.inputs(subject), **given.inputs}))
    if before.error is not None:
        return None
    return hidden.reaches(subject, PerturbationDiff(before, after, subject.experiment.tolerance))


def _whole(subject: Subject, name: str, symbol: str, more: int) -> Intervention:
    """Return the change after which every element has all tokens."""
    whole = torch.full_like(subject.base.inputs[name], subject.numbers[symbol] - more)
    return Intervention(inputs={name: constant(whole)})


def _decides_alone(subject: Subject, name: str) -> bool:
    """Return whether no other argument may hide tokens, as a mask does."""
    others = (value for other, value in subject.base.inputs.items() if other != name)
    return all(value.is_floating_point() and not is_pattern(value) for value in others)


def layout_line(subject: Subject, name: str) -> OutputRef | None:
    """Return the call that lays out what a comparison with an argument hides, else the comparison, else attention."""
    context = next((core.context for core in subject.attentions), None)
    if context is None:
        return None
    after = subject.graph.downstream({name})
    path = [event for event in reversed(list(subject.graph.upstream((context,)))) if event.refs[0] in after]
    compared = next((event for event in path if event.name in ORDER_COMPARISONS), None)
    if compared is None:
        return context
    behind = subject.graph.downstream_of(compared.refs[0])
    laid_out = (event for event in path if event.name in DATA_MOVEMENT and event.refs[0] in behind)
    return next(laid_out, compared).refs[0]

"""Are all gradients finite where the results are, also those of queries without any visible key?

The gradient of a softmax is a multiple of its weights. Weights that are NaN and replaced afterwards leave results that
are finite, and gradients that are NaN.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import ReplayRun
from attnshape.checks.interventions.replay import ReplayedCall
from attnshape.checks.interventions.uses import Gradients, gradients
from attnshape.checks.rules.masks.empty_rows import hide_all
from attnshape.checks.rules.protocol import Outcome, Verification, Violation
from attnshape.model.formatting import join_words
from attnshape.model.report import Level

_HINT = "give every operand of this call finite numbers: replace what isn't finite before it, not after it"


def check_gradients(subject: Subject) -> Iterator[Outcome]:
    """Run with autograd, with the target's own arguments and with masks that hide every key."""
    own = subject.gradients
    if not own.results_are_finite:
        return
    if own.names_not_finite:
        drawn = set(subject.base.inputs) & set(subject.experiment.target.sizes.inputs)
        # a mask that was drawn at random may hide what the user's own masks never hide
        level: Level = "notice" if any(subject.base.inputs[name].dtype == torch.bool for name in drawn) else "error"
        yield _violation(subject, own, subject.base, "", "ran the target with autograd", level)
        return
    if own.reached:
        yield Verification("every gradient is finite")
    hide = hide_all(subject)
    if not hide.inputs:
        return
    inputs = [name for name, value in subject.inputs.items() if value.is_floating_point()]
    hidden = gradients(subject.experiment, inputs, replaced=hide.inputs)
    if not hidden.reached or not hidden.results_are_finite:
        return
    if not hidden.names_not_finite:
        yield Verification("gradients are finite where no query has a visible key")
        return
    level = "error" if subject.claims.zero_masked_rows else "notice"
    evidence = f"ran the target with autograd, all keys hidden by {join_words(list(hide.inputs))}"
    run = subject.experiment.run(hide)
    where = ", where no query has a visible key"
    yield _violation(subject, hidden, run, where, evidence, level)


def _violation(
    subject: Subject, found: Gradients, run: ReplayRun, where: str, evidence: str, level: Level
) -> Violation:
    names = list(found.names_not_finite)
    listed = join_words([*names[:2], f"{len(names) - 2} others"] if len(names) > 3 else names)
    call = _origin(subject, found, run)
    by = ""
    if call is not None:
        by = f": {call.short_name} makes them"
        if not _is_finite(call):
            by = (
                f": {call.short_name} gives numbers that aren't finite, and replacing them later leaves their gradients"
            )
    message = f"the gradient of {listed} isn't finite, although every result is{where}{by}"
    return Violation("AS309", message, call.refs[0] if call is not None else None, _HINT, evidence, level=level)


def _origin(subject: Subject, found: Gradients, run: ReplayRun) -> ReplayedCall | None:
    """Return the call that reads the last result whose gradient isn't finite: there it is made in the backward pass."""
    if found.calls != len(run.events) or not run.follows(subject.base):
        return None
    last = max(found.not_finite, default=None)
    readers = [event for event in run.events if last in event.producers and set(event.refs) & found.differentiable]
    if last is None:
        readers = [event for event in run.events if event.producers & set(found.names_not_finite)]
    makers = [reader for reader in readers if not found.not_finite & set(reader.refs)]
    # of several that read the same result, one that gives infinity is the likelier
    return next((maker for maker in makers if not _is_finite(maker)), makers[0] if makers else None)


def _is_finite(call: ReplayedCall) -> bool:
    return all(bool(torch.isfinite(value).all()) for value in call.values if value.is_floating_point())

"""Runs rules so that the failure of one, or the end of the time limit, doesn't end the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import OutOfTimeError, UnreadableError
from attnshape.checks.interventions.replay import OutputRef
from attnshape.checks.rules.protocol import Observation, Outcome, Undecided, Verification, Violation
from attnshape.errors import AttnshapeError, format_exception
from attnshape.runtime.signals import reraise_interruption
from attnshape.runtime.time_limit import TooLong, call_within

OUT_OF_TIME = "the time limit was reached"
RUN_TOO_LONG = "a run took too long"
CHECK_FAILED = "the check failed: "
"""Why a topic is undecided, and how such a reason begins."""
_LEAST_SECONDS = 1.0
"""Every rule may take this long, since what it needs may be at hand when the time for runs is over."""


def guarded(subject: Subject, topic: str, check: Callable[[Subject], Iterator[Outcome]]) -> Iterator[Outcome]:
    """Yield the outcomes of a check; if it fails or its time is over, its violations so far, and an undecided topic."""
    outcomes: list[Outcome] = []

    def collect() -> None:
        for outcome in check(subject):
            outcomes.append(outcome)  # noqa: PERF402 - each stays when a later one fails

    budget = subject.experiment.budget
    try:
        if not subject.is_deterministic:
            yield Observation("the result is random even with a fixed seed")
            yield Undecided("everything", "two runs of the same code with the same seed differ", incomplete=True)
            return
        # a second run and its comparison precede every rule
        subject.experiment.varies_inputs = subject.base.results_are_compared = False
        call_within(max(budget.left, _LEAST_SECONDS), collect)
        gap = None
    except UnreadableError as error:
        gap = Undecided(topic, f"{_text_of(subject, error.ref)} can't be examined: {error.why}")
    except OutOfTimeError:
        gap = Undecided(topic, OUT_OF_TIME, incomplete=True)
    except TooLong:
        gap = Undecided(topic, OUT_OF_TIME if budget.is_spent else RUN_TOO_LONG, incomplete=True)
    except AttnshapeError as error:  # a claim has no value at these sizes
        gap = Undecided(topic, error.message, incomplete=True)
    except BaseException as error:  # noqa: BLE001 - one rule's failure must not end the check
        reraise_interruption(error)
        gap = Undecided(topic, f"{CHECK_FAILED}{format_exception(error)}", incomplete=True)
    if gap is None:
        yield from _without_overclaims(subject, topic, outcomes)
    else:
        yield from (outcome for outcome in outcomes if isinstance(outcome, Violation))
        yield gap


def _without_overclaims(subject: Subject, topic: str, outcomes: Sequence[Outcome]) -> Iterator[Outcome]:
    """Yield a rule's outcomes; what it verified is undecided if it couldn't vary an input, or compare a result."""
    gaps = [f"{name} can't be varied: {why}" for name, why in subject.unvaried.items()]
    gaps = gaps if subject.experiment.varies_inputs else []
    if subject.base.results_are_compared:
        gaps += [f"{path} can't be compared: {why}" for path, why in subject.base.unread_results.items()]
        gaps += [
            f"{path} {'is NaN everywhere' if v.numel() else 'has no elements'}, so nothing can be observed"
            for path, v in subject.base.returned
            if bool(torch.isnan(v).all())
        ]
    for outcome in outcomes:
        if isinstance(outcome, Verification) and gaps:
            yield from (Undecided(topic, gap, outcome.claims) for gap in gaps)
        else:
            yield outcome


def _text_of(subject: Subject, ref: OutputRef) -> str:
    """Return a call's result as a reason names it: by its name or its expression, and its line."""
    step, source = subject.step(ref), subject.source(ref)
    if step is None:
        return "a tensor"
    names = [output.name for output in step.outputs if output.name]
    text = ", ".join(names) or (step.location.expression if step.location else "") or step.operation
    return f"{text} ({source.file}:{source.line})" if source is not None else text

"""Is the result reproducible, and does a call leave arguments, parameters and later calls alone?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor

from attnshape.checks.attention.perturbation import differs
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Intervention, ReplayRun
from attnshape.checks.interventions.replay import OutputRef, ReplayedCall
from attnshape.checks.rules.protocol import Observation, Outcome, Undecided, Verification, Violation
from attnshape.tracing.operations import FILLS, FUSED_ATTENTION, RANDOM
from attnshape.tracing.source_locations import SourceLocator

CODES: tuple[str, ...] = ("AS901", "AS902", "AS903", "AS904")
TOPIC = "state"


def check(subject: Subject) -> Iterator[Outcome]:
    """Run with another seed, call twice, and compare arguments and parameters before and after."""
    changed = [*_changed(subject, "AS903", "argument"), *_changed(subject, "AS904", "parameter or buffer")]
    yield from changed
    randomness = _randomness(subject)
    if randomness is not None:
        yield randomness
        return
    if changed:
        return
    yield from _twice(subject)


def _randomness(subject: Subject) -> Outcome | None:
    run = subject.experiment.run(Intervention(seed=1))
    first = next(_differing_calls(subject, subject.base, run), None)
    if first is None:
        return None
    results = zip(subject.base.returned, run.returned, strict=False)
    if not any(
        bool(differs(a, b, subject.experiment.tolerance).any()) for (_, a), (_, b) in results if a.shape == b.shape
    ):
        return None
    if subject.experiment.training:
        return Observation(f"the result is random in training mode: {first.short_name}", first.refs[0])
    if first.name not in RANDOM | FUSED_ATTENTION:
        return Observation(f"the result is random: {first.short_name} depends on the seed", first.refs[0])
    return Violation(
        code="AS901",
        message=f"dropout is active in eval mode: the result of {first.short_name} depends on the seed",
        at=first.refs[0],
        hint="pass training=self.training, or dropout_p=self.p if self.training else 0.0",
        evidence="ran the target again with another seed",
    )


def _differing_calls(subject: Subject, before: ReplayRun, after: ReplayRun) -> Iterator[ReplayedCall]:
    for event, other in zip(before.events, after.events, strict=False):
        if event.operation != other.operation:
            yield other
            return
        for a, b in zip(event.values, other.values, strict=False):
            if a.shape != b.shape or bool(differs(a, b, subject.experiment.tolerance).any()):
                yield event
                break


def _changed(subject: Subject, code: str, what: str) -> Iterator[Violation]:
    base = subject.base
    before, after = (base.inputs, base.inputs_after) if code == "AS903" else (base.state, base.state_after)
    for name in _differing(before, after):
        if code == "AS904" and (name in base.inputs or not _changes_again(subject, name)):
            continue
        at = next((event for event in base.events if event.in_place and name in _written(subject, event)), None)
        by = f" by {at.short_name}" if at is not None else ""
        consequence = "the caller's tensor changes" if code == "AS903" else "later calls use the changed values"
        yield Violation(
            code=code,
            message=f"the {what} {name} is modified in place{by}: {consequence}",
            at=at.refs[0] if at is not None else None,
            hint="create a new tensor: x = x + y instead of x += y",
            evidence=f"compared {name} before and after the call",
        )
        return


def _changes_again(subject: Subject, name: str) -> bool:
    """Return whether a change is more than filling an empty cache, or a table that the first call computes."""
    before, after = subject.base.state[name], subject.base.state_after[name]
    writers = {event.name for event in subject.base.events if event.in_place and name in _written(subject, event)}
    if name in subject.experiment.parameters or bool(before[before != after].any()) or not writers <= FILLS:
        return True
    runs = subject.experiment.call_twice()
    return runs is None or bool(_differing({name: runs[1].state[name]}, {name: runs[1].state_after[name]}))


def _written(subject: Subject, event: ReplayedCall) -> set[str]:
    """Return the names of the inputs, parameters and buffers whose memory a call writes to."""
    found: set[str] = set()
    target = event.outputs[0]
    for place, operand in enumerate(event.operands):
        if operand is not target:
            continue
        for source in event.sources[place]:
            one: OutputRef | str = source
            while isinstance(one, OutputRef):
                maker = subject.base.event(one)
                same = [
                    at
                    for at, other in enumerate(maker.operands)
                    if other.untyped_storage()._cdata == maker.outputs[one.output].untyped_storage()._cdata
                ]
                if not same:
                    break
                one = maker.sources[same[0]][0]
            if isinstance(one, str):
                found.add(one)
    return found


def _differing(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> list[str]:
    return [
        name
        for name, value in before.items()
        if name in after and after[name].shape == value.shape and bool(differs(value, after[name], 0.0).any())
    ]


def _twice(subject: Subject) -> Iterator[Outcome]:
    """Call the target twice in a row, and again with a call of another length in between."""
    for other in dict.fromkeys((None, *([tuple(subject.other.items())] if subject.other else []))):
        runs = subject.experiment.call_twice(dict(other) if other is not None else None)
        if runs is None:
            yield Undecided("repeated calls", "the second call fails or takes a different path")
            return
        first, second = runs
        wrong = [
            path
            for (path, a), (_, b) in zip(first.returned, second.returned, strict=False)
            if a.shape != b.shape or bool(differs(a, b, subject.experiment.tolerance).any())
        ]
        if wrong or len(first.returned) != len(second.returned):
            differing = next(_differing_calls(subject, first, second), None)
            yield Violation(
                code="AS902",
                message="the result depends on the previous call: the same arguments give a different result",
                at=None,
                place=SourceLocator().find(differing.calls[0])[0]
                if differing is not None and differing.calls
                else None,
                hint="pass the state as an argument, or reset it at the start of each call",
                evidence="called the target twice"
                + (", with a call of another length in between" if other is not None else ""),
            )
            return
    yield Verification("the same call gives the same result, and modifies no argument, parameter or buffer")

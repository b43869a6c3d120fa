"""Is the result reproducible, and does a call leave arguments, parameters and later calls alone?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor

from attnshape.checks.attention.perturbation import differs
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Intervention, ReplayRun
from attnshape.checks.interventions.replay import OutputRef, Producer, ReplayedCall
from attnshape.checks.rules.protocol import Observation, Outcome, Undecided, Verification, Violation
from attnshape.tracing.operations import FILLS, FUSED_ATTENTION, RANDOM
from attnshape.tracing.source_locations import SourceLocator
from attnshape.tracing.storage import memory_of

CODES: tuple[str, ...] = ("AS901", "AS902", "AS903", "AS904")
TOPIC = "state"


def check(subject: Subject) -> Iterator[Outcome]:
    """Run with another seed, call twice, and compare arguments and parameters before and after."""
    base = subject.base
    arguments = _differing(base.inputs, base.inputs_after)
    # an argument of the same name has its own finding
    state = (name for name in _differing(base.state, base.state_after) if name not in base.inputs)
    changed = next((name for name in state if _changes_again(subject, name)), None)
    if arguments:
        yield _modified(subject, "AS903", "argument", arguments[0], "the caller's tensor changes")
    if changed is not None:
        yield _modified(subject, "AS904", "parameter or buffer", changed, "later calls use the changed values")
    randomness = _randomness(subject)
    if randomness is not None:
        yield randomness
    elif not arguments and changed is None:
        unread = next(((name, why) for name, why in base.unread.items()), None)
        yield Undecided(TOPIC, f"{unread[0]} can't be compared: {unread[1]}") if unread else _twice(subject)


def _randomness(subject: Subject) -> Outcome | None:
    subject.base.results_are_compared = True
    run = subject.experiment.run(Intervention(seed=1))
    first = _first_difference(subject, subject.base, run)
    results = zip(subject.base.returned, run.returned, strict=False)
    same_shapes = ((a, b) for (_, a), (_, b) in results if a.shape == b.shape)
    if first is None or not any(_differ(subject, a, b) for a, b in same_shapes):
        return None
    if subject.experiment.training:
        return Observation(f"the result is random in training mode: {first.short_name}", first.refs[0])
    if first.name not in RANDOM | FUSED_ATTENTION:
        return Observation(f"the result is random: {first.short_name} depends on the seed", first.refs[0])
    message = f"dropout is active in eval mode: the result of {first.short_name} depends on the seed"
    hint = "pass training=self.training, or dropout_p=self.p if self.training else 0.0"
    return Violation("AS901", message, first.refs[0], hint, "ran the target again with another seed")


def _differ(subject: Subject, before: Tensor, after: Tensor) -> bool:
    return before.shape != after.shape or bool(differs(before, after, subject.experiment.tolerance).any())


def _first_difference(subject: Subject, before: ReplayRun, after: ReplayRun) -> ReplayedCall | None:
    """Return the first call whose result differs, or that the second run makes instead of another."""
    for event, other in zip(before.events, after.events, strict=False):
        if event.operation != other.operation:
            return other
        if any(_differ(subject, a, b) for a, b in zip(event.values, other.values, strict=False)):
            return event
    return None


def _modified(subject: Subject, code: str, what: str, name: str, consequence: str) -> Violation:
    writes = (event for event in subject.base.events if event.in_place and name in _written(subject, event))
    write = next(writes, None)
    by = f" by {write.short_name}" if write is not None else ""
    message = f"the {what} {name} is modified in place{by}: {consequence}"
    at = write.refs[0] if write is not None else None
    hint = "create a new tensor: x = x + y instead of x += y"
    return Violation(code, message, at, hint, f"compared {name} before and after the call")


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


def _differing(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> list[str]:
    return [
        name
        for name, value in before.items()
        if name in after and after[name].shape == value.shape and bool(differs(value, after[name], 0.0).any())
    ]


def _twice(subject: Subject) -> Outcome:
    """Call the target twice in a row, and again with a call of another length in between."""
    evidence = "called the target twice"
    for other in (None, subject.other) if subject.other else (None,):
        runs = subject.experiment.call_twice(other)
        if runs is None:
            return Undecided("repeated calls", "the second call fails or takes a different path")
        first, second = runs
        results = zip(first.returned, second.returned, strict=False)
        if len(first.returned) != len(second.returned) or any(_differ(subject, a, b) for (_, a), (_, b) in results):
            call = _first_difference(subject, first, second)
            place = SourceLocator().find(call.calls[0])[0] if call is not None and call.calls else None
            message = "the result depends on the previous call: the same arguments give a different result"
            hint = "pass the state as an argument, or reset it at the start of each call"
            return Violation("AS902", message, None, hint, evidence, place=place)
        evidence = "called the target twice, with a call of another length in between"
    return Verification("the same call gives the same result, and modifies no argument, parameter or buffer")

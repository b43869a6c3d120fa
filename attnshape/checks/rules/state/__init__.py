"""Is the result reproducible, and does a call leave arguments, parameters and later calls alone?"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import SequenceMatcher

from torch import Tensor, nn

from attnshape.checks.attention.definitions import attribute_change
from attnshape.checks.attention.operands import operands
from attnshape.checks.attention.permutation import cycle, reorder
from attnshape.checks.attention.perturbation import differs, other_numbers
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Intervention, ModeRuns, ReplayRun
from attnshape.checks.interventions.replay import OutputRef, Replace, ReplayedCall
from attnshape.checks.rules.protocol import Observation, Outcome, Undecided, Verification, Violation
from attnshape.checks.rules.state.counters import is_idle_counter
from attnshape.checks.rules.state.reused import check_reused
from attnshape.checks.rules.state.writes import read_again, writers
from attnshape.model.formatting import join_words
from attnshape.tracing.operations import ADDITIONS, ELEMENT_WRITES, FILLS, FUSED_ATTENTION, RANDOM
from attnshape.tracing.source_locations import SourceLocator

CODES: tuple[str, ...] = ("AS901", "AS902", "AS903", "AS904", "AS906", "AS909")
TOPIC = "state"
_READ_AGAIN = "the next layer reads it changed"
_RESET = re.compile(r"(reset|clear|forget)(_(?!param|weight)\w+)?|init(ialize)?_(state|cache|hidden|memory)s?")


def check(subject: Subject) -> Iterator[Outcome]:
    """Run with another seed, call twice, and compare arguments and parameters before and after."""
    base = subject.base
    modified = _differing(base.inputs, base.inputs_after)
    caches = [name for name in modified if _is_filled_cache(subject, name)]
    arguments = [name for name in modified if name not in caches]
    toggled = next(read_again(subject, set(base.inputs) - set(modified)), None)
    for name in caches:
        yield Observation(f"new keys or values are written to the argument {name}, which is a cache")
    # an argument of the same name has its own finding
    state = [name for name in _differing(base.state, base.state_after) if name not in base.inputs]
    counters = [name for name in state if is_idle_counter(subject, name)]
    toggled_state = next(read_again(subject, set(base.state) - set(base.inputs) - set(state)), None)
    changed = next((name for name in state if name not in counters and _changes_again(subject, name)), None)
    for name in counters:
        yield Observation(f"the buffer {name} counts calls, and no result depends on it")
    if arguments:
        yield _modified(subject, "AS903", "argument", arguments[0], "the caller's tensor changes")
    elif toggled is not None:
        yield _modified(subject, "AS903", "argument", toggled, _READ_AGAIN, "each layer")
    if changed is not None:
        yield _modified(subject, "AS904", "parameter or buffer", changed, "later calls use the changed values")
    elif toggled_state is not None:
        yield _modified(subject, "AS904", "parameter or buffer", toggled_state, _READ_AGAIN, "each layer")
    yield from check_reused(subject)
    randomness = _randomness(subject)
    if randomness is not None:
        yield randomness
    elif not modified and toggled is None and changed is None and toggled_state is None:
        unread = next(((name, why) for name, why in base.unread.items()), None)
        yield Undecided(TOPIC, f"{unread[0]} can't be compared: {unread[1]}") if unread else _again(subject, counters)


def _is_filled_cache(subject: Subject, name: str) -> bool:
    """Return whether a call writes new tokens to an argument of keys or values, and leaves those of other positions."""
    before, after = subject.base.inputs[name], subject.base.inputs_after[name]
    operations = {event.name for event in writers(subject, name)}
    attended = (operand for operand in operands(subject) if operand.role != "query")
    is_read = any(name in subject.graph.origins(operand.sources) for operand in attended)
    return is_read and operations <= ELEMENT_WRITES and bool((before == after).any())


def _randomness(subject: Subject) -> Outcome | None:
    subject.base.results_are_compared = True
    run = subject.experiment.run(Intervention(seed=1))
    first = _first_difference(subject, subject.base, run)
    results = zip(subject.base.returned, run.returned, strict=False)
    same_shapes = ((a, b) for (_, a), (_, b) in results if a.shape == b.shape)
    if first is None or not any(_differ(subject, a, b) for a, b in same_shapes):
        return None
    if isinstance(first.outputs[0], nn.Parameter):
        message = f"a layer is made anew in each call: {first.short_name} draws its parameters"
        hint = "make the layer in __init__, so that it is trained and stays the same"
        return Violation("AS906", message, first.refs[0], hint, "ran the target again with another seed")
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


def _modified(
    subject: Subject, code: str, what: str, name: str, consequence: str, compared: str = "the call"
) -> Violation:
    write = next(iter(writers(subject, name)), None)
    by = f" by {write.short_name}" if write is not None else ""
    message = f"the {what} {name} is modified in place{by}: {consequence}"
    at = write.refs[0] if write is not None else None
    hint = "create a new tensor: x = x + y instead of x += y"
    return Violation(code, message, at, hint, f"compared {name} before and after {compared}")


def _changes_again(subject: Subject, name: str) -> bool:
    """Return whether a change is more than filling an empty cache, or a table that the first call computes.

    The first call in evaluation may also fold one parameter into another, so that later calls give the same.
    """
    before, after = subject.base.state[name], subject.base.state_after[name]
    operations = {event.name for event in writers(subject, name)}
    is_parameter = name in subject.experiment.parameters
    if not operations <= (ADDITIONS if is_parameter else FILLS):
        return True
    if not is_parameter and bool(before[before != after].any()):
        return True
    runs = subject.experiment.call_twice()
    if runs is None or _differing({name: runs[1].state[name]}, {name: runs[1].state_after[name]}):
        return True
    first, second = (dict(run.returned) for run in runs)
    tolerance = subject.experiment.tolerance
    return is_parameter and any(bool(differs(value, second[path], tolerance).any()) for path, value in first.items())


def _differing(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> list[str]:
    return [
        name
        for name, value in before.items()
        if name in after and after[name].shape == value.shape and bool(differs(value, after[name], 0.0).any())
    ]


def _again(subject: Subject, counters: Sequence[str]) -> Outcome:
    """Call the target again, in the same mode and, where that makes no difference, in the other one."""
    twice = _twice(subject, counters)
    return (_between_modes(subject) if isinstance(twice, Verification) else None) or twice


def _between_modes(subject: Subject) -> Violation | None:
    """Return what is wrong if a call in one mode changes what a later call in the other mode gives."""
    if subject.experiment.training:
        return None
    alone = subject.experiment.call_in_modes((True, True))
    # what a call in training mode leaves for the next one, such as an annealed temperature, is meant
    if alone is None or _results_differ(subject, *alone.runs):
        return None
    base, (train, _) = subject.base, alone.runs
    if train.follows(base) and not _results_differ(subject, base, train):
        return None  # both modes do the same
    mixed = subject.experiment.call_in_modes((False, True, False))
    if mixed is None:
        return None
    for before, after, of, then in (
        (train, mixed.runs[1], "training", "eval"),
        (base, mixed.runs[2], "eval", "training"),
    ):
        if _results_differ(subject, before, after):
            return _mode_violation(subject, mixed, _first_difference(subject, before, after), of, then)
    return None


def _mode_violation(subject: Subject, mixed: ModeRuns, call: ReplayedCall | None, mode: str, before: str) -> Violation:
    owner, name = mixed.written[0] if len(mixed.written) == 1 else (None, "")
    place = attribute_change(owner, name) if owner is not None else None
    if place is None and call is not None and call.calls:
        place = SourceLocator().find(call.calls[0])[0]
    written = f", which overwrites {owner.__name__}.{name}" if owner is not None else ""
    message = f"the result in {mode} mode depends on an earlier call in {before} mode{written}"
    hint = "leave attributes as they are, and choose in each call: p = self.p if self.training else 0.0"
    evidence = (
        f"called the target in {before} mode and then in {mode} mode with the same parameters, buffers and seed, and "
        f"a new target in {mode} mode alone"
    )
    return Violation("AS902", message, None, hint, evidence, place=place)


def _twice(subject: Subject, counters: Sequence[str]) -> Outcome:
    """Call the target twice in a row, and again with a call of another length in between."""
    evidence = "called the target twice"
    for other in (None, subject.other) if subject.other else (None,):
        runs = subject.experiment.call_twice(other)
        if runs is None:
            return Undecided("repeated calls", "the second call fails or takes a different path")
        first, second = runs
        if _results_differ(subject, first, second):
            call = _first_difference(subject, first, second)
            place = SourceLocator().find(call.calls[0])[0] if call is not None and call.calls else None
            message = "the result depends on the previous call: the same arguments give a different result"
            hint = "pass the state as an argument, or reset it at the start of each call"
            return _kept_until_reset(subject, Violation("AS902", message, None, hint, evidence, place=place))
        evidence = "called the target twice, with a call of another length in between"
    return _after_other_values(subject, counters)


def _results_differ(subject: Subject, first: ReplayRun, second: ReplayRun) -> bool:
    results = zip(first.returned, second.returned, strict=False)
    return len(first.returned) != len(second.returned) or any(_differ(subject, a, b) for (_, a), (_, b) in results)


def _after_other_values(subject: Subject, counters: Sequence[str]) -> Outcome:
    """Call the target with its arguments and then with other values, and compare with a new one's result for these."""
    same, rest = "the same call gives the same result", "and modifies no argument, parameter or buffer"
    rest += f" except {join_words(counters)}" if counters else ""
    values = _other_values(subject)
    fresh = subject.experiment.run(Intervention(inputs=values)) if values else None
    if fresh is None or fresh.error is not None:
        return Verification(f"{same}, {rest}")
    runs = subject.experiment.call_twice(second_call=Intervention(inputs=values))
    if runs is not None and not _results_differ(subject, fresh, runs[1]):
        return Verification(f"{same}, also after a call with other values (varied: {', '.join(values)}), {rest}")
    if runs is None:
        return Undecided("repeated calls", "a call with other values fails after another call")
    at = _first_stale(subject, fresh, runs[1], values) if fresh.follows(subject.base) else None
    message = "the result depends on the previous call: a call with other values doesn't give what a new target gives"
    hint = "compute it from the arguments of each call, or keep it together with those that it was computed from"
    evidence = (
        f"called the target with other values of {', '.join(values)} after a call, and a new target with the same"
    )
    return _kept_until_reset(subject, Violation("AS902", message, at, hint, evidence))


def _kept_until_reset(subject: Subject, violation: Violation) -> Violation:
    """Return a violation as a notice if a module has a method to begin a new sequence, and keeps state on purpose.

    Step by step, decoders keep the projected keys of their memory, or where they attended before, until they are reset.
    """
    methods = subject.experiment.observe(lambda runnable, _: list(_resets(runnable.function)))
    if not methods:
        return violation
    hint = f"if state is meant to be kept until {methods[0]} is called, nothing is wrong; else {violation.hint}"
    return replace(violation, hint=hint, level="notice")


def _resets(target: object) -> Iterator[str]:
    """Yield the methods of a module, and of those in it, that reset state other than parameters."""
    for module in target.modules() if isinstance(target, nn.Module) else ():
        for name in dir(type(module)):
            if _RESET.fullmatch(name) and callable(getattr(type(module), name)):
                yield f"{type(module).__name__}.{name}()"


def _other_values(subject: Subject) -> dict[str, Replace]:
    """Return replacements by values that the code accepts: other numbers for data, another order of the batch else."""
    values: dict[str, Replace] = {}
    for name, value in subject.base.inputs.items():
        if name in subject.unvaried:
            continue
        if name in subject.inputs:
            values[name] = other_numbers
        elif subject.batch_size in value.shape:
            axis = list(value.shape).index(subject.batch_size)
            values[name] = reorder(axis, cycle(subject.batch_size))
    return values


def _first_stale(subject: Subject, fresh: ReplayRun, later: ReplayRun, values: Iterable[str]) -> OutputRef | None:
    """Return the call of a new target whose result a later call of a used one doesn't compute, or computes otherwise.

    The later call may leave out calls whose results the target keeps. This is right unless they depend on `values`,
    the arguments that have other values.
    """
    calls, later_calls = ([event.operation for event in run.events] for run in (fresh, later))
    pairs = [
        (fresh.events[block.a + place], later.events[block.b + place])
        for block in SequenceMatcher(None, calls, later_calls, autojunk=False).get_matching_blocks()
        for place in range(block.size)
    ]
    depend = subject.graph.downstream(values) - {ref for event, _ in pairs for ref in event.refs}
    for event, other in pairs:
        if any(_differ(subject, a, b) for a, b in zip(event.values, other.values, strict=False)):
            kept = [producer for producer in event.producers if isinstance(producer, OutputRef) and producer in depend]
            return max(kept, default=event.refs[0])
    return None

"""Do results depend on the size of the chunks in which the code computes them?

A module or a function that takes such a number has it as an attribute or an argument. Where every chunk gets what the
earlier ones leave, a state or running sums, the chunks are a way to compute, and another size must give the same.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn

from attnshape.checks.attention.cores import Core, FusedCore
from attnshape.checks.attention.perturbation import differs, others_at
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Intervention, ReplayRun
from attnshape.checks.interventions.replay import OutputRef, Replace, ReplayedCall
from attnshape.checks.rules.protocol import Outcome, Verification, Violation
from attnshape.model.report import Level
from attnshape.tracing.runner import Runnable

CODES: tuple[str, ...] = ("AS910",)
TOPIC = "chunks"
_NAMES = re.compile(r"(?i)(^|_)(chunk|block|segment|seg|tile)(_?(size|len|length|width))?$")
_FEWEST_CHUNKS = 3
"""With fewer, windows of neighbouring chunks reach everything."""
_MOST_SIZES = 3
_ROUNDING = 1e-6
"""How far apart results may be: chunks add up numbers in another order."""


@dataclass(frozen=True)
class _Number:
    """A number by which code divides tokens into chunks."""

    name: str
    value: int
    replace: Callable[[Runnable, int], Runnable]
    """Returns the target with another number."""


def check(subject: Subject) -> Iterator[Outcome]:
    """Run the target with chunks of other sizes, if its results depend on more than their own and the one before."""
    for number in subject.experiment.observe(lambda runnable, _: list(_numbers(runnable))):
        count = _tokens(subject, number.value)
        if count is None or _attends_to_parts(subject, count) or not _is_carried_on(subject, number.value, count):
            continue
        alterations = {size: partial(_replaced, number, size) for size in _other_sizes(count, number.value)}
        runs = {size: subject.experiment.run_altered(alter) for size, alter in alterations.items()}
        runs = {size: run for size, run in runs.items() if _has_same_shapes(subject, run)}
        other = next((size for size, run in runs.items() if _results_differ(subject, run)), None)
        if other is not None:
            in_one_chunk = alterations[count]
            is_certain = _adds_up(subject, number.value, count) and _decays_in_a_chunk(subject, in_one_chunk, count)
            yield _violation(subject, number, other, is_certain)
        elif runs:
            yield Verification("results don't depend on the size of the chunks in which they are computed")
        return


def _numbers(runnable: Runnable) -> Iterator[_Number]:
    """Yield the attributes of modules, and the arguments, given or not, that are sizes of chunks by their names."""
    modules = runnable.function.modules() if isinstance(runnable.function, nn.Module) else ()
    found: dict[str, int] = {}
    for module in modules:
        for name, value in _sizes(vars(module)):
            if found.setdefault(name, value) != value:
                return  # layers have chunks of several sizes
    yield from (_Number(name, value, partial(_with_attribute, name)) for name, value in found.items())
    for name, value in _sizes(_arguments(runnable)):
        yield _Number(name, value, partial(_with_argument, name))


def _sizes(values: Mapping[str, object]) -> Iterator[tuple[str, int]]:
    for name, value in values.items():
        if isinstance(value, int) and not isinstance(value, bool) and value > 0 and _NAMES.search(name):
            yield name, value


def _arguments(runnable: Runnable) -> Mapping[str, object]:
    """Return the arguments by name, with those that have their defaults."""
    try:
        bound = inspect.signature(runnable.signature_of).bind(*runnable.args, **runnable.kwargs)
    except (TypeError, ValueError):  # built in
        return {}
    bound.apply_defaults()
    return bound.arguments


def _with_attribute(name: str, runnable: Runnable, size: int) -> Runnable:
    for module in runnable.function.modules() if isinstance(runnable.function, nn.Module) else ():
        if name in vars(module):
            setattr(module, name, size)
    return runnable


def _with_argument(name: str, runnable: Runnable, size: int) -> Runnable:
    bound = inspect.signature(runnable.signature_of).bind(*runnable.args, **runnable.kwargs)
    bound.apply_defaults()
    bound.arguments[name] = size
    return Runnable(runnable.function, bound.args, bound.kwargs)


def _replaced(number: _Number, size: int, runnable: Runnable) -> Runnable:
    return number.replace(runnable, size)


def _tokens(subject: Subject, size: int) -> int | None:
    """Return the size of the axis of tokens that most inputs have, if it may be divided into chunks, else None.

    The first axis of an input holds its batch, and the last one its features. The last chunk may be shorter.
    """
    counts: dict[int, int] = {}
    for value in subject.inputs.values():
        for count in set(value.shape[1:-1]):
            if math.ceil(count / size) >= _FEWEST_CHUNKS:
                counts[count] = counts.get(count, 0) + 1
    is_chunked = any(size in value.shape for event in subject.base.events for value in event.values)
    return max(counts, key=lambda count: counts[count]) if counts and is_chunked else None


def _attends_to_parts(subject: Subject, count: int) -> bool:
    """Return whether a softmax runs over some of the keys only, such as those of a chunk: then chunks are windows."""
    return any(count not in _key_counts(core) for core in subject.attentions)


def _key_counts(core: Core | FusedCore) -> set[int]:
    if isinstance(core, FusedCore):
        return {core.tensor("key").shape[-2]}
    return {core.weights.shape[axis] for axis in core.key_axes}


def _other_sizes(tokens: int, size: int) -> list[int]:
    """Return other sizes that divide the tokens, the largest first.

    >>> _other_sizes(12, 4)
    [12, 6, 3]
    """
    return [other for other in range(tokens, 0, -1) if tokens % other == 0 and other != size][:_MOST_SIZES]


def _is_carried_on(subject: Subject, size: int, count: int) -> bool:
    """Return whether a result depends on the first chunk beyond the second one, as none does that has windows."""
    moved = subject.perturb(Intervention(inputs=_each_input(subject, count, partial(_others, 0, size))))
    masks = [mask for _, mask in moved.returned() if count in mask.shape] if moved.comparable else []
    begin = (_FEWEST_CHUNKS - 1) * size
    later = (mask.narrow(list(mask.shape).index(count), begin, count - begin) for mask in masks)
    return any(bool(part.any()) for part in later)


def _each_input(subject: Subject, count: int, change: Callable[[int], Replace]) -> dict[str, Replace]:
    """Return replacements of all inputs that have the tokens' axis, from functions of that axis."""
    return {
        name: change(list(value.shape).index(count)) for name, value in subject.inputs.items() if count in value.shape
    }


def _others(begin: int, size: int, axis: int) -> Replace:
    return others_at(axis, begin, size)


def _end(value: Tensor, count: int) -> Tensor:
    """Return the part of a result that belongs to the last token."""
    return value.select(list(value.shape).index(count), count - 1)


def _adds_up(subject: Subject, size: int, count: int) -> bool:
    """Return whether each token adds its own part to the last result, whatever the other ones are.

    So chunks aren't steps of training, in which the tokens of one share what has been learned before.
    """
    first, second = (_each_input(subject, count, partial(_others, begin, 1)) for begin in (0, size))
    both = {name: partial(_in_turn, first[name], second[name]) for name in first}
    runs = [subject.base, *(subject.experiment.run(Intervention(inputs=one)) for one in (first, second, both))]
    if any(run.error is not None for run in runs):
        return False
    for one, with_first, with_second, with_both in zip(*(run.returned for run in runs), strict=True):
        if count in one[1].shape:
            ends = [_end(value, count) for _, value in (one, with_first, with_second, with_both)]
            if bool(differs(ends[1] - ends[0] + ends[2], ends[3], _ROUNDING).any()):
                return False
    return True


def _in_turn(first: Replace, second: Replace, value: Tensor) -> Tensor:
    return second(first(value))


def _decays_in_a_chunk(subject: Subject, in_one_chunk: Callable[[Runnable], Runnable], count: int) -> bool:
    """Return whether tokens of one chunk count less the further they are away: chunks don't just fade as a whole.

    All tokens are equal, so that each result of a causal sum adds what its furthest token counts.
    """
    change = Intervention(inputs=_each_input(subject, count, _first_everywhere))
    run = subject.experiment.run_altered(in_one_chunk, change)
    for _, value in run.returned if run.error is None else ():
        if count in value.shape:
            added = value.movedim(list(value.shape).index(count), 0).diff(dim=0)
            return bool(differs(added[1:], added[:-1], _ROUNDING).any())
    return False


def _first_everywhere(axis: int) -> Replace:
    return lambda value: value.narrow(axis, 0, 1).expand_as(value).clone()


def _has_same_shapes(subject: Subject, run: ReplayRun) -> bool:
    shapes, others = ([(path, value.shape) for path, value in one.returned] for one in (subject.base, run))
    return run.error is None and shapes == others


def _results_differ(subject: Subject, run: ReplayRun) -> bool:
    tolerance = max(_ROUNDING, subject.experiment.tolerance)
    pairs = zip(subject.base.returned, run.returned, strict=True)
    return any(bool(differs(value, other, tolerance).any()) for (_, value), (_, other) in pairs)


def _violation(subject: Subject, number: _Number, other: int, is_certain: bool) -> Violation:
    message = (
        f"the results depend on {number.name}: with chunks of {number.value} tokens they differ from those with {other}"
    )
    hint = "a token of an earlier chunk counts as much as at the same distance in one chunk: compare with one chunk"
    if not is_certain:
        hint = f"if {number.name} is meant to change the results, nothing is wrong; else {hint}"
    evidence = f"ran the target with {number.name}={other}, the same inputs and the same parameters"
    level: Level = "error" if is_certain else "notice"
    return Violation("AS910", message, _carried(subject), hint, evidence, level=level)


def _carried(subject: Subject) -> OutputRef | None:
    """Return the first call that reads what a later line of a loop has computed in the iteration before.

    If there is none, it is one that adds to what it has computed itself.
    """
    first: dict[object, int] = {}
    for event in subject.base.events:
        first.setdefault(_expression(event), event.order)
    by_itself: OutputRef | None = None
    for event in subject.base.events:
        own = first[_expression(event)]
        for producer in event.producers:
            if isinstance(producer, OutputRef) and own < event.order:
                maker = subject.base.event(producer)
                made = first[_expression(maker)]
                if own < made and maker.calls != event.calls:
                    return event.refs[0]
                by_itself = by_itself or (event.refs[0] if own == made else None)
    return by_itself


def _expression(event: ReplayedCall) -> tuple[object, ...]:
    """Return what the calls of one expression have in common, in every iteration."""
    return event.operation, *((frame.f_code, frame.f_lasti) for frame in event.calls)

"""Does a token that comes alone, after the others filled the cache, get what it gets together with them?"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from difflib import SequenceMatcher

import torch
from torch import Tensor

from attnshape.checks.attention.perturbation import constant, differs
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Intervention, ReplayRun
from attnshape.checks.interventions.replay import OutputRef, Replace
from attnshape.checks.rules.protocol import Outcome, Verification, Violation
from attnshape.tracing.runner import Runnable

_FEWEST_TOKENS = 3
_VERIFIED = "a token by itself, after a call with those before it, gets the result that it gets together with them"


def step_by_step(subject: Subject) -> Iterator[Outcome]:
    """Call the target without the last token, and with it alone and the cache that the first call returns.

    It is judged only if the first call gives the other tokens the same results, so that nothing comes from later ones.
    """
    tokens = _tokens(subject)
    caches = _caches(subject) if tokens else {}
    if not caches or subject.experiment.observe(lambda runnable, state: _may_have_offset(runnable)):
        return
    count = subject.numbers[_length(subject)]
    first = subject.experiment.run(
        Intervention(inputs={name: _part(axis, 0, count - 1) for name, axis in tokens.items()})
    )
    before = dict(first.returned)
    if first.error is not None or not _agree(subject, first, 0, count - 1):
        return
    step: dict[str, Replace] = {name: _part(axis, count - 1, 1) for name, axis in tokens.items()}
    step |= {name: constant(before[path]) for name, (path, _) in caches.items()}
    last = subject.experiment.run(Intervention(inputs=step))
    if last.error is not None or [path for path, _ in last.returned] != [path for path, _ in subject.base.returned]:
        return
    if _agree(subject, last, count - 1, 1):
        yield Verification(_VERIFIED)
        return
    at = _first_difference(subject, last, count)
    message = "the last token by itself, after a call with those before it, gets another result than together with them"
    hint = "number the tokens of a call, and mask their keys, from the number of cached keys on, also if there is one"
    evidence = f"called the target with {count - 1} tokens, and with the last one and the cache that this call returned"
    yield Violation("AS908", message, at, hint, evidence)


def _length(subject: Subject) -> str:
    """Return the symbol of the number of new tokens; empty if there are several lengths or none."""
    symbols = [symbol for symbol in subject.lengths if symbol != subject.past]
    return symbols[0] if len(symbols) == 1 else ""


def _tokens(subject: Subject) -> dict[str, int]:
    """Return the token axis of each input that has one; none if it isn't certain what belongs to a token."""
    past = subject.past_size
    symbol = _length(subject)
    if past < 2 or not symbol or not subject.is_distinct(symbol) or not subject.is_distinct(subject.past):
        return {}
    count = subject.numbers[symbol]
    tokens: dict[str, int] = {}
    for name, value in subject.base.inputs.items():
        sizes = list(value.shape)
        if name in subject.unvaried or past + count in sizes or sizes.count(count) > 1:
            return {}
        if count in sizes and past not in sizes:
            tokens[name] = sizes.index(count)
        elif past not in sizes and not value.is_floating_point():
            return {}  # it may say how many tokens there are
    return tokens if count >= _FEWEST_TOKENS else {}


def _caches(subject: Subject) -> dict[str, tuple[str, int]]:
    """Return for each cache the path and the token axis of the result that has its tokens, and then the new ones.

    There is none if one isn't returned so.
    """
    past, count = subject.past_size, subject.numbers[_length(subject)]
    found: dict[str, tuple[str, int]] = {}
    for name, value in subject.base.inputs.items():
        if past not in value.shape:
            continue
        axis = list(value.shape).index(past)
        longer = (*value.shape[:axis], past + count, *value.shape[axis + 1 :])
        paths = [
            path
            for path, result in subject.base.returned
            if result.shape == longer and torch.equal(result.narrow(axis, 0, past), value)
        ]
        if len(paths) != 1 or name not in subject.inputs:
            return {}
        found[name] = paths[0], axis
    return found


def _may_have_offset(runnable: Runnable) -> bool:
    """Return whether an argument, given or not, may say at which position the first token is."""
    given = runnable.bound()
    try:
        parameters = inspect.signature(runnable.signature_of).parameters.values()
    except (TypeError, ValueError):
        return True
    missing = [one for one in parameters if one.name not in given and "mask" not in one.name.lower()]
    left_out = [one.default for one in missing if one.default is not one.empty]
    return any(default is None or _has_number(default) for default in left_out) or any(map(_has_number, given.values()))


def _has_number(value: object) -> bool:
    """Return whether a value is or contains a whole number, or is an object that may contain one."""
    if isinstance(value, Mapping):
        return any(map(_has_number, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(_has_number, value))
    return not (value is None or isinstance(value, (Tensor, bool, float, str)))


def _agree(subject: Subject, run: ReplayRun, start: int, count: int) -> bool:
    """Return whether all results are those of all tokens at once, from a token on."""
    past, every = subject.past_size, subject.numbers[_length(subject)]
    results = dict(run.returned)
    compared = False
    for path, value in subject.base.returned:
        other, sizes = results.get(path), list(value.shape)
        if every in sizes and sizes.count(every) == 1:
            value = value.narrow(sizes.index(every), start, count)
            compared = True
        elif past + every in sizes:
            value = value.narrow(sizes.index(past + every), 0, past + start + count)
        if other is None or other.shape != value.shape or _differ(subject, value, other):
            return False
    return compared


def _differ(subject: Subject, value: Tensor, other: Tensor) -> bool:
    return bool(differs(value, other, subject.experiment.tolerance).any())


def _first_difference(subject: Subject, last: ReplayRun, count: int) -> OutputRef | None:
    """Return the call that first gives the last token another number, or what it reads that the step lacks."""
    calls, calls_alone = ([event.operation for event in run.events] for run in (subject.base, last))
    blocks = SequenceMatcher(None, calls, calls_alone, autojunk=False).get_matching_blocks()
    pairs = [
        (subject.base.events[block.a + place], last.events[block.b + place])
        for block in blocks
        for place in range(block.size)
    ]
    known = {ref for event, _ in pairs for ref in event.refs}
    for event, other in pairs:
        for value, now in zip(event.values, other.values, strict=False):
            own = _of_last_token(value, now.shape, count)
            if own is not None and _differ(subject, own, now):
                lacking = [one for one in event.producers if isinstance(one, OutputRef) and one not in known]
                return max(lacking, default=event.refs[0])
    return None


def _of_last_token(value: Tensor, shape: Iterable[int], count: int) -> Tensor | None:
    """Return the last token's part of a result of all tokens; None if it has another shape."""
    sizes = list(value.shape)
    if sizes.count(count) == 1:
        value = value.narrow(sizes.index(count), count - 1, 1)
    return value if list(value.shape) == list(shape) else None


def _part(axis: int, start: int, count: int) -> Replace:
    return lambda value: value.narrow(axis, start, count).clone()

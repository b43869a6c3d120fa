"""Whether a result depends on chance, on the call before, or leaves arguments and parameters changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor

from attnshape.attention.following import differs
from attnshape.attention.outcome import Measured, Mistake, NotExamined, Outcome, Proved
from attnshape.attention.subject import Subject
from attnshape.replaying.bench import Change, Run
from attnshape.replaying.replay import Address, Event
from attnshape.tracing.places import Places

CODES = ("AS901", "AS902", "AS903", "AS904")
WHAT = "state"
_DRAWS = {
    *("dropout", "dropout_", "alpha_dropout", "feature_dropout", "bernoulli", "bernoulli_"),
    *("rand", "rand_like", "scaled_dot_product_attention", "native_dropout"),
}


_FILLS = {"__setitem__", "copy_", "index_copy_", "index_put_", "scatter_", "set_"}


def examine(subject: Subject) -> Iterator[Outcome]:
    """Run with another seed, call twice, and compare arguments and parameters with what they were."""
    changed = [*_changed(subject, "AS903", "argument"), *_changed(subject, "AS904", "parameter or buffer")]
    yield from changed
    by_chance = _by_chance(subject)
    if by_chance is not None:
        yield by_chance
        return
    if changed:
        return
    yield from _twice(subject)


def _by_chance(subject: Subject) -> Outcome | None:
    run = subject.bench.run(Change(seed=1))
    first = next((event for event in _moved(subject, subject.base, run)), None)
    if first is None:
        return None
    results = zip(subject.base.returned, run.returned, strict=False)
    if not any(bool(differs(a, b, subject.bench.tolerance).any()) for (_, a), (_, b) in results if a.shape == b.shape):
        return None
    if subject.bench.training:
        return Measured(f"the result is random in training mode: {first.name}", first.addresses[0])
    if first.name not in _DRAWS:
        return Measured(f"the result is random: {first.name} draws other numbers with another seed", first.addresses[0])
    return Mistake(
        code="AS901",
        message=f"dropout is active in eval mode: {first.name} makes other numbers with another seed",
        at=first.addresses[0],
        hint="pass training=self.training, or dropout_p=self.p if self.training else 0.0",
        evidence="ran it again with another seed",
    )


def _moved(subject: Subject, before: Run, after: Run) -> Iterator[Event]:
    for event, other in zip(before.events, after.events, strict=False):
        if event.operation != other.operation:
            yield other
            return
        for a, b in zip(event.values, other.values, strict=False):
            if a.shape != b.shape or bool(differs(a, b, subject.bench.tolerance).any()):
                yield event
                break


def _changed(subject: Subject, code: str, what: str) -> Iterator[Mistake]:
    base = subject.base
    before, after = (base.inputs, base.after) if code == "AS903" else (base.state, base.state_after)
    for name in _differing(before, after):
        if code == "AS904" and (name in base.inputs or not _changes_again(subject, name)):
            continue
        at = next((event for event in base.events if event.in_place and name in _written(subject, event)), None)
        by = f" by {at.name}" if at is not None else ""
        yield Mistake(
            code=code,
            message=f"the {what} {name} is changed in place{by}: the caller has other numbers afterwards",
            at=at.addresses[0] if at is not None else None,
            hint="write to a new tensor: x = x + y instead of x += y",
            evidence=f"compared {name} before and after the call",
        )
        return


def _changes_again(subject: Subject, name: str) -> bool:
    """Say whether a change is more than filling what was empty: a cache, or a table that the first call makes."""
    before, after = subject.base.state[name], subject.base.state_after[name]
    writers = {event.name for event in subject.base.events if event.in_place and name in _written(subject, event)}
    if name in subject.bench.parameters or bool(before[before != after].any()) or not writers <= _FILLS:
        return True
    runs = subject.bench.calls()
    return runs is None or bool(_differing({name: runs[1].state[name]}, {name: runs[1].state_after[name]}))


def _written(subject: Subject, event: Event) -> set[str]:
    """Return whose memory a call writes to."""
    found: set[str] = set()
    written = event.outputs[0]
    for place, operand in enumerate(event.operands):
        if operand is not written:
            continue
        for source in event.sources[place]:
            one: Address | str = source
            while isinstance(one, Address):
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
    """Call what was built twice, without and with a call of another length between."""
    for other in dict.fromkeys((None, *([tuple(subject.other.items())] if subject.other else []))):
        runs = subject.bench.calls(dict(other) if other is not None else None)
        if runs is None:
            yield NotExamined("calls one after the other", "the second call fails, or takes other steps")
            return
        first, second = runs
        wrong = [
            path
            for (path, a), (_, b) in zip(first.returned, second.returned, strict=False)
            if a.shape != b.shape or bool(differs(a, b, subject.bench.tolerance).any())
        ]
        if wrong or len(first.returned) != len(second.returned):
            parted = next(_moved(subject, first, second), None)
            yield Mistake(
                code="AS902",
                message="the result depends on the call before: the same arguments give other numbers",
                at=None,
                place=Places().find(parted.calls[0])[0] if parted is not None and parted.calls else None,
                hint="keep what a call needs in its arguments, or reset it when a call begins",
                evidence="called it twice" + (" with a call of another length between" if other is not None else ""),
            )
            return
    yield Proved("the same call gives the same result, and changes no argument, parameter or buffer")

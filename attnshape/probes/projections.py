"""Whether one projection is used twice, and another of the same shape not at all."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from attnshape.attention.numbers import others_at
from attnshape.attention.operands import by_attention, projection
from attnshape.attention.outcome import Mistake, Outcome, Proved
from attnshape.attention.subject import Subject
from attnshape.inference.kinds import PRODUCT
from attnshape.replaying.bench import Change
from attnshape.replaying.replay import Address, Event

CODES = ("AS805",)
WHAT = "projections"
_OF_WEIGHTS = {"t", "T", "mT", "transpose", "chunk", "split", "unbind", "__getitem__", "view", "reshape", "permute"}


def examine(subject: Subject) -> Iterator[Outcome]:
    """Look at which products read each parameter, and at the parts of fused projections that nothing reads."""
    users = _users(subject)
    unused = [
        name
        for name, value in subject.base.state.items()
        if value.ndim >= 2 and name not in users and not subject.flow.consumers.get(name)
    ]
    for name, events in users.items():
        shape = subject.base.state[name].shape
        twin = next((other for other in unused if subject.base.state[other].shape == shape), None)
        if len(events) > 1 and twin is not None and _is_called_once(subject, events):
            yield _mistake(
                f"{name} projects twice, and {twin} is not used", events[1].addresses[0], f"nothing reads {twin}"
            )
            return
    for found in (_fused(subject), _sliced(subject), _all_the_same(subject)):
        if found is not None:
            yield found
            return
    if users:
        yield Proved("no projection stands in for another")


def _users(subject: Subject) -> dict[str, list[Event]]:
    """Return the products that read each parameter, as it is or transposed."""
    found: dict[str, list[Event]] = {}
    for event in subject.base.events:
        if event.name not in PRODUCT:
            continue
        for sources in event.sources:
            for name in _parameters(subject, sources[0]):
                found.setdefault(name, []).append(event)
    return found


def _parameters(subject: Subject, source: Address | str) -> set[str]:
    while isinstance(source, Address):
        event = subject.base.event(source)
        if event.name not in _OF_WEIGHTS or not event.sources:
            return set()
        source = event.sources[0][0]
    value = subject.base.state.get(source)
    return {source} if value is not None and value.ndim >= 2 else set()


def _is_called_once(subject: Subject, events: list[Event]) -> bool:
    """Say whether the uses are at different lines, or of different inputs: a loop over layers is no mistake."""
    lines = {subject.source(event.addresses[0]) for event in events}
    return len(lines) > 1 or len({event.sources[0] for event in events}) > 1


def _fused(subject: Subject) -> Mistake | None:
    """Find a third, or half, of a fused projection that no result depends on, while another is used twice."""
    for query, key, value in by_attention(subject):
        made = {projection(subject, one.sources) for one in (query, key, value)}
        start = next(iter(made))
        if len(made) > 1 or start is None:
            continue
        same = next(((a, b) for a, b in ((query, key), (key, value), (query, value)) if _equal(a.value, b.value)), None)
        width = subject.base.value(start).shape[-1]
        if same is None or width % 3:
            continue
        for part in range(3):
            moved = subject.moved(Change(results={start: others_at(-1, part * (width // 3), width // 3)}))
            if moved.comparable and not any(bool(mask.any()) for _, mask in moved.returned()):
                at = next((one for one in same[1].sources if isinstance(one, Address)), start)
                first = min(_chain(subject, at, start), key=lambda event: event.order, default=None)
                return _mistake(
                    f"{same[0].role} and {same[1].role} are the same third of the fused projection, and another is "
                    "not used",
                    first.addresses[0] if first is not None else at,
                    "changed each third of the projection",
                )
    return None


def _sliced(subject: Subject) -> Mistake | None:
    """Find two projections by one third of a parameter that holds three, another third of which is not used."""
    users: dict[str, list[tuple[Event, Tensor]]] = {}
    for event in subject.base.events:
        if event.name in PRODUCT and len(event.given) > 1:
            for place in (0, 1):
                for name in _sources_of_weights(subject, event.sources[place]):
                    users.setdefault(name, []).append((event, event.given[place]))
    for name, uses in users.items():
        rows = subject.base.state[name].shape[0]
        same = next(
            (b for n, (_, a) in enumerate(uses) for b, w in uses[n + 1 :] if _equal(a, w) and a.shape[0] * 3 == rows),
            None,
        )
        if same is None:
            continue
        for part in range(3):
            moved = subject.moved(Change(parameters={name: others_at(0, part * (rows // 3), rows // 3)}))
            if moved.comparable and not any(bool(mask.any()) for _, mask in moved.returned()):
                return _mistake(
                    f"one third of {name} projects twice, and another is not used",
                    same.addresses[0],
                    f"changed each third of {name}",
                )
    return None


def _sources_of_weights(subject: Subject, sources: tuple[Address | str, ...]) -> set[str]:
    return {name for source in sources[:1] for name in _parameters(subject, source)}


def _all_the_same(subject: Subject) -> Mistake | None:
    """Find queries, keys and values that one parameter projects, all three."""
    for operands_of_one in by_attention(subject):
        made = [projection(subject, one.sources) for one in operands_of_one]
        weights = [_weight(subject, one) for one in made if one is not None]
        first, last = weights[0] if weights else None, made[-1]
        if last is None or first is None or len(set(made)) < 3 or len(weights) < 3:
            continue
        if all(other is not None and _equal(first[1], other[1]) for other in weights):
            return _mistake(f"{first[0]} projects query, key and value alike", last, "nothing else projects them")
    return None


def _weight(subject: Subject, made: Address) -> tuple[str, Tensor] | None:
    """Return the parameter of a projection, and what of it is used."""
    event = subject.base.event(made)
    for place, sources in enumerate(event.sources):
        for name in _sources_of_weights(subject, sources):
            return name, event.given[place]
    return None


def _chain(subject: Subject, address: Address, start: Address) -> list[Event]:
    """Return the last call that chooses a part of the projection."""
    return [
        event
        for event in subject.flow.upstream((address,))
        if event.order > start.order and event.name in {"__getitem__", "chunk", "split", "unbind", "narrow", "select"}
    ][:1]


def _equal(a: Tensor, b: Tensor) -> bool:
    """Say whether two operands hold the same numbers, one of them transposed or not."""
    return any(a.shape == other.shape and bool((a == other).all()) for other in (b, b.mT))


def _mistake(message: str, at: Address, evidence: str) -> Mistake:
    return Mistake(
        code="AS805",
        message=message,
        at=at,
        hint="use each projection once: query, key, value and output have one each",
        evidence=evidence,
    )

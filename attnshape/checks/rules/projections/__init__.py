"""Is each projection used once, rather than one twice and another one never?"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from attnshape.checks.attention.operands import by_attention, projection
from attnshape.checks.attention.perturbation import others_at
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Intervention
from attnshape.checks.interventions.replay import OutputRef, ReplayedCall
from attnshape.checks.rules.protocol import Outcome, Verification, Violation
from attnshape.checks.rules.unused_inputs import has_no_effect
from attnshape.tracing.operations import PRODUCTS, RESHAPES, SELECTIONS, SPLITS, TRANSPOSES

CODES: tuple[str, ...] = ("AS805",)
TOPIC = "projections"
_OF_WEIGHTS = TRANSPOSES | SPLITS | SELECTIONS | RESHAPES


def check(subject: Subject) -> Iterator[Outcome]:
    """Look for a parameter that two products read while another is unused, also within fused projections."""
    users = _users(subject)
    unused = [
        name
        for name, value in subject.base.state.items()
        if value.ndim >= 2 and name not in users and not subject.graph.consumers.get(name)
    ]
    for name, events in users.items():
        shape = subject.base.state[name].shape
        twin = next((other for other in unused if subject.base.state[other].shape == shape), None)
        if len(events) > 1 and twin is not None and _is_called_once(subject, events):
            yield _violation(f"{name} is used twice, and {twin} never", events[1].refs[0], f"nothing reads {twin}")
            return
    for found in (_fused(subject), _sliced(subject), _all_the_same(subject)):
        if found is not None:
            yield found
            return
    if users:
        yield Verification("no projection is used in place of another")


def _users(subject: Subject) -> dict[str, list[ReplayedCall]]:
    """Return the products that read each parameter, as it is or through layout operations."""
    found: dict[str, list[ReplayedCall]] = {}
    for event in subject.base.events:
        if event.name not in PRODUCTS:
            continue
        for sources in event.sources:
            for name in _parameters(subject, sources[0]):
                found.setdefault(name, []).append(event)
    return found


def _parameters(subject: Subject, source: OutputRef | str) -> set[str]:
    while isinstance(source, OutputRef):
        event = subject.base.event(source)
        if event.name not in _OF_WEIGHTS or not event.sources:
            return set()
        source = event.sources[0][0]
    value = subject.base.state.get(source)
    return {source} if value is not None and value.ndim >= 2 else set()


def _is_called_once(subject: Subject, events: list[ReplayedCall]) -> bool:
    """Return whether the uses are on different lines or of different inputs: a loop over layers is not a mistake."""
    lines = {subject.source(event.refs[0]) for event in events}
    return len(lines) > 1 or len({event.sources[0] for event in events}) > 1


def _fused(subject: Subject) -> Violation | None:
    """Find a third of a fused projection that no result depends on, while another is used twice."""
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
            moved = subject.perturb(Intervention(results={start: others_at(-1, part * (width // 3), width // 3)}))
            if has_no_effect(moved):
                at = next((one for one in same[1].sources if isinstance(one, OutputRef)), start)
                first = next((one for one in subject.graph.upstream((at,)) if _takes_part(one, start)), None)
                return _violation(
                    f"{same[0].role} and {same[1].role} are the same third of the fused projection, and another third "
                    "is never used",
                    first.refs[0] if first is not None else at,
                    "changed each third of the projection",
                )
    return None


def _sliced(subject: Subject) -> Violation | None:
    """Find two projections by the same third of one fused parameter, while another third is unused."""
    users: dict[str, list[tuple[ReplayedCall, Tensor]]] = {}
    for event in subject.base.events:
        if event.name in PRODUCTS and len(event.given) > 1:
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
            moved = subject.perturb(Intervention(parameters={name: others_at(0, part * (rows // 3), rows // 3)}))
            if has_no_effect(moved):
                return _violation(
                    f"one third of {name} is used twice, and another never",
                    same.refs[0],
                    f"changed each third of {name}",
                )
    return None


def _sources_of_weights(subject: Subject, sources: tuple[OutputRef | str, ...]) -> set[str]:
    return {name for source in sources[:1] for name in _parameters(subject, source)}


def _all_the_same(subject: Subject) -> Violation | None:
    """Find one parameter that projects queries, keys and values alike."""
    for operands_of_one in by_attention(subject):
        made = [projection(subject, one.sources) for one in operands_of_one]
        weights = [_weight(subject, one) for one in made if one is not None]
        first, last = weights[0] if weights else None, made[-1]
        if last is None or first is None or len(set(made)) < 3 or len(weights) < 3:
            continue
        if all(other is not None and _equal(first[1], other[1]) for other in weights):
            return _violation(f"{first[0]} projects query, key and value alike", last, "found no other projection")
    return None


def _weight(subject: Subject, made: OutputRef) -> tuple[str, Tensor] | None:
    """Return the name of a projection's parameter, and the part of it that the projection uses."""
    event = subject.base.event(made)
    for place, sources in enumerate(event.sources):
        for name in _sources_of_weights(subject, sources):
            return name, event.given[place]
    return None


def _takes_part(event: ReplayedCall, start: OutputRef) -> bool:
    """Return whether a call after a projection takes a part of it."""
    parts = SELECTIONS | SPLITS
    return event.order > start.order and event.name in parts


def _equal(a: Tensor, b: Tensor) -> bool:
    """Return whether two operands are equal, possibly after a transpose."""
    return any(a.shape == other.shape and bool((a == other).all()) for other in (b, b.mT))


def _violation(message: str, at: OutputRef, evidence: str) -> Violation:
    return Violation(
        code="AS805",
        message=message,
        at=at,
        hint="use each projection once: one each for query, key, value and output",
        evidence=evidence,
    )

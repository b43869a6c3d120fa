"""Does attention use the cached keys and values that a call gets, and does the call return them with the new ones?"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from attnshape.checks.attention.operands import operands
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.replay import OutputRef
from attnshape.checks.rules.protocol import Outcome, Verification, Violation
from attnshape.tracing.operations import JOINS

CODES: tuple[str, ...] = ("AS804", "AS905")
TOPIC = "caches"


def check(subject: Subject) -> Iterator[Outcome]:
    """Follow each cached input into attention, and compare it with what the call returns."""
    past = subject.numbers.get("Lp", 0)
    cached = [name for name, value in subject.inputs.items() if past > 1 and past in value.shape and value.ndim >= 3]
    if not cached or not subject.attentions:
        return
    origins = {name for operand in operands(subject) for name in subject.graph.origins(operand.sources)}
    for name in cached:
        joined = _joined(subject, name)
        if joined is None:
            continue
        if name not in origins:
            message = f"attention doesn't use the cache {name}: it is only joined with what is new, and returned"
            hint = "attend with the joined keys and values"
            evidence = f"followed {name} through the calls"
            yield Violation("AS804", message, joined, hint, evidence, "measured")
            return
        elif (path := _returned_as_it_came(subject, name)) is not None:
            message = f"the call returns the cache {name} as it came, as {path}: the new tokens are missing from it"
            hint = "return what was joined: the cache and the new keys or values"
            evidence = f"compared {name} with the results"
            yield Violation("AS905", message, joined, hint, evidence, "measured")
            return
    yield Verification("attention uses the caches, and none is returned without the new tokens")


def _joined(subject: Subject, name: str) -> OutputRef | None:
    """Return the first call that joins a cache with something else."""
    joins = (event for event in subject.base.events if event.name in JOINS)
    return next((event.refs[0] for event in joins if name in subject.graph.origins(tuple(event.producers))), None)


def _returned_as_it_came(subject: Subject, name: str) -> str | None:
    value = subject.base.inputs[name]
    alike = (path for path, other in subject.base.returned if other.shape == value.shape and torch.equal(other, value))
    return next(alike, None)

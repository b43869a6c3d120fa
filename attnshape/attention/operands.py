"""Queries, keys and values as they go into the products of attention, and the projections that they come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from attnshape.attention.core import Core, FusedCore
from attnshape.attention.measured import MeasuredCore
from attnshape.attention.subject import Subject
from attnshape.inference.kinds import PRODUCT
from attnshape.replaying.bench import Run
from attnshape.replaying.replay import Address, Event, Source

Role = Literal["query", "key", "value"]


@dataclass(frozen=True)
class Operand:
    """A tensor as it goes into a product of attention."""

    role: Role
    core: Core | FusedCore
    event: Event
    place: int

    @property
    def value(self) -> Tensor:
        """What it held."""
        return self.event.given[self.place]

    @property
    def sources(self) -> tuple[Source, ...]:
        """What made it."""
        return self.event.sources[self.place]

    def of(self, run: Run) -> Tensor:
        """Return what it held in another run."""
        return run.events[self.event.order - 1].given[self.place]


def operands(subject: Subject) -> list[Operand]:
    """Return the queries, keys and values of every attention: three of each in turn."""
    return subject.once(_operands)


def by_attention(subject: Subject) -> list[tuple[Operand, Operand, Operand]]:
    """Return the query, key and value of every attention."""
    every = operands(subject)
    return list(zip(every[::3], every[1::3], every[2::3], strict=True))


_ROLES: tuple[Role, ...] = ("query", "key", "value")


def _operands(subject: Subject) -> list[Operand]:
    found: list[Operand] = []
    for measured in subject.measured:
        core = measured.core
        query, key = query_and_key(measured)
        found.append(Operand("query", core, core.scores.first, query))
        found.append(Operand("key", core, core.scores.first, key))
        found.append(Operand("value", core, core.value.first, core.values_place))
    for fused in subject.fused:
        for role in _ROLES:
            tensor = fused.event.keywords.get(role)
            if tensor is None:
                tensor = fused.event.args[_ROLES.index(role)]
            place = next(at for at, one in enumerate(fused.event.operands) if one is tensor)
            found.append(Operand(role, fused, fused.event, place))
    return found


def query_and_key(measured: MeasuredCore) -> tuple[int, int]:
    """Return which operand of the scores' product the queries are, and which the keys.

    The keys have the axis that the value product sums over.
    """
    core = measured.core
    left, right = core.scores.left, core.scores.right
    axes = {measured.of_scores(axis) for axis in core.key_axes}
    if axes & core.scores.free(left) and not axes & core.scores.free(right):
        return right, left
    return left, right


def projection(subject: Subject, sources: tuple[Source, ...]) -> Address | None:
    """Return the product with parameters that a tensor comes from, by what doesn't mix it with others."""
    data = subject.flow.depends_on_data
    for event in subject.flow.upstream(sources):
        if event.name in PRODUCT and len(event.given) >= 2 and event.addresses[0] in data:
            return Address(event.order)
    return None


def projections(subject: Subject, sources: tuple[Source, ...]) -> set[Address]:
    """Return every product with parameters that a tensor comes from: several, where it is joined."""
    found: set[Address] = set()
    wanted = {source for source in sources if isinstance(source, Address)}
    while wanted:
        address = max(wanted)
        wanted.discard(address)
        event = subject.base.event(address)
        if address not in subject.flow.depends_on_data:
            continue
        if event.name in PRODUCT and len(event.given) >= 2:
            found.add(Address(event.order))
        else:
            wanted |= {s for every in event.sources for s in every if isinstance(s, Address)}
    return found

"""Queries, keys and values as the products of attention read them, and the projections from which they come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from attnshape.checks.attention.cores import Core, FusedCore
from attnshape.checks.attention.elementwise import MeasuredCore
from attnshape.checks.attention.perturbation import others_at
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Intervention, ReplayRun
from attnshape.checks.interventions.replay import OutputRef, Producer, Replace, ReplayedCall
from attnshape.tracing.operations import PRODUCTS

OperandRole = Literal["query", "key", "value"]


@dataclass(frozen=True)
class AttentionOperand:
    """The queries, keys or values as a product of an attention reads them."""

    role: OperandRole
    core: Core | FusedCore
    event: ReplayedCall
    place: int

    @property
    def value(self) -> Tensor:
        """The tensor's value."""
        return self.event.given[self.place]

    @property
    def sources(self) -> tuple[Producer, ...]:
        """The tensor's producers."""
        return self.event.sources[self.place]

    def of(self, run: ReplayRun) -> Tensor:
        """Return the tensor's value in another run."""
        return run.events[self.event.order - 1].given[self.place]


def operands(subject: Subject) -> list[AttentionOperand]:
    """Return the queries, keys and values of every attention, one attention after the other."""
    return subject.cached(_operands)


def by_attention(subject: Subject) -> list[tuple[AttentionOperand, AttentionOperand, AttentionOperand]]:
    """Return the query, key and value of every attention."""
    every = operands(subject)
    return list(zip(every[::3], every[1::3], every[2::3], strict=True))


_ROLES: tuple[OperandRole, ...] = ("query", "key", "value")


def _operands(subject: Subject) -> list[AttentionOperand]:
    found: list[AttentionOperand] = []
    for measured in subject.measured:
        core = measured.core
        query, key = query_and_key(measured)
        found.append(AttentionOperand("query", core, core.scores.first, query))
        found.append(AttentionOperand("key", core, core.scores.first, key))
        found.append(AttentionOperand("value", core, core.value.first, core.values_place))
    for fused in subject.fused:
        for role in _ROLES:
            tensor = fused.event.keywords.get(role)
            if tensor is None:
                tensor = fused.event.args[_ROLES.index(role)]
            place = next(at for at, one in enumerate(fused.event.operands) if one is tensor)
            found.append(AttentionOperand(role, fused, fused.event, place))
    return found


def query_and_key(measured: MeasuredCore) -> tuple[int, int]:
    """Return the places of the queries and of the keys among the operands of the scores' product.

    The keys have the axis over which the value product sums.
    """
    core = measured.core
    left, right = core.scores.left, core.scores.right
    axes = {measured.axis_of_scores(axis) for axis in core.key_axes}
    if axes & core.scores.free(left) and not axes & core.scores.free(right):
        return right, left
    return left, right


def projection(subject: Subject, sources: tuple[Producer, ...]) -> OutputRef | None:
    """Return the last product with parameters from which a tensor comes."""
    data = subject.graph.depends_on_data
    for event in subject.graph.upstream(sources):
        if event.name in PRODUCTS and len(event.given) >= 2 and event.refs[0] in data:
            return OutputRef(event.order)
    return None


def projections(subject: Subject, sources: tuple[Producer, ...]) -> set[OutputRef]:
    """Return every product with parameters from which a tensor comes: several where their results are joined."""
    found: set[OutputRef] = set()
    wanted = {source for source in sources if isinstance(source, OutputRef)}
    while wanted:
        ref = max(wanted)
        wanted.discard(ref)
        event = subject.base.event(ref)
        if ref not in subject.graph.depends_on_data:
            continue
        if event.name in PRODUCTS and len(event.given) >= 2:
            found.add(OutputRef(event.order))
        else:
            wanted |= {s for every in event.sources for s in every if isinstance(s, OutputRef)}
    return found


@dataclass(frozen=True)
class HeadChange:
    """An intervention on one head, which leaves the rest of its tensor alone."""

    start: OutputRef | None
    """The projection; None if the head is part of an input."""
    results: Mapping[OutputRef, Replace] = field(default_factory=dict)
    inputs: Mapping[str, Replace] = field(default_factory=dict)
    one_feature: Intervention | None = None
    """The intervention on the head's first feature only."""


def head_change(subject: Subject, operand: AttentionOperand, head: int, heads: int) -> HeadChange | None:
    """Return the change of one head of an operand that has `heads` heads before any repeat, or None."""
    width = operand.value.shape[-1] if operand.role == "value" else _width(operand)
    made = projection(subject, operand.sources)
    if made is not None:
        offset = _offset(subject, operand, made, heads * width)
        if offset is None:
            return None
        begin = offset + head * width
        return HeadChange(
            made,
            results={made: others_at(-1, begin, width)},
            one_feature=Intervention(results={made: others_at(-1, begin)}),
        )
    names = sorted(subject.graph.origins(operand.sources) & set(subject.inputs))
    if len(names) != 1:
        return None
    value = subject.base.inputs[names[0]]
    axis = next((a for a, size in enumerate(value.shape[:-1]) if size == heads), None)
    if axis is None:
        return None
    return HeadChange(None, inputs={names[0]: others_at(axis, head)})


def _width(operand: AttentionOperand) -> int:
    if isinstance(operand.core, FusedCore):
        return operand.value.shape[-1]
    contracted = operand.core.scores.contracted(operand.place)
    return operand.value.shape[contracted[0]] if contracted else operand.value.shape[-1]


def _offset(subject: Subject, operand: AttentionOperand, made: OutputRef, needed: int) -> int | None:
    """Return at which feature of a projection, which may be shared, the heads of an operand begin."""
    total = subject.base.value(made).shape[-1]
    if total == needed:
        return 0
    own = [one for one in operands(subject) if one.core is operand.core and projection(subject, one.sources) == made]
    heads, shared = subject.numbers.get("H", 0), subject.numbers.get("Hkv", 0)
    width = _width(operand)
    sizes = {one.role: (heads if one.role == "query" else shared or heads) * width for one in own}
    if sum(sizes.values()) != total:
        return None
    offset = 0
    for role in ("query", "key", "value"):
        if role == operand.role:
            return offset
        offset += sizes.get(role, 0)
    return None

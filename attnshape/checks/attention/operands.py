"""Queries, keys and values as the products of attention read them, and the projections from which they come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from attnshape.checks.attention.cores import Core, FusedCore
from attnshape.checks.attention.elementwise import MeasuredCore
from attnshape.checks.attention.perturbation import others_at
from attnshape.checks.attention.subject import Subject, once
from attnshape.checks.interventions.experiment import Intervention, ReplayRun
from attnshape.checks.interventions.replay import OutputRef, Producer, Replace, ReplayedCall
from attnshape.tracing.operations import PRODUCTS, RESHAPES, SELECTIONS, SPLITS, TRANSPOSES

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
        return self.event.operand_values[self.place]

    @property
    def sources(self) -> tuple[Producer, ...]:
        """The tensor's producers."""
        return self.event.sources[self.place]

    @property
    def contracted(self) -> tuple[int, ...]:
        """The axes of queries or keys over which their product sums; one of size 1 if they have a single feature."""
        if isinstance(self.core, FusedCore):
            return (self.value.ndim - 1,)
        single = [axis for axis, size in enumerate(self.value.shape) if size == 1]
        return self.core.scores.contracted(self.place) or tuple(single[-1:])

    @property
    def width(self) -> int:
        """The number of features of one head: of values along the last axis, else those that the product sums over."""
        return self.value.shape[-1 if self.role == "value" else next(iter(self.contracted), -1)]

    def of(self, run: ReplayRun) -> Tensor:
        """Return the tensor's value in another run."""
        return run.events[self.event.order - 1].operand_values[self.place]


_MOST_ATTENTIONS = 4
_OF_WEIGHTS = TRANSPOSES | SPLITS | SELECTIONS | RESHAPES
AttentionOperands = tuple[AttentionOperand, AttentionOperand, AttentionOperand]
"""The query, key and value of one attention."""
_ROLES: tuple[OperandRole, ...] = ("query", "key", "value")


def by_attention(subject: Subject) -> list[AttentionOperands]:
    """Return the query, key and value of every attention."""
    every = operands(subject)
    return list(zip(every[::3], every[1::3], every[2::3], strict=True))


@once
def without_iterations(subject: Subject) -> list[AttentionOperands]:
    """Return the query, key and value of every attention, but of a loop's iterations only the first two and the last.

    The same line of the same module computes them, reached through the same calls, as in each step of a decoder.
    """
    by_place: dict[object, list[AttentionOperands]] = {}
    for own in by_attention(subject):
        context = own[0].core.context
        step, calls = subject.step(context), subject.base.event(context).calls
        place = (tuple((call.f_code, call.f_lasti) for call in calls), step.module if step is not None else None)
        by_place.setdefault(place, []).append(own)
    kept = {own[0].core.context for every in by_place.values() for own in (*every[:2], every[-1])}
    return [own for own in by_attention(subject) if own[0].core.context in kept]


def of_distinct_code(subject: Subject) -> list[AttentionOperands]:
    """Return the query, key and value of the first attentions that different lines compute."""
    distinct = {subject.source(own[0].core.context): own for own in reversed(by_attention(subject))}
    return list(distinct.values())[::-1][:_MOST_ATTENTIONS]


@once
def operands(subject: Subject) -> list[AttentionOperand]:
    """Return the queries, keys and values of every attention, one attention after the other."""
    result: list[AttentionOperand] = []
    for measured in subject.measured:
        result += operands_of(measured)
    for fused in subject.fused:
        for role in _ROLES:
            place = fused.place(role)
            assert place is not None
            result.append(AttentionOperand(role, fused, fused.event, place))
    return result


def operands_of(measured: MeasuredCore) -> AttentionOperands:
    """Return the query, key and value of an attention whose scores are visible."""
    core = measured.core
    query, key = query_and_key(measured)
    return (
        AttentionOperand("query", core, core.scores.first, query),
        AttentionOperand("key", core, core.scores.first, key),
        AttentionOperand("value", core, core.value.first, core.values_place),
    )


def query_and_key(measured: MeasuredCore) -> tuple[int, int]:
    """Return the places of the queries and of the keys among the operands of the scores' product.

    The keys have the axis over which the value product sums.
    """
    core = measured.core
    left, right = core.scores.left, core.scores.right
    axes = {measured.axis_of_scores(axis) for axis in core.key_axes}
    if axes == {None}:
        # sums over one axis after a softmax over another one mix the weights: the keys' axis is told by its size
        shape, same = core.scores.result.shape, core.weights.shape == core.scores.result.shape
        sizes = {core.weights.shape[axis] for axis in core.key_axes}
        axes = set(core.key_axes) if same else {axis for axis, size in enumerate(shape) if size in sizes}
    if axes & core.scores.free(left) and not axes & core.scores.free(right):
        return right, left
    return left, right


def has_lone_query(subject: Subject, core: Core | FusedCore) -> bool:
    """Return whether the rows of weights are those of heads that share their keys, and one query has no axis.

    A step of a loop may fold its only token into the batch, and leave grouped heads where queries usually are.
    """
    if isinstance(core, FusedCore):
        return False
    every = subject.numbers.get("H", 0)
    if core.shared_sizes & {every, every * subject.batch_size} - {0, 1}:
        return False  # each head has keys of its own, so that the rows are queries, though there may be as many
    heads = subject.head_sizes | {subject.numbers.get("G", 0)}
    free = core.value.free(core.weights_place)
    rows = {
        core.weights.shape[axis] for axis, stays in enumerate(core.value.axes[core.weights_place]) if stays & free
    } - {1}
    return bool(rows) and rows <= heads and core.shared_sizes <= heads | {subject.batch_size, 1}


def projection(subject: Subject, sources: tuple[Producer, ...]) -> OutputRef | None:
    """Return the last product with parameters from which a tensor comes, or of parameters if it is learned."""
    data = subject.graph.depends_on_data
    is_learned = not subject.graph.carries_data(sources)
    for event in subject.graph.upstream(sources):
        if _multiplies_two(event) and (is_learned or event.refs[0] in data):
            return OutputRef(event.order)
    return None


def _multiplies_two(event: ReplayedCall) -> bool:
    """Return whether a call multiplies two tensors; a tensor's product with itself gives the lengths of its vectors."""
    return event.name in PRODUCTS and len(event.operand_values) >= 2 and event.sources[0] != event.sources[1]


def projections(subject: Subject, sources: tuple[Producer, ...]) -> set[OutputRef]:
    """Return every product with parameters from which a tensor comes: several where their results are joined."""
    products: set[OutputRef] = set()
    wanted: set[Producer] = set(sources)
    while refs := subject.graph.depends_on_data & wanted:
        ref = max(refs)
        wanted.discard(ref)
        event = subject.base.event(ref)
        if _multiplies_two(event):
            products.add(OutputRef(event.order))
        else:
            wanted |= event.producers
    return products


def parameter_of(subject: Subject, sources: tuple[Producer, ...]) -> str | None:
    """Return the parameter with two axes or more that an operand is, perhaps after layout operations."""
    source = sources[0]
    while isinstance(source, OutputRef):
        event = subject.base.event(source)
        if event.name not in _OF_WEIGHTS or not event.sources:
            return None
        source = event.sources[0][0]
    value = subject.base.state.get(source)
    return source if value is not None and value.ndim >= 2 and value.numel() else None


def head_axis(operand: AttentionOperand, heads: int) -> int | None:
    """Return the axis of so many heads, which the other operand of the product has too; None without one.

    There may be as many keys as heads.
    """
    if isinstance(operand.core, FusedCore):
        return operand.value.ndim - 3 if operand.value.ndim > 2 and operand.value.shape[-3] == heads else None
    product = operand.core.value if operand.role == "value" else operand.core.scores
    axes = (axis for axis, stays in enumerate(product.axes[operand.place]) if stays & product.shared)
    return next((axis for axis in axes if operand.value.shape[axis] == heads), None)


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
    width, ref = operand.width, projection(subject, operand.sources)
    if ref is not None:
        offset = _offset(subject, operand, ref, heads * width)
        if offset is None:
            return None
        begin = offset + head * width
        one_feature = Intervention(results={ref: others_at(-1, begin)})
        return HeadChange(ref, results={ref: others_at(-1, begin, width)}, one_feature=one_feature)
    names = sorted(subject.graph.origins(operand.sources) & set(subject.inputs))
    if len(names) != 1:
        return None
    value = subject.base.inputs[names[0]]
    axis = next((axis for axis, size in enumerate(value.shape[:-1]) if size == heads), None)
    if axis is not None:
        return HeadChange(None, inputs={names[0]: others_at(axis, head)})
    if value.ndim < 2 or value.shape[-1] != heads * width:
        return None
    first = Intervention(inputs={names[0]: others_at(-1, head * width)})
    return HeadChange(None, inputs={names[0]: others_at(-1, head * width, width)}, one_feature=first)


def _offset(subject: Subject, operand: AttentionOperand, ref: OutputRef, needed: int) -> int | None:
    """Return at which feature of a projection, which may be shared, the heads of an operand begin."""
    total = subject.base.value(ref).shape[-1]
    if total == needed:
        return 0
    own = [other for other in operands(subject) if other.core is operand.core]
    heads, shared = subject.numbers.get("H", 0), subject.numbers.get("Hkv", 0)
    sizes = {
        other.role: (heads if other.role == "query" else shared or heads) * other.width
        for other in own
        if projection(subject, other.sources) == ref
    }
    before = _ROLES[: _ROLES.index(operand.role)]
    return sum(sizes.get(role, 0) for role in before) if sum(sizes.values()) == total else None

"""Changes of one head of the queries, keys or values, where they are projected or given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from attnshape.attention.core import FusedCore
from attnshape.attention.numbers import others_at
from attnshape.attention.operands import Operand, operands, projection
from attnshape.attention.subject import Subject
from attnshape.replaying.bench import Change
from attnshape.replaying.replay import Address, Replace


@dataclass(frozen=True)
class HeadChange:
    """What changes one head, and nothing else of its tensor."""

    start: Address | None
    """The projection; None where the head is given."""
    results: Mapping[Address, Replace] = field(default_factory=dict)
    inputs: Mapping[str, Replace] = field(default_factory=dict)
    one_feature: Change | None = None
    """What changes the head's first feature only."""


def head_change(subject: Subject, operand: Operand, head: int, heads: int) -> HeadChange | None:
    """Return the change of one head of an operand that has so many before any are repeated; None where it can't be."""
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
            one_feature=Change(results={made: others_at(-1, begin)}),
        )
    names = sorted(subject.flow.origins(operand.sources) & set(subject.inputs))
    if len(names) != 1:
        return None
    value = subject.base.inputs[names[0]]
    axis = next((a for a, size in enumerate(value.shape[:-1]) if size == heads), None)
    if axis is None:
        return None
    return HeadChange(None, inputs={names[0]: others_at(axis, head)})


def _width(operand: Operand) -> int:
    if isinstance(operand.core, FusedCore):
        return operand.value.shape[-1]
    contracted = operand.core.scores.contracted(operand.place)
    return operand.value.shape[contracted[0]] if contracted else operand.value.shape[-1]


def _offset(subject: Subject, operand: Operand, made: Address, needed: int) -> int | None:
    """Return where in a projection the heads of an operand begin: they may share it with others."""
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

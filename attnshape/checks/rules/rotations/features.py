"""Which features of queries and keys are rotated by positions, and in which layout."""

from __future__ import annotations

from collections.abc import Iterator

from attnshape.checks.attention.operands import AttentionOperand
from attnshape.checks.attention.perturbation import changed_indices
from attnshape.checks.attention.uniform import UniformRun
from attnshape.checks.interventions.replay import OutputRef
from attnshape.options.claims import Rope
from attnshape.tracing.operations import JOINS


def paired_features(same: UniformRun, operand: AttentionOperand) -> Iterator[tuple[Rope, tuple[int, int]]]:
    """Yield the layout of an operand's rotation with a pair of its features, if they tell the layout.

    Where only two features are rotated, and are adjacent, both layouts are the same.
    """
    pair = same.pair(operand)
    if pair is not None and pair[1] - pair[0] > 1:
        yield "half", pair
    elif pair is not None and len(rotated_features(same, operand)) > 2:
        yield "interleaved", pair


def certain_layout(same: UniformRun, operand: AttentionOperand) -> Rope | None:
    """Return the layout of an operand's rotation; None if its features don't tell it."""
    return next((layout for layout, _ in paired_features(same, operand)), None)


def rotated_features(same: UniformRun, operand: AttentionOperand) -> set[int]:
    """Return the features in which the same vector differs between new tokens."""
    rows = same.rows(operand)
    assert rows is not None
    new = rows[rows.shape[0] - same.new_rows(operand) :]
    return changed_indices((new - new[:1]).abs() > same.precision * float(new.abs().max()), -1)


def joined_after_rotation(same: UniformRun, query: AttentionOperand, key: AttentionOperand) -> OutputRef | None:
    """Return the last call that joins rotated features of keys with others; None if it is in a function of them alone.

    A function that rotates queries and keys each in a call of their own joins both alike.
    """
    first, other = (same.first_varying(operand) for operand in (key, query))
    if first is None or other is None:
        return None
    rotated, of_query = same.subject.graph.downstream_of(first), same.subject.base.event(other).calls
    joins = (event for event in same.subject.graph.upstream(key.sources) if event.name in JOINS)
    last = next((event for event in joins if event.refs[0] in rotated and event.calls), None)
    if last is None:
        return None
    callers = [(frame.f_code, of_query[place:]) for place, frame in enumerate(of_query, 1)]
    return last.refs[0] if (last.calls[0].f_code, last.calls[1:]) in callers else None

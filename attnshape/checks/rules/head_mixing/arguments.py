"""Looks for arguments with an axis of heads, such as cached keys, whose heads a layout operation mixes up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from attnshape.checks.attention.moved_heads import first_scattered, moving_path
from attnshape.checks.attention.operands import AttentionOperand, head_axis, without_iterations
from attnshape.checks.attention.perturbation import changed_indices, differs, others_at
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Intervention
from attnshape.checks.interventions.replay import ReplayedCall
from attnshape.checks.rules.protocol import Violation


@dataclass(frozen=True)
class _Moved:
    """Queries, keys or values to which calls move the numbers of an argument that has an axis of heads."""

    name: str
    axis: int
    operand: AttentionOperand
    heads: int
    """The size of the operand's axis of heads."""
    expected: Mapping[int, int]
    """How many heads one index of the argument's axis should change, for each number of heads there may be."""
    path: list[ReplayedCall]


def scattered_argument(subject: Subject) -> Violation | None:
    """Change one index of an argument's axis of heads: one head follows, or one group of heads."""
    found = list(_moved(subject))
    runs = {}
    for name, axis in {(one.name, one.axis) for one in found}:
        runs[name] = subject.experiment.run(Intervention(inputs={name: others_at(axis, 0)}))
    for one in found:
        run, most = runs[one.name], one.expected[one.heads]
        of_heads = head_axis(one.operand, one.heads)
        if of_heads is None or not run.follows(subject.base):
            continue
        changed = changed_indices(differs(one.operand.value, one.operand.of(run), 0), of_heads)
        if len(changed) <= most or not _is_read_whole(subject, one):
            continue
        at = first_scattered(subject.base, run, one.path, one.expected) or one.path[-1]
        of_argument, role = subject.base.inputs[one.name].shape[one.axis], one.operand.role
        message = (
            f"the heads of {one.name} are mixed up: one index of its axis of {of_argument} heads changes "
            f"{len(changed)} heads of the {'queries' if role == 'query' else f'{role}s'}, expected {most}"
        )
        hint = "move the axis with transpose or permute first; view and reshape move no axes"
        return Violation("AS603", message, at.refs[0], hint, f"changed {one.name} at index 0 of that axis")
    return None


def _is_read_whole(subject: Subject, one: _Moved) -> bool:
    """Return whether the last index of an argument's axis has an effect too.

    Code that reads only the first indices, such as cosines and sines stacked in one tensor, takes them for no heads.
    """
    last = subject.base.inputs[one.name].shape[one.axis] - 1
    run = subject.experiment.run(Intervention(inputs={one.name: others_at(one.axis, last)}))
    return run.follows(subject.base) and bool(differs(one.operand.value, one.operand.of(run), 0).any())


def _moved(subject: Subject) -> Iterator[_Moved]:
    for attention in without_iterations(subject):
        for operand in attention:
            for name in sorted(subject.graph.origins(operand.sources) & subject.base.inputs.keys()):
                yield from _from_argument(subject, operand, name)


def _from_argument(subject: Subject, operand: AttentionOperand, name: str) -> Iterator[_Moved]:
    value = subject.base.inputs[name]
    for symbol in ("H", "Hkv") if value.is_floating_point() else ():
        number = subject.numbers.get(symbol, 0)
        if number < 2 or not subject.is_distinct(symbol) or list(value.shape).count(number) != 1:
            continue
        axis = list(value.shape).index(number)
        if symbol in subject.experiment.numbers and axis not in subject.axes_that_vary(symbol, name, value):
            continue
        expected = _expected(subject, symbol)
        heads = next((size for size in expected if head_axis(operand, size) is not None), None)
        path = moving_path(subject.graph, name, operand.sources) if heads is not None else []
        if heads is not None and path:
            yield _Moved(name, axis, operand, heads, expected, path)


def _expected(subject: Subject, symbol: str) -> dict[int, int]:
    """Return how many heads one index of a symbol's axis should change, for each number of heads there may be."""
    heads, shared = subject.numbers["H"], subject.numbers.get("Hkv", 0)
    if shared < 2 or not subject.is_distinct("Hkv"):
        return {heads: 1}
    return {heads: heads // shared if symbol == "Hkv" else 1, shared: 1}

"""Do slices that a loop writes one after the other fill the tensor that the code made for them?

With the number of slices rounded down, the last slice, which is shorter, is never written and keeps its first values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from attnshape.checks.attention.perturbation import other_numbers
from attnshape.checks.attention.subject import Subject
from attnshape.checks.attention.written_contexts import written_elements
from attnshape.checks.interventions.experiment import Intervention
from attnshape.checks.interventions.replay import Producer, ReplayedCall
from attnshape.checks.interventions.small_sizes import symbol_or_number
from attnshape.checks.rules.protocol import Outcome, Violation
from attnshape.tracing import operations as ops

CODES: tuple[str, ...] = ("AS123",)
TOPIC = "slices that are written"
_OF_ASSIGNMENT = 3
"""The arguments of an assignment: the tensor, the index and the value."""


@dataclass(frozen=True)
class _Rest:
    """The last indices of a tensor, which no iteration of a loop writes."""

    writes: Sequence[ReplayedCall]
    axis: int
    count: int
    elements: Tensor
    """Which elements aren't written, in the tensor's shape."""

    @property
    def written(self) -> Tensor:
        """The tensor after the last write."""
        return self.writes[-1].values[0]


def check(subject: Subject) -> Iterator[Outcome]:
    """Look for tensors that a loop fills slice by slice, and whose last indices fill no whole slice."""
    for writes in _loops(subject):
        rest = _rest_of(writes)
        if rest is not None and _has_effect(subject, rest):
            yield _violation(subject, rest)
            return


def _loops(subject: Subject) -> Iterator[list[ReplayedCall]]:
    """Yield the calls of one line that write data to slices of a tensor that the code made, if no other line does."""
    data = subject.graph.depends_on_data
    made: set[Producer] = set()
    allocated: set[Producer] = set()
    chains: dict[Producer, list[ReplayedCall]] = {}
    for event in subject.base.events:
        before = event.sources[0][-1] if event.in_place and event.sources and event.sources[0] else None
        if event.name in ops.ALLOCATIONS:
            allocated.update(event.refs)  # what is left of it has a finding of its own, unless it is filled first
        elif _is_constructor(event) or (before in made | allocated and event.refs[0] not in data):
            made.update(event.refs)
        elif before is not None and (before in made or before in chains):
            chains[event.refs[0]] = [*chains.pop(before, []), event]
    for writes in chains.values():
        if (
            len(writes) > 1
            and all(map(_writes_slice, writes))
            and len({subject.place(one.refs[0]) for one in writes}) == 1
        ):
            yield writes


def _writes_slice(event: ReplayedCall) -> bool:
    """Return whether a call assigns a tensor to elements that no other tensor chooses."""
    if event.name not in ops.ELEMENT_WRITES or len(event.args) != _OF_ASSIGNMENT:
        return False
    return isinstance(event.args[2], Tensor) and len(event.operands) == 2


def _is_constructor(event: ReplayedCall) -> bool:
    is_new = not event.operands or event.name in ops.CREATED_LIKE
    return is_new and bool(event.values) and event.values[0].is_floating_point()


def _rest_of(writes: Sequence[ReplayedCall]) -> _Rest | None:
    """Return the last indices of an axis that aren't written, if they are fewer than each call writes."""
    shape = writes[0].values[0].shape
    covered = torch.zeros(shape, dtype=torch.bool)
    counts: list[tuple[int, ...]] = []
    for write in writes:
        ones = torch.ones(write.operand_values[1].shape, dtype=torch.float64)
        source = written_elements(write, 1, ones)
        if source is None or source.shape != shape:
            return None
        own = source > 0
        if bool((own & covered).any()):
            return None
        covered |= own
        counts.append(tuple(_indices(own, axis) for axis in range(len(shape))))
    for axis, size in enumerate(shape):
        done, step = _indices(covered, axis), counts[0][axis]
        first = covered.narrow(axis, 0, done)
        is_filled = bool(first.all()) and all(own == counts[0] for own in counts)
        if is_filled and 0 < size - done < step and step * len(writes) == done:
            return _Rest(writes, axis, size - done, ~covered)
    return None


def _indices(mask: Tensor, axis: int) -> int:
    """Return how many indices of an axis have a true element."""
    return int(mask.movedim(axis, 0).flatten(1).any(1).sum())


def _has_effect(subject: Subject, rest: _Rest) -> bool:
    """Return whether a result depends on what isn't written; padding that is cut off again has no effect."""
    ref = rest.writes[-1].refs[0]
    contexts = subject.graph.downstream(core.context for core in subject.attentions)
    is_returned = any(
        value.shape == rest.written.shape and torch.equal(value, rest.written) for _, value in subject.base.returned
    )
    if is_returned and ref not in contexts:
        return False  # a cache that is returned has room for more
    moved = subject.perturb(Intervention(results={ref: partial(_with_others, rest.elements)}))
    return moved.comparable and any(bool(mask.any()) for _, mask in moved.returned())


def _with_others(where: Tensor, value: Tensor) -> Tensor:
    return torch.where(where, other_numbers(value), value)


def _violation(subject: Subject, rest: _Rest) -> Violation:
    size, each = rest.written.shape[rest.axis], (rest.written.shape[rest.axis] - rest.count) // len(rest.writes)
    symbol = symbol_or_number(size, subject.numbers)
    of = f"{symbol} = {size}" if symbol != str(size) else symbol
    last = "the last index" if rest.count == 1 else f"each of the last {rest.count} indices"
    message = f"{last} of axis {rest.axis} ({of}) is never written: {len(rest.writes)} iterations write {each} each"
    hint = "round the number of slices up: range(0, n, size), or math.ceil(n / size)"
    evidence = "changed what isn't written, and results changed"
    return Violation("AS123", message, rest.writes[0].refs[0], hint, evidence)

"""Does a batch element's result depend on its place in the batch, such as by a table that the batch's size cuts?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attnshape.checks.attention.definitions import constant_definition
from attnshape.checks.attention.permutation import cycle, element_axes, is_reordered, reorder, reordered
from attnshape.checks.attention.perturbation import differs
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Intervention, ReplayRun
from attnshape.checks.interventions.replay import OutputRef, Producer, Replace, ReplayedCall
from attnshape.checks.rules.batch.arguments import BatchArguments
from attnshape.checks.rules.protocol import Violation
from attnshape.inference.dataflow import reads_numbers
from attnshape.model.formatting import join_words
from attnshape.tracing import operations as ops
from attnshape.tracing.raw import SourceLocation

_MOST_TABLES = 16
"""How many tables are reordered at most, such as one in each layer."""
_POINTWISE = (
    ops.ADDITIONS | ops.SUBTRACTIONS | ops.REVERSED_SUBTRACTIONS | ops.MULTIPLICATIONS | ops.DIVISIONS
) | ops.REVERSED_DIVISIONS


@dataclass(frozen=True)
class _Table:
    """A tensor that no argument determines, and that has numbers of its own for each element of the batch."""

    event: ReplayedCall
    """The call in which it meets the data."""
    operand: int
    axis: int
    inner: int
    """How many indices of the axis each element has inside."""

    @property
    def value(self) -> Tensor:
        """Its numbers."""
        return self.event.operand_values[self.operand]

    @property
    def sources(self) -> tuple[Producer, ...]:
        """Its producer, and the calls that have written to it since."""
        return self.event.sources[self.operand]


def place_dependence(arguments: BatchArguments) -> Violation | None:
    """Return the violation for tables by which results depend on the place in the batch, if that is certain.

    With the batch of all arguments in another order, the results aren't in that order. They are once the tables are
    put into that order too.
    """
    subject, order = arguments.subject, cycle(arguments.number)
    if not _is_decidable(arguments):
        return None
    inputs = {name: reorder(axis, order) for name, axis in arguments.axes.items()}
    parameters = arguments.state(order)
    results: dict[OutputRef, Replace] = {}
    first: _Table | None = None
    for _ in range(_MOST_TABLES):
        run = subject.experiment.run(Intervention(inputs=inputs, parameters=parameters, results=results))
        if not run.follows(subject.base):
            return None
        if _results_follow(arguments, run, order):
            return _violation(arguments, first) if first is not None and not _is_drawn(subject, first) else None
        table = _first_table(arguments, run, order)
        if table is None:
            return None
        change, source = reorder(table.axis, order, table.inner), table.sources[-1]
        if source in results or source in parameters or _shape_of(subject, source) != table.value.shape:
            return None
        if isinstance(source, str):
            parameters[source] = change
        else:
            results[source] = change
        first = first or table
    return None


def _shape_of(subject: Subject, source: Producer) -> torch.Size | None:
    """Return the shape of a call's result, a parameter or a buffer; None of another constant, which has no name."""
    if isinstance(source, OutputRef):
        return subject.base.value(source).shape
    return subject.base.state[source].shape if source in subject.base.state else None


def _is_decidable(arguments: BatchArguments) -> bool:
    """Return whether it is certain which axis is the batch's, and that what belongs to its elements is reordered."""
    subject = arguments.subject
    is_named = arguments.symbol == "B" or subject.claims.seq_first
    is_reordered_whole = not (arguments.looked_up or arguments.folding or subject.unvaried)
    if not (is_named and is_reordered_whole and arguments.axes and subject.is_distinct(arguments.symbol)):
        return False
    given = subject.experiment.observe(lambda runnable, state: list(runnable.bound().values()))
    return not any(_lists_elements(value, arguments.number) for value in given)


def _lists_elements(value: object, number: int) -> bool:
    """Return whether an argument is, or contains, a list with an item for each element of the batch."""
    if isinstance(value, (str, bytes, Tensor, nn.Module)) or not hasattr(value, "__len__"):
        return False
    items = list(value.values()) if isinstance(value, Mapping) else value
    nested = isinstance(items, (list, tuple)) and any(_lists_elements(item, number) for item in items)
    return len(value) == number or nested


def _results_follow(arguments: BatchArguments, run: ReplayRun, order: list[int]) -> bool:
    after = dict(run.returned)
    return all(
        path in after and arguments.follows(value, after[path], order) is not False
        for path, value in arguments.subject.base.returned
        if value.is_floating_point() or value.is_complex()
    )


def _first_table(arguments: BatchArguments, run: ReplayRun, order: list[int]) -> _Table | None:
    """Return the table in the first call whose result isn't reordered although what it reads of the data is."""
    subject = arguments.subject
    data = subject.graph.downstream(arguments.axes)
    for event, other in zip(subject.base.events, run.events, strict=False):
        computes = reads_numbers(event) and not event.unread and bool(event.values) and event.refs[0] in data
        # indices into a folded axis grow with the element
        if not computes or not (event.values[0].is_floating_point() or event.values[0].is_complex()):
            continue
        if arguments.follows(event.values[0], other.values[0], order) is False:
            return next(_tables(arguments, event, other, order), None)
    return None


def _tables(arguments: BatchArguments, event: ReplayedCall, other: ReplayedCall, order: list[int]) -> Iterator[_Table]:
    """Yield the tables among the operands of a call whose other operands follow the order."""
    subject = arguments.subject
    data = {*subject.graph.downstream(arguments.axes), *arguments.axes}
    readings: list[tuple[int, int, int]] = []
    constants: list[int] = []
    for place, (value, after) in enumerate(zip(event.operand_values, other.operand_values, strict=False)):
        if data.isdisjoint(event.sources[place]):
            constants.append(place)
            continue
        folds = list(element_axes(tuple(value.shape), arguments.symbol, subject.numbers))
        followed = [fold for fold in folds if is_reordered(value, after, order, [fold], subject.experiment.tolerance)]
        if folds and not followed:
            return
        # counted from the end, as axes are aligned when they broadcast
        readings += [(axis - value.ndim, inner, value.shape[axis]) for axis, inner in followed]
    for place in constants:
        value = event.operand_values[place]
        if not torch.equal(value, other.operand_values[place]) or not _is_table(arguments, event, place):
            continue
        for axis, inner, size in readings:
            aligned = axis + value.ndim if event.name in _POINTWISE else _own_axis(value, size)
            if 0 <= aligned < value.ndim and value.shape[aligned] == size and _differ(value, aligned, order, inner):
                yield _Table(event, place, aligned, inner)


def _own_axis(value: Tensor, size: int) -> int:
    return list(value.shape).index(size) if size in value.shape else -1


def _differ(value: Tensor, axis: int, order: list[int], inner: int) -> bool:
    """Return whether no two elements have the same numbers; halves of a batch may be treated differently by intent."""
    number = len(order)
    shape = (*value.shape[:axis], -1, number, inner, *value.shape[axis + 1 :])
    parts = value.reshape(shape).movedim(axis + 1, 0).reshape(number, -1)
    moved = differs(value, reordered(value, axis, order, inner), 0.0)
    return bool(moved.any()) and len(torch.unique(parts, dim=0)) == number


def _is_table(arguments: BatchArguments, event: ReplayedCall, place: int) -> bool:
    """Return whether an operand is computed from parameters, or cut from a table or counted where it is added.

    What an argument, a generator of random numbers or Python's numbers determine may belong to the elements by intent,
    and so may a buffer with an entry for each of them, or one that is a cache.
    """
    subject, sources = arguments.subject, event.sources[place]
    origins = subject.graph.origins(sources)
    calls = list(subject.graph.upstream(sources))
    if not origins.isdisjoint(subject.base.inputs) or any(map(_is_given, calls)):
        return False
    of_elements = [call for call in calls if call.name in ops.JOINS and len(call.operands) >= arguments.number]
    writes = [call for call in calls if call.name in ops.FILLS]
    if of_elements or len(writes) >= arguments.number:
        return False
    if origins and origins <= subject.experiment.parameters and not writes:
        return True
    read = [(event.sources[place], event.operand_values[place])]
    read += [pair for call in calls for pair in zip(call.sources, call.operand_values, strict=True)]
    held = [value for producers, value in read if producers[0] in origins - subject.experiment.parameters]
    written = any(call.in_place and isinstance(producer, str) for call in calls for producer in call.producers)
    return event.name in _POINTWISE and not written and not any(arguments.number in value.shape for value in held)


def _is_given(call: ReplayedCall) -> bool:
    """Return whether a call draws random numbers, or takes several from Python."""
    several = call.name in ops.FROM_PYTHON and call.numel > 1
    return several or call.name in ops.DRAWS or call.keywords.get("generator") is not None


def _is_drawn(subject: Subject, table: _Table) -> bool:
    """Return whether a table depends on the seed of the call."""
    run = subject.experiment.run(Intervention(seed=1))
    if not run.follows(subject.base):
        return True
    return not torch.equal(run.events[table.event.order - 1].operand_values[table.operand], table.value)


def _violation(arguments: BatchArguments, table: _Table) -> Violation:
    subject, at = arguments.subject, table.event.refs[0]
    names = subject.graph.origins(table.sources) - {"constant"}
    what = f"another part of {next(iter(names))}" if len(names) == 1 else "other numbers"
    message = f"a batch element's result depends on its place in the batch: at each place it meets {what}"
    hint = "take positions along the axis of tokens, and let the table broadcast over the batch"
    evidence = (
        f"put the batch of {join_words(list(arguments.axes))} into another order: the results have this order only if"
        " the table has it too"
    )
    made, place = _cut(arguments, table), subject.place(at)
    same_line = made is not None and place is not None and (made.file, made.line) == (place.file, place.line)
    return Violation("AS118", message, at, hint, evidence, made=None if same_line else made)


def _cut(arguments: BatchArguments, table: _Table) -> SourceLocation | None:
    """Return where the table first has an axis of the batch: where it is cut or computed, or where it is assigned."""
    subject, size = arguments.subject, table.value.shape[table.axis]
    calls = [call for call in subject.graph.upstream(table.sources) if size in call.values[0].shape]
    first = calls[-1] if calls else table.event
    read = zip(first.sources, first.operand_values, strict=True)
    whole = any(sources[0] in subject.base.state and size in value.shape for sources, value in read)
    assigned = constant_definition(subject, first.refs[0]) if whole else None
    return assigned or subject.place(first.refs[0])

"""Does each token get its own row of a table of positions, whose features have frequencies of their own?

With `table[length]` in place of `table[:length]`, all tokens get one and the same row, that of the length.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Experiment, Intervention
from attnshape.checks.interventions.replay import OutputRef, Producer, Replace, ReplayedCall
from attnshape.checks.interventions.small_sizes import LENGTHS
from attnshape.checks.rules.position_tables.frequencies import equal_frequencies
from attnshape.checks.rules.protocol import Outcome, Violation
from attnshape.tracing import operations as ops

CODES: tuple[str, ...] = ("AS716", "AS719")
TOPIC = "tables of positions"
_MOST_BEYOND = 2
"""How far the number of the row may be from the length, as where a table has a row for a first token."""


@dataclass(frozen=True)
class _OneRow:
    """A call that selects one row of a table, and the call that adds it to tokens."""

    selection: ReplayedCall
    table: Producer
    axis: int
    """The table's axis of rows."""
    sum: ReplayedCall

    def row(self, experiment: Experiment) -> int | None:
        """Return the number of the row that is selected; None if it isn't one row."""
        change: Replace = self._numbered
        if isinstance(self.table, OutputRef):
            run = experiment.run(Intervention(results={self.table: change}))
        else:
            run = experiment.run(Intervention(parameters={self.table: change}))
        if not run.follows(experiment.base) or self.selection.order > len(run.events):
            return None
        found = run.events[self.selection.order - 1].values[0].flatten()
        return int(found[0]) if bool((found == found[0]).all()) else None

    def _numbered(self, table: Tensor) -> Tensor:
        shape = [size if axis == self.axis else 1 for axis, size in enumerate(table.shape)]
        return torch.arange(table.shape[self.axis]).to(table.dtype).reshape(shape).expand(table.shape).clone()


def check(subject: Subject) -> Iterator[Outcome]:
    """Compare the frequencies of sines, and number the rows of tables of which one is added to all tokens."""
    yield from equal_frequencies(subject)
    for one in _single_rows(subject):
        row = one.row(subject.experiment)
        near = [symbol for symbol in _lengths_of(subject, one) if _is_near(row, subject.numbers[symbol])]
        other = _other_lengths(subject) if near else None
        elsewhere = subject.experiment.at(other) if other is not None else None
        if elsewhere is None or other is None or row is None or not elsewhere.base.follows(subject.base):
            continue
        again = one.row(elsewhere)
        for symbol in near:
            before, after = subject.numbers[symbol], other.get(symbol, 0)
            if again is not None and before != after and row - before == again - after:
                yield _violation(one, symbol, (row, before), (again, after))
                return


def _is_near(row: int | None, length: int) -> bool:
    return row is not None and abs(row - length) <= _MOST_BEYOND


def _other_lengths(subject: Subject) -> Mapping[str, int] | None:
    """Return sizes with other lengths; None if there are none. The target may fail at them."""
    target, numbers = subject.experiment.target, subject.experiment.numbers
    lengths = [symbol for symbol in target.sizes.independent if symbol in LENGTHS]
    if subject.other is not None or not lengths or not target.resizable:
        return subject.other
    chosen = {symbol: numbers[symbol] for symbol in target.sizes.independent}
    return target.sizes.at({**chosen, **{symbol: numbers[symbol] + 2 for symbol in lengths}})


def _violation(one: _OneRow, symbol: str, here: tuple[int, int], there: tuple[int, int]) -> Violation:
    table = one.table if isinstance(one.table, str) else "a table"
    rows = " and ".join(f"row {row} where {symbol} is {length}" for row, length in (here, there))
    message = f"all tokens get the same row of {table}, which the length chooses: {rows}"
    hint = "slice the table up to the length: table[:, : x.size(1)] instead of table[:, x.size(1)]"
    return Violation("AS716", message, one.selection.refs[0], hint, "replaced the rows of the table by their numbers")


def _single_rows(subject: Subject) -> Iterator[_OneRow]:
    """Yield the calls that select one row of a table that depends on no input, and whose result is added to data."""
    data = subject.graph.depends_on_data
    for event in subject.base.events:
        if (
            event.name not in ops.SELECTIONS
            or not event.operands
            or event.refs[0] in data
            or len(event.sources[0]) != 1
        ):
            continue
        table, shape, chosen = event.sources[0][0], event.operand_values[0].shape, event.values[0]
        is_fixed = isinstance(table, OutputRef) or table in subject.base.state
        axes = [axis for axis, size in enumerate(shape) if size > 2 and chosen.numel() * size == math.prod(shape)]
        if not is_fixed or len(axes) != 1 or chosen.numel() < 2 or not chosen.is_floating_point():
            continue
        if len(subject.graph.consumers.get(table, [])) == 1 and (total := _sum(subject, event)) is not None:
            yield _OneRow(event, table, axes[0], total)


def _sum(subject: Subject, selection: ReplayedCall) -> ReplayedCall | None:
    """Return the addition to data that reads what is selected, after calls that only move it."""
    reached: set[Producer] = set(selection.refs)
    for event in subject.base.events[selection.order :]:
        if reached.isdisjoint(event.producers):
            continue
        if event.name in ops.ADDITIONS and event.refs[0] in subject.graph.depends_on_data:
            return event
        if event.name not in ops.SAME_VALUES | ops.SCALINGS:
            return None
        reached.update(event.refs)
    return None


def _lengths_of(subject: Subject, one: _OneRow) -> Iterator[str]:
    """Yield the lengths whose axis in the sum the row doesn't have: all indices along it get the same."""
    places = [place for place, sources in enumerate(one.sum.sources) if not subject.graph.carries_data(sources)]
    if len(places) != 1:
        return
    row, total = one.sum.operand_values[places[0]].shape, one.sum.values[0].shape
    aligned = (1,) * (len(total) - len(row)) + tuple(row)
    for symbol in subject.lengths:
        if any(size == subject.numbers[symbol] and own == 1 for size, own in zip(total, aligned, strict=True)):
            yield symbol

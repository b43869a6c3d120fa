"""What every table format draws, as pure data: the rows with their cells' text, and the lines around them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal

from attnshape.model import Failure, Step, Trace
from attnshape.render.columns import DEFAULT, NUMBER, Column, Place
from attnshape.render.explain import explain
from attnshape.render.expression import label, one_line, short
from attnshape.render.groups import headings
from attnshape.render.reference import operation
from attnshape.render.select import select, up_to_depth
from attnshape.render.summary import Header, Remark, footer, header
from attnshape.render.text import visible


@dataclass(frozen=True)
class Choice:
    """What to show of a trace."""

    columns: tuple[Column, ...] = DEFAULT
    match: str | None = None
    depth: int | None = None
    """How deep inside composites steps are shown; all where none is given."""
    explain: bool = False


@dataclass(frozen=True)
class Row:
    """One line of the table: its cells, the number first."""

    cells: tuple[str, ...]
    kind: Literal["input", "step", "output", "failure"]
    heading: str | None = None
    """The heading that stands above it."""
    sentence: tuple[str, str] | None = None
    """A step's number and the sentence that explains it, at the step's last row."""


@dataclass(frozen=True)
class View:
    """A table, ready to be drawn."""

    header: Header
    columns: tuple[Column, ...]
    """All but the first, which has the steps' numbers."""
    rows: tuple[Row, ...]
    footer: tuple[Remark, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The columns' names, that of the numbers first."""
        return (NUMBER, *(column.name for column in self.columns))


def view(trace: Trace, choice: Choice) -> View:
    """Return the rows of the chosen steps, and what stands above and below them.

    Raises AttnshapeError where `choice.match` names what this trace doesn't have.
    """
    steps = up_to_depth(trace, select(trace, choice.match), choice.depth)
    whole = choice.match is None
    shown = {step.index for step in steps}
    parts = headings(trace) if len(shown) == len(trace.steps) else {}
    rows: list[Row] = []
    if whole:
        for tensor in trace.inputs:
            place = Place(trace, visible(tensor.name or "an input"), tensor=tensor.tensor, given=True)
            rows.append(Row(_cells("", choice, place), "input"))
    for step in steps:
        rows += _rows(trace, step, choice, shown, parts.get(step.index))
    if trace.failure and (whole or not steps):
        rows.append(_failed(trace.failure, choice))
    return View(header(trace), choice.columns, tuple(rows), footer(trace, len(steps)))


def _rows(trace: Trace, step: Step, choice: Choice, shown: Collection[int], heading: str | None) -> list[Row]:
    only = step.outputs[0].tensor if len(step.outputs) == 1 else None
    place = Place(trace, label(trace, step, shown), step, only)
    rows = [Row(_cells(str(step.index), choice, place), "step", heading)]
    if only is None:
        for number, output in enumerate(step.outputs):
            part = Place(trace, visible(output.name or f"[{number}]"), tensor=output.tensor)
            rows.append(Row(_cells("", choice, part), "output"))
    if choice.explain:
        rows[-1] = replace(rows[-1], sentence=(str(step.index), explain(trace, step)))
    return rows


def _failed(failure: Failure, choice: Choice) -> Row:
    # The step that failed has no place in the trace: its text is shown where a step's would be.
    text = failure.expression or failure.operation or "an operation that can't be seen"
    source = f"{failure.source.file}:{failure.source.line}" if failure.source else ""
    texts = {"step": short(text), "expression": one_line(text), "source": source}
    texts["op"] = operation(failure.operation) if failure.operation else ""
    return Row(("✗", *(visible(texts.get(column.name, "")) for column in choice.columns)), "failure")


def _cells(number: str, choice: Choice, place: Place) -> tuple[str, ...]:
    return (number, *(column.text(place) for column in choice.columns))

"""What every format draws of a difference, as pure data: the rows with their cells, and the lines around them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from attnshape.comparing.difference import Difference, StepChange
from attnshape.comparing.outline import INPUT, OutlineStep, Tensor
from attnshape.render.columns import NUMBER
from attnshape.render.diff_cells import COLUMNS, DTYPE, STEP_LEAST, Column, label, output_name
from attnshape.render.diff_summary import Header, footer, header
from attnshape.render.numbers import count
from attnshape.render.summary import Remark

Kind = Literal["changed", "added", "removed", "same", "folded"]


@dataclass(frozen=True)
class Cell:
    """A cell's text, and the one in its place on the old side where that is another."""

    text: str
    old: str | None = None


@dataclass(frozen=True)
class Row:
    """One line of the table: the steps' numbers, then its cells."""

    number: str
    cells: tuple[Cell, ...]
    kind: Kind


@dataclass(frozen=True)
class View:
    """A table of what differs, ready to be drawn."""

    header: Header
    names: tuple[str, ...]
    """The columns' names, that of the numbers first."""
    codes: tuple[bool, ...]
    """For each column but the first whether its cells are code."""
    leasts: tuple[int | None, ...]
    """For each column but the first its cells' least width, where they may be folded."""
    rows: tuple[Row, ...]
    footer: tuple[Remark, ...]


def view(difference: Difference, command: str = "") -> View:
    """Return the rows of what differs, with what doesn't folded, and what stands above and below them."""
    retyped = any("dtype" in output.changed for change in _all(difference) for output in change.outputs)
    columns = (*COLUMNS, DTYPE) if retyped else COLUMNS
    rows = _Rows(difference, columns)
    shown = any(row.kind != "folded" for row in rows.made)
    return View(
        header(difference, command),
        (NUMBER, "step", *(column.name for column in columns)),
        (True, *(column.code for column in columns)),
        (STEP_LEAST, *(column.least for column in columns)),
        tuple(rows.made) if shown else (),
        footer(difference),
    )


def _all(difference: Difference) -> tuple[StepChange, ...]:
    return (*difference.inputs, *difference.steps)


class _Rows:
    """The rows of one difference."""

    def __init__(self, difference: Difference, columns: Sequence[Column]) -> None:
        self._difference = difference
        self._columns = columns
        self._old = _side([change.old for change in difference.steps])
        self._new = _side([change.new for change in difference.steps])
        self._above: dict[str, OutlineStep | None] = {"old": None, "new": None}

    @cached_property
    def made(self) -> list[Row]:
        """All rows in order."""
        return [*self._folded(self._difference.inputs, "input"), *self._folded(self._difference.steps, "step")]

    def _folded(self, changes: Sequence[StepChange], noun: str) -> Iterator[Row]:
        """Return the rows of what differs, and one for each stretch of what doesn't."""
        around = self._around(changes)
        unchanged = 0
        for change in changes:
            if self._inside_alike(change):
                continue
            if not change.shown and id(change) not in around:
                unchanged += 1
                continue
            yield from self._fold(unchanged, noun)
            unchanged = 0
            yield from self._of(change)
        yield from self._fold(unchanged, noun)

    def _fold(self, unchanged: int, noun: str) -> Iterator[Row]:
        if unchanged:
            self._above = {"old": None, "new": None}
            yield Row("", (Cell(count(unchanged, f"unchanged {noun}")), *[Cell("")] * len(self._columns)), "folded")

    def _around(self, changes: Sequence[StepChange]) -> set[int]:
        """Return the composites, by identity, around something that differs."""
        by_number = {change.new.index: change for change in changes if change.new is not None}
        by_old = {change.old.index: change for change in changes if change.old is not None}
        found: set[int] = set()
        for change in changes:
            if change.shown and not self._inside_alike(change):
                one, numbers = (change.new, by_number) if change.new is not None else (change.old, by_old)
                while one is not None and one.parent in numbers and id(numbers[one.parent]) not in found:
                    around = numbers[one.parent]
                    found.add(id(around))
                    one = around.new if numbers is by_number else around.old
        return found

    def _inside_alike(self, change: StepChange) -> bool:
        """Say whether a step came or went with the composite around it, which tells of it."""
        one, side, other = (
            (change.old, self._old, self._kept_old) if change.new is None else (change.new, self._new, self._kept_new)
        )
        if one is None or (change.old is not None and change.new is not None) or one.parent is None:
            return False
        return one.parent in side and one.parent not in other

    @cached_property
    def _kept_old(self) -> set[int]:
        return {one.old.index for one in self._difference.steps if one.old is not None and one.new is not None}

    @cached_property
    def _kept_new(self) -> set[int]:
        return {one.new.index for one in self._difference.steps if one.old is not None and one.new is not None}

    def _of(self, change: StepChange) -> Iterator[Row]:
        if change.old is not None and change.new is not None:
            yield from self._changed(change, change.old, change.new)
        elif change.new is not None:
            yield from self._whole(change.new, "+", "added")
        elif change.old is not None:
            yield from self._whole(change.old, "-", "removed")
        self._above = {"old": change.old, "new": change.new}

    def _changed(self, change: StepChange, old: OutlineStep, new: OutlineStep) -> Iterator[Row]:
        rewritten = {"operation", "expression", "numbers", "uses", "operands", "turns", "outputs"} & set(change.changed)
        kind: Kind = "changed" if change.shown else "same"
        text = label(new, self._depth(new, self._new), self._above["new"])
        before = label(old, self._depth(old, self._old), self._above["old"]) if rewritten else text
        step = Cell(text, before if before != text else None)
        number = _number(old.index, new.index)
        if len(old.outputs) == len(new.outputs) == 1:
            yield Row(number, (step, *self._pair(change, 0)), kind)
            return
        yield Row(number, (step, *[Cell("")] * len(self._columns)), kind)
        for place, output in enumerate(change.outputs):
            if output.old is not None and output.new is not None and output.changed:
                yield Row("", (Cell(output_name(output.new, place)), *self._pair(change, place)), "changed")
            elif output.old is None and output.new is not None:
                yield self._one(output.new, place, "+", "added")
            elif output.new is None and output.old is not None:
                yield self._one(output.old, place, "-", "removed")

    def _pair(self, change: StepChange, place: int) -> Iterator[Cell]:
        output = change.outputs[place]
        if output.old is None or output.new is None:
            return
        for column in self._columns:
            text, old = column.text(output.new, self._steps_new), column.text(output.old, self._steps_old)
            differs = bool(column.facts & set(output.changed)) and old != text
            yield Cell(text, old if differs else None)

    def _whole(self, step: OutlineStep, sign: str, kind: Kind) -> Iterator[Row]:
        side = self._new if kind == "added" else self._old
        number = f"{sign}{step.index}" if step.operation != INPUT else sign
        above = self._above["new" if kind == "added" else "old"]
        text = Cell(label(step, self._depth(step, side), above))
        if len(step.outputs) == 1:
            yield Row(number, (text, *self._cells(step.outputs[0], kind)), kind)
        else:
            yield Row(number, (text, *[Cell("")] * len(self._columns)), kind)
            for place, tensor in enumerate(step.outputs):
                yield self._one(tensor, place, sign, kind)
        inside = sum(_lies_in(one, step.index, side) for one in side.values()) if step.index else 0
        if inside:
            words = f"{'↳ ' * (1 + self._depth(step, side))}{count(inside, 'step')} inside of it"
            yield Row(sign, (Cell(words), *[Cell("")] * len(self._columns)), kind)

    def _one(self, tensor: Tensor, place: int, sign: str, kind: Kind) -> Row:
        return Row(sign, (Cell(output_name(tensor, place)), *self._cells(tensor, kind)), kind)

    def _cells(self, tensor: Tensor, kind: Kind) -> Iterator[Cell]:
        steps = self._steps_new if kind == "added" else self._steps_old
        return (Cell(column.text(tensor, steps)) for column in self._columns)

    @cached_property
    def _steps_old(self) -> tuple[OutlineStep, ...]:
        return tuple(self._old[index] for index in sorted(self._old))

    @cached_property
    def _steps_new(self) -> tuple[OutlineStep, ...]:
        return tuple(self._new[index] for index in sorted(self._new))

    @staticmethod
    def _depth(step: OutlineStep, side: dict[int, OutlineStep]) -> int:
        depth = 0
        while step.parent in side and step.parent < step.index:
            step, depth = side[step.parent], depth + 1
        return depth


def _side(steps: Sequence[OutlineStep | None]) -> dict[int, OutlineStep]:
    return {step.index: step for step in steps if step is not None}


def _lies_in(step: OutlineStep, composite: int, side: dict[int, OutlineStep]) -> bool:
    while step.parent in side and step.parent < step.index:
        if step.parent == composite:
            return True
        step = side[step.parent]
    return False


def _number(old: int, new: int) -> str:
    if not old and not new:
        return ""
    return str(new) if old == new else f"{old}→{new}"

"""What every format shows of a difference, as plain data: rows with old and new cells, and the lines around them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from attnshape.comparison.outline import INPUT
from attnshape.dims.symbols import ORDER
from attnshape.model.difference import (
    ArgumentChange,
    BehaviourChange,
    BehaviourDifference,
    BehaviourUnknown,
    Difference,
    Fact,
    FileDifference,
    FolderDifference,
    OutlineStep,
    OutlineTensor,
    OutputChange,
    ResultChange,
    Side,
    StepChange,
)
from attnshape.model.formatting import format_bytes, join_words, pluralize
from attnshape.model.trace import Reference
from attnshape.reporters.columns import NUMBER
from attnshape.reporters.escaping import visible
from attnshape.reporters.labels import (
    INNER,
    LONG,
    binding,
    clip,
    clip_around,
    elide,
    reference_label,
    shape_label,
    storage_label,
    stride_label,
)
from attnshape.reporters.trace_view import FooterLine, Header

_ARROW = " → "
_LONG_NUMBER = re.compile(r"(?<![\w.])\d+\.\d{7,}(?:e[+-]?\d+)?(?![\w.])")
_OUTPUT = "output"
"""The name of the result of code that returns one tensor."""

_Steps = Sequence[OutlineStep]
"""The steps of one side, in order of their numbers."""


@dataclass(frozen=True)
class DiffColumn:
    """A column of tensor properties: its name, its text, and the facts that change it."""

    name: str
    text: Callable[[OutlineTensor, _Steps], str]
    facts: frozenset[Fact]
    code: bool = False
    least: int | None = None
    """The least width to fold cells to."""


@dataclass(frozen=True)
class DiffCell:
    """The text of a cell, and the text on the old side if that differs."""

    text: str
    old: str | None = None


_RowKind = Literal["changed", "added", "removed", "same", "folded"]
_SIGNS = {"added": "+", "removed": "-"}


@dataclass(frozen=True)
class DiffRow:
    """One line of the table: the numbers of the steps, then the cells."""

    number: str
    cells: tuple[DiffCell, ...]
    kind: _RowKind


@dataclass(frozen=True)
class DiffView:
    """A table of differences, ready to be rendered."""

    header: Header
    columns: tuple[DiffColumn, ...]
    """All but the first, which has the numbers of the steps."""
    rows: tuple[DiffRow, ...]
    footer: tuple[FooterLine, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns, that of the numbers first."""
        return (NUMBER, *(column.name for column in self.columns))


def _signature(tensor: OutlineTensor, steps: _Steps) -> str:
    return visible(tensor.signature) or "scalar"


def _storage(tensor: OutlineTensor, steps: _Steps) -> str:
    if tensor.kind == "new" and not tensor.bytes:
        return ""
    return storage_label(tensor.kind, tensor.of, tensor.bytes, steps)


_STEP = DiffColumn("step", lambda tensor, steps: "", frozenset(), code=True, least=16)
"""The first column: its text is that of a whole step."""
_DTYPE = DiffColumn("dtype", lambda tensor, steps: visible(tensor.dtype), frozenset({"dtype"}))
_COLUMNS: tuple[DiffColumn, ...] = (
    DiffColumn("signature", _signature, frozenset({"signature"}), code=True, least=12),
    DiffColumn("shape", lambda tensor, steps: shape_label(tensor), frozenset({"shape"})),
    # a stride that only follows from the shape changes too
    DiffColumn("stride", lambda tensor, steps: stride_label(tensor), frozenset({"stride", "shape"})),
    DiffColumn("storage", _storage, frozenset({"storage", "bytes"}), least=12),
)


def diff_view(difference: Difference, command: str = "") -> DiffView:
    """Return the rows of what differs, with everything else folded, and the lines above and below them."""
    changes = (*difference.inputs, *difference.steps)
    retyped = any("dtype" in output.changed for change in changes for output in change.outputs)
    columns = (*_COLUMNS, _DTYPE) if retyped else _COLUMNS
    builder = _RowBuilder(difference, columns)
    rows = [*builder.rows(difference.inputs, "input"), *builder.rows(difference.steps, "step")]
    differs = any(row.kind != "folded" for row in rows)
    return DiffView(
        _header(difference, command), (_STEP, *columns), tuple(rows) if differs else (), _footer(difference)
    )


def differing_files(differences: FolderDifference) -> list[FileDifference]:
    """Return the files of two folders that differ."""
    return [file for file in differences.files if file.difference]


def folder_summary(differences: FolderDifference) -> list[str]:
    """Return the lines that sum up the differences of two folders."""
    differing = differing_files(differences)
    same = [file.name for file in differences.files if not file.difference]
    verb = "differs" if 1 in (len(differing), len(differences.files)) else "differ"
    lines = [f"{len(differing):,} of {pluralize(len(differences.files), 'file')} {verb}"]
    lines += [f"no difference: {', '.join(same)}"] if same else []
    for side, names in ((differences.old, differences.only_old), (differences.new, differences.only_new)):
        lines += [f"only in {side}: {', '.join(names)}"] if names else []
    return [*lines, *(f"not compared: {one.name}: {one.reason}" for one in differences.not_compared)]


class _SideSteps:
    """The steps of one side of a difference, and which of them the other side has too."""

    def __init__(self, pairs: Sequence[tuple[OutlineStep | None, OutlineStep | None]]) -> None:
        """Take each of the side's own steps with its counterpart on the other side."""
        own = [(step, other) for step, other in pairs if step is not None]
        self.by_index = {step.index: step for step, _ in own}
        self.kept = {step.index for step, other in own if other is not None}
        self.ordered = [self.by_index[index] for index in sorted(self.by_index)]
        self.above: OutlineStep | None = None
        """The step in the row above, None if that row is no step of this side."""
        self.inner_steps: Counter[int] = Counter()
        """How many steps are inside of each composite, at any depth."""
        for step in reversed(self.ordered):
            if step.parent in self.by_index and step.parent < step.index:
                self.inner_steps[step.parent] += 1 + self.inner_steps[step.index]

    def ancestors(self, step: OutlineStep) -> list[OutlineStep]:
        found = []
        while step.parent in self.by_index and step.parent < step.index:
            step = self.by_index[step.parent]
            found.append(step)
        return found

    def label(self, step: OutlineStep, other: OutlineStep | None = None) -> str:
        """Return the text of a step in its row: its loops, its depth, its names and its expression.

        `…` in it stands for the expression in the row above, if that has no name and the step reads it. A long
        expression is shortened around what differs in `other`, the step on the other side.
        """
        text = visible(step.expression) or visible(step.operation)
        text = clip_around(text, visible(other.expression)) if other is not None else clip(text)
        above = self.above
        unnamed = above is not None and [output.name for output in above.outputs] == [None]
        if above is not None and unnamed and any(reference.step == above.index for reference in step.uses):
            text = elide(text, clip(visible(above.expression)), len(text) > LONG)
        loops = "".join(f"×{visible(loop.expression)} " for loop in step.loops)
        by_use = any(output.by_use for output in step.outputs)
        inplace = any(output.kind == "inplace" for output in step.outputs)
        before, after = binding(text, [output.name for output in step.outputs], by_use, inplace)
        return loops + INNER * len(self.ancestors(step)) + before + text + after


def _with_arguments(old: str, new: str, changes: Sequence[ArgumentChange]) -> tuple[str, str]:
    """Return the labels of a step on both sides, with the arguments that differ unless both labels show that."""
    hidden = [change for change in changes if old == new or not (_shows(old, change.old) and _shows(new, change.new))]
    if not hidden:
        return old, new
    before = ", ".join(f"{visible(change.name)}={_value(change.old)}" for change in hidden)
    after = ", ".join(f"{visible(change.name)}={_value(change.new)}" for change in hidden)
    return f"{old} · {before}", f"{new} · {after}"


def _value(value: str | None) -> str:
    return visible(_LONG_NUMBER.sub(_rounded, value)) if value is not None else "default"


def _rounded(number: re.Match[str]) -> str:
    return f"{float(number[0]):.6g}"


def _shows(label: str, value: str | None) -> bool:
    return value is None or re.search(rf"(?<![\w.-]){re.escape(visible(value))}(?![\w.])", label) is not None


def _sides(difference: Difference) -> tuple[_SideSteps, _SideSteps]:
    pairs = [(change.old, change.new) for change in difference.steps]
    return _SideSteps(pairs), _SideSteps([(new, old) for old, new in pairs])


class _RowBuilder:
    def __init__(self, difference: Difference, columns: Sequence[DiffColumn]) -> None:
        self._columns = columns
        self._old, self._new = _sides(difference)

    def rows(self, changes: Sequence[StepChange], noun: str) -> Iterator[DiffRow]:
        around = self._composites_around_changes(changes)
        unchanged = 0
        for change in changes:
            if self._is_part_of_composite(change):
                continue
            if not change.shown and id(change) not in around:
                unchanged += 1
                continue
            yield from self._folded(unchanged, noun)
            unchanged = 0
            yield from self._change_rows(change)
        yield from self._folded(unchanged, noun)

    def _folded(self, unchanged: int, noun: str) -> Iterator[DiffRow]:
        if unchanged:
            self._old.above = self._new.above = None
            yield self._text_row("", pluralize(unchanged, f"unchanged {noun}"), "folded")

    def _composites_around_changes(self, changes: Sequence[StepChange]) -> set[int]:
        """Return the ids of the changes whose steps are composites around something that differs."""
        by_new = {change.new.index: change for change in changes if change.new is not None}
        by_old = {change.old.index: change for change in changes if change.old is not None}
        found: set[int] = set()
        for change in changes:
            if not change.shown or self._is_part_of_composite(change):
                continue
            step, by_index = (change.new, by_new) if change.new is not None else (change.old, by_old)
            while step is not None and step.parent in by_index and id(by_index[step.parent]) not in found:
                around = by_index[step.parent]
                found.add(id(around))
                step = around.new if by_index is by_new else around.old
        return found

    def _is_part_of_composite(self, change: StepChange) -> bool:
        """Return whether a step was added or removed with the composite around it, whose row counts it."""
        if change.old is not None and change.new is not None:
            return False
        step, side = (change.old, self._old) if change.new is None else (change.new, self._new)
        return step is not None and step.parent in side.by_index and step.parent not in side.kept

    def _change_rows(self, change: StepChange) -> Iterator[DiffRow]:
        if change.old is not None and change.new is not None:
            yield from self._changed_rows(change, change.old, change.new)
        elif change.new is not None:
            yield from self._one_sided_rows(change.new, self._new, "added")
        elif change.old is not None:
            yield from self._one_sided_rows(change.old, self._old, "removed")
        self._old.above, self._new.above = change.old, change.new

    def _changed_rows(self, change: StepChange, old: OutlineStep, new: OutlineStep) -> Iterator[DiffRow]:
        kind: _RowKind = "changed" if change.shown else "same"
        is_same = not set(change.changed) - {"moved"}
        text = self._new.label(new) if is_same else self._new.label(new, old)
        before = text if is_same else self._old.label(old, new)
        before, text = _with_arguments(before, text, change.arguments)
        step = DiffCell(text, before if before != text else None)
        number = _number(old.index, new.index)
        if len(old.outputs) == len(new.outputs) == 1:
            yield DiffRow(number, (step, *self._pair(change.outputs[0])), kind)
            return
        yield self._text_row(number, step, kind)
        for place, output in enumerate(change.outputs):
            if output.new is None and output.old is not None:
                yield self._output_row(output.old, place, self._old, "removed")
            elif output.old is None and output.new is not None:
                yield self._output_row(output.new, place, self._new, "added")
            elif output.new is not None and output.changed:
                yield DiffRow("", (DiffCell(_output_name(output.new, place)), *self._pair(output)), "changed")

    def _pair(self, output: OutputChange) -> Iterator[DiffCell]:
        if output.old is None or output.new is None:
            return
        for column in self._columns:
            text, old = column.text(output.new, self._new.ordered), column.text(output.old, self._old.ordered)
            differs = bool(column.facts & set(output.changed)) and old != text
            yield DiffCell(text, old if differs else None)

    def _one_sided_rows(self, step: OutlineStep, side: _SideSteps, kind: _RowKind) -> Iterator[DiffRow]:
        sign = _SIGNS[kind]
        number = f"{sign}{step.index}" if step.operation != INPUT else sign
        text = DiffCell(side.label(step))
        if len(step.outputs) == 1:
            yield DiffRow(number, (text, *self._cells(step.outputs[0], side)), kind)
        else:
            yield self._text_row(number, text, kind)
            for place, tensor in enumerate(step.outputs):
                yield self._output_row(tensor, place, side, kind)
        if inside := side.inner_steps[step.index] if step.index else 0:
            arrows = INNER * (1 + len(side.ancestors(step)))
            yield self._text_row(sign, f"{arrows}{pluralize(inside, 'step')} inside it", kind)

    def _output_row(self, tensor: OutlineTensor, place: int, side: _SideSteps, kind: _RowKind) -> DiffRow:
        return DiffRow(_SIGNS[kind], (DiffCell(_output_name(tensor, place)), *self._cells(tensor, side)), kind)

    def _text_row(self, number: str, text: str | DiffCell, kind: _RowKind) -> DiffRow:
        """Return a row with a text in the column of steps, and nothing in the others."""
        first = DiffCell(text) if isinstance(text, str) else text
        return DiffRow(number, (first, *[DiffCell("")] * len(self._columns)), kind)

    def _cells(self, tensor: OutlineTensor, side: _SideSteps) -> Iterator[DiffCell]:
        return (DiffCell(column.text(tensor, side.ordered)) for column in self._columns)


def _number(old: int, new: int) -> str:
    return (str(new) if new else "") if old == new else f"{old}→{new}"


def _output_name(tensor: OutlineTensor, place: int) -> str:
    return visible(tensor.name or f"[{place}]")


def _header(difference: Difference, command: str) -> Header:
    old, new = difference.old, difference.new
    symbols = sorted({**old.sizes, **new.sizes}, key=lambda symbol: ORDER.get(symbol, len(ORDER)))
    sizes = tuple(f"{visible(name)}={_size(old.sizes.get(name), new.sizes.get(name))}" for name in symbols)
    return Header(visible(command), _both(visible(old.target), visible(new.target)), (), sizes)


def _footer(difference: Difference) -> tuple[FooterLine, ...]:
    lines = [_verdict(difference), *_behaviour(difference.behaviour)]
    lines.append(FooterLine(_totals(difference.old, difference.new)))
    if difference.renamed:
        renamed = [f"{visible(rename.old)}{_ARROW}{visible(rename.new)}" for rename in difference.renamed]
        lines.append(FooterLine(f"renamed: {', '.join(renamed)}"))
    moved = [
        f"{change.old.index if change.old else ''}→{change.new.index if change.new else ''}"
        for change in difference.steps
        if "moved" in change.changed
    ]
    lines += [FooterLine(f"moved: {', '.join(moved)}")] if moved else []
    old, new = (side.ordered for side in _sides(difference))
    for change in difference.steps:
        if change.old is not None and change.new is not None and {"uses", "operands"} & set(change.changed):
            reads, read = _read(change.new, new), _read(change.old, old)
            lines.append(
                FooterLine(f"step {change.new.index} reads {reads}; the old step {change.old.index} reads {read}")
            )
    lines += [FooterLine(_returned(change, old, new)) for change in difference.results]
    return (*lines, *_failures(difference.old, difference.new))


def _verdict(difference: Difference) -> FooterLine:
    if not difference.kinds:
        rewritten = sum(change.shown for change in (*difference.inputs, *difference.steps))
        but = f"; {pluralize(rewritten, 'step')} only rewritten" if rewritten else ""
        where = " in sizes, tensors and steps" if difference.behaviour.not_compared is not None else ""
        return FooterLine(f"no difference{where}{but}", "good")
    results = f"{pluralize(len(difference.results), 'output')} changed" * bool(difference.results)
    parts = list(filter(None, (_counted(difference.inputs, "input"), _counted(difference.steps, "step"), results)))
    return FooterLine(f"differs in {join_words(list(difference.kinds))}{': ' * bool(parts)}{'; '.join(parts)}", "bad")


def _behaviour(behaviour: BehaviourDifference) -> Iterator[FooterLine]:
    """Yield a line for each topic on which the behaviour differs, then those on which it doesn't or isn't known."""
    if behaviour.not_compared is not None:
        how = "; attnshape trace --behaviour saves it" if "hold" in behaviour.not_compared else ""
        yield FooterLine(f"behaviour not compared: {visible(behaviour.not_compared)}{how}")
    for change in behaviour.changed:
        yield FooterLine(f"{change.topic}: {_both_sides(change)}", "bad")
    sizes = " ".join(f"{visible(symbol)}={size}" for symbol, size in behaviour.sizes.items())
    if behaviour.same:
        yield FooterLine(f"same behaviour: {join_words(behaviour.same)} (at {sizes})")
    if behaviour.unknown:
        yield FooterLine(f"unknown behaviour: {', '.join(map(_unknown, behaviour.unknown))}")


def _unknown(unknown: BehaviourUnknown) -> str:
    """Return a topic with the reasons for which it is unknown, those of each side if they differ."""
    if unknown.old == unknown.new:
        return f"{unknown.topic} ({visible('; '.join(unknown.old))})"
    both = (("old", unknown.old), ("new", unknown.new))
    return f"{unknown.topic} ({'; '.join(f'{side}: ' + visible('; '.join(why)) for side, why in both if why)})"


def _both_sides(change: BehaviourChange) -> str:
    before, after = visible("; ".join(change.old)), visible("; ".join(change.new))
    if before and after:
        return f"{before}{_ARROW}{after}"
    if change.topic == "results":
        return after
    return f"now {after}" if after else f"no longer {before}"


def _counted(changes: tuple[StepChange, ...], noun: str) -> str:
    counts = Counter(_status(change) for change in changes)
    statuses = ("added", "removed", "moved", "changed", "rewritten")
    first, *others = [status for status in statuses if counts[status]] or [""]
    if not first:
        return ""
    parts = [f"{pluralize(counts[first], noun)} {first}", *(f"{counts[status]:,} {status}" for status in others)]
    return ", ".join([*parts, f"{counts['']:,} unchanged"] if counts[""] else parts)


def _status(change: StepChange) -> str:
    if change.old is None:
        return "added"
    if change.new is None:
        return "removed"
    if "moved" in change.changed:
        return "moved"
    if change.kinds:
        return "changed"
    return "rewritten" if change.shown else ""


def _totals(old: Side, new: Side) -> str:
    before, after = old.totals, new.totals
    steps, views = _both(f"{before.steps:,}", f"{after.steps:,}"), _both(f"{before.views:,}", f"{after.views:,}")
    new_bytes = _both(format_bytes(before.new_bytes), format_bytes(after.new_bytes))
    return f"steps {steps}, new storage {new_bytes}, views {views}"


def _read(step: OutlineStep, steps: _Steps) -> str:
    return ", ".join(reference_label(reference, steps) for reference in step.uses) or "nothing"


def _returned(change: ResultChange, before: _Steps, after: _Steps) -> str:
    old = _reference_text(change.old.of, before) if change.old is not None else ""
    new = _reference_text(change.new.of, after) if change.new is not None else ""
    if change.old is None or change.new is None:
        status, result = ("added", change.new) if change.old is None else ("removed", change.old)
        return f"{status} {visible(result.name) if result is not None else ''}: {new or old}"
    name = visible(change.new.name)
    if change.old.name != change.new.name:
        return f"{visible(change.old.name)} is now {name}: {new}"
    return f"{'returns' if name == _OUTPUT else f'{name} is'} {old}{_ARROW}{new}"


def _failures(old: Side, new: Side) -> Iterator[FooterLine]:
    for side, name, other, other_name in ((old, "old", new, "new"), (new, "new", old, "old")):
        if side.failure is not None:
            only = "" if other.failure is not None else f", the {other_name} one doesn't"
            yield FooterLine(f"✗ the {name} one fails at {visible(side.failure) or 'a step'}{only}", "bad")


def _both(old: str, new: str) -> str:
    return new if old == new else f"{old}{_ARROW}{new}"


def _size(old: int | None, new: int | None) -> str:
    if old is None or new is None:
        return f"{new} (new only)" if old is None else f"{old} (old only)"
    return _both(str(old), str(new))


def _reference_text(reference: Reference, steps: _Steps) -> str:
    """Return a reference as a sentence names it: `step 4 (o)`, `input x`."""
    text = reference_label(reference, steps)
    if reference.step is None:
        kind = "input " if reference.input else "parameter " if reference.parameter else ""
        return f"{kind}{text}"
    outputs = steps[reference.step - 1].outputs if 0 < reference.step <= len(steps) else ()
    # of several outputs, the label already names the one
    name = outputs[0].name if len(outputs) == 1 else None
    return f"step {text} ({visible(name)})" if name else f"step {text}"

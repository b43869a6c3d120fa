"""Finds tokens that come from a map of rows and columns, and where on it the queries and keys of an attention lie.

Each row of the map is changed in a run of its own, and each column: what differs in both comes from the token where
they meet. So the places are known however the map was flattened, transposed, or cut into windows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from attnshape.checks.attention.operands import AttentionOperand, operands
from attnshape.checks.attention.perturbation import differs, others_where
from attnshape.checks.attention.slots import by_pair
from attnshape.checks.attention.subject import Subject, once
from attnshape.checks.attention.token_positions import NO_TOKEN, token_axes
from attnshape.checks.attention.visibility import VisibleKeys
from attnshape.checks.interventions.experiment import Intervention
from attnshape.checks.interventions.replay import OutputRef, Producer, ReplayedCall
from attnshape.tracing import operations as ops

_LAYS_OUT = ops.RESHAPES | ops.PATTERNED_LAYOUT
_MOST_TOKENS = 2000
_Axes = tuple[int, int]


@dataclass(frozen=True)
class Lines:
    """Which rows and columns of a map each element of a tensor comes from, as two masks with one more axis in front."""

    rows: Tensor
    columns: Tensor

    @property
    def area(self) -> Tensor:
        """How many tokens lie in these rows and columns."""
        return self.rows.sum(0) * self.columns.sum(0)

    @property
    def extent(self) -> Tensor:
        """How many tokens lie in the rectangle around these rows and columns."""
        down, right = (_span(lines) for lines in (self.rows, self.columns))
        return down * right

    @property
    def has_every_line(self) -> bool:
        """Whether every row and every column is that of some element."""
        return all(bool(lines.flatten(1).any(1).all()) for lines in (self.rows, self.columns))

    @cached_property
    def places(self) -> tuple[Tensor, Tensor] | None:
        """The row and the column of each element, `NO_TOKEN` where from none; None if some come from several tokens."""
        found = []
        for lines in (self.rows, self.columns):
            if bool((lines.sum(0) > 1).any()):
                return None
            found.append(torch.where(lines.any(0), lines.long().argmax(0), NO_TOKEN))
        rows, columns = found
        return (rows, columns) if torch.equal(rows == NO_TOKEN, columns == NO_TOKEN) else None


def _span(lines: Tensor) -> Tensor:
    """Return how many lines there are from the first to the last one that is true."""
    first, last = lines.long().argmax(0), len(lines) - 1 - lines.flip(0).long().argmax(0)
    return torch.where(lines.any(0), last - first + 1, 0)


@dataclass(frozen=True)
class _ChangedLines:
    """What differs where lines of tokens were changed; the numbers of such a run would take too much memory."""

    follows: bool
    """Whether the run made the same calls."""
    operands: list[Tensor]
    """A mask of each of the attentions' operands, in the order of `operands`."""
    results: dict[OutputRef, Tensor]
    """A mask of each result on which queries and keys depend."""


_Read = Callable[[_ChangedLines], Tensor | None]


@dataclass(frozen=True)
class _Division:
    """Cuts tokens into lines of so many, by their numbers."""

    by: int
    is_remainder: bool
    """Whether a line consists of the tokens with the same remainder: of a column instead of a row."""

    def lines(self, numbers: Tensor) -> tuple[Tensor, int]:
        """Return the line of each token, and how many lines there are."""
        return (numbers % self.by, self.by) if self.is_remainder else (numbers // self.by, numbers.numel() // self.by)


class TokenGrid:
    """Tokens on a map, as a call reads it that gives them another layout."""

    def __init__(
        self, subject: Subject, source: Producer, shape: torch.Size, axes: Sequence[int], sizes: tuple[int, int]
    ) -> None:
        """`source` is the map, whose `axes` hold its rows and columns: two axes, or one that holds row after row."""
        self._subject = subject
        self.source = source
        self._axes = axes
        self._shape = shape
        self.sizes = sizes
        self._made: dict[tuple[_Division, bool], list[_ChangedLines]] = {}

    @property
    def count(self) -> int:
        """The number of tokens."""
        rows, columns = self.sizes
        return rows * columns

    @property
    def numbers(self) -> Tensor:
        """The numbers of the tokens, counted row by row."""
        return torch.arange(self.count).reshape(self.sizes)

    def _runs(self, by: _Division, together: bool) -> list[_ChangedLines]:
        """Return the runs in which one line of tokens after another is changed: those with the same row, or column.

        With `together`, each run changes several lines, each in a different batch element.
        """
        key = (by, together)
        if key not in self._made:
            of_tokens, count = by.lines(self.numbers)
            elements = self._subject.batch_size if together else 1
            starts = range(0, count, elements)
            self._made[key] = [self._changed(of_tokens, start, elements) for start in starts]
        return self._made[key]

    def _changed(self, of_tokens: Tensor, start: int, elements: int) -> _ChangedLines:
        """Change another line of tokens in each batch element, and put the contexts back."""
        wanted = start + torch.arange(elements).reshape(-1, *[1] * (len(self._shape) - 1))
        laid_out = [size if axis in self._axes else 1 for axis, size in enumerate(self._shape)]
        change = others_where((of_tokens.reshape(laid_out) == wanted).expand(self._shape))
        results = {self.source: change} if isinstance(self.source, OutputRef) else {}
        inputs = {self.source: change} if isinstance(self.source, str) else {}
        run = self._subject.perturb_each(Intervention(inputs=inputs, results=results)).run
        if not run.follows(self._subject.base):
            return _ChangedLines(False, [], {})
        tolerance, base = self._subject.experiment.tolerance, self._subject.base
        return _ChangedLines(
            True,
            [differs(one.value, one.of(run), tolerance) for one in operands(self._subject)],
            {ref: differs(base.value(ref), run.value(ref), tolerance) for ref in self._upstream},
        )

    @cached_property
    def _upstream(self) -> list[OutputRef]:
        """The results that depend on the map, and on which queries and keys depend."""
        sources = tuple(source for one in operands(self._subject) if one.role != "value" for source in one.sources)
        after = self._subject.graph.downstream({self.source}) - {self.source}
        every = (ref for event in self._subject.graph.upstream(sources) for ref in event.refs if not event.unread)
        return [ref for ref in every if ref in after or ref == self.source]

    @cached_property
    def is_followed(self) -> bool:
        """Whether the code takes the same path wherever a token is changed."""
        together = self._has_batch
        runs = [run for by in self._own_lines for run in self._runs(by, together)]
        return all(run.follows for run in runs)

    @property
    def _has_batch(self) -> bool:
        return self._subject.batch_size == self._shape[0] > 1

    @property
    def _own_lines(self) -> tuple[_Division, _Division]:
        _, columns = self.sizes
        return _Division(columns, False), _Division(columns, True)

    @property
    def _swapped_lines(self) -> tuple[_Division, _Division]:
        rows, _ = self.sizes
        return _Division(rows, False), _Division(rows, True)

    def lines(self, read: _Read, swapped: bool = False, batch: int | None = None) -> Lines | None:
        """Return from which rows and columns a tensor comes; None if that can't be told.

        `read` returns which of its elements differ in a run, and `batch` is the tensor's axis of batch elements, if it
        has one, which other axes may be folded into: what is returned may have one of them only, since all have the
        same layout. Where the lines are `swapped`, they are those of a map with as many rows as there are columns, into
        which the same tokens are folded in their order.
        """
        if batch is not None and self._has_batch:
            together = self._read_lines(read, swapped, batch)
            # each batch element has all lines, unless its axis is folded inside of another one
            if together is not None and together.has_every_line:
                return together
        return self._read_lines(read, swapped, None)

    def _read_lines(self, read: _Read, swapped: bool, batch: int | None) -> Lines | None:
        found = []
        for by in self._swapped_lines if swapped else self._own_lines:
            masks: list[Tensor] = []
            for run in self._runs(by, batch is not None):
                mask = read(run) if run.follows else None
                if mask is None:
                    return None
                elements = mask.shape[batch] // self._subject.batch_size if batch is not None else 0
                masks += torch.split(mask, elements, batch) if batch is not None else [mask]
            _, count = by.lines(self.numbers)
            found.append(torch.stack(masks[:count]))
        return Lines(*found)

    def of_operand(self, operand: AttentionOperand, swapped: bool = False) -> Lines | None:
        """Return the lines of each element of an operand."""
        place = operands(self._subject).index(operand)
        return self.lines(lambda run: run.operands[place], swapped, self._batch_axis(operand.value.shape))

    def of_result(self, ref: OutputRef, swapped: bool = False) -> Lines | None:
        """Return the lines of each element of a result; None if queries and keys don't depend on it."""
        shape = self._subject.base.event(ref).values[ref.output].shape
        return self.lines(lambda run: run.results.get(ref), swapped, self._batch_axis(shape))

    def _batch_axis(self, shape: torch.Size) -> int | None:
        batch = self._subject.batch_size
        return shape.index(batch) if shape.count(batch) == 1 else None

    def of_pairs(self, visible: VisibleKeys, swapped: bool = False) -> tuple[Lines, Lines] | None:
        """Return the lines of the queries, (B, H, queries), and of the keys, (B, H, keys), as the weights have them.

        If all batch elements have the same layout, there may be one of them only.
        """
        batch = self._subject.batch_size
        found = []
        for place, operand in enumerate(operands(self._subject)):
            if operand.core is not visible.core or operand.role == "value":
                continue

            def read(run: _ChangedLines, operand: AttentionOperand = operand, place: int = place) -> Tensor | None:
                pairs = by_pair(self._subject, operand, run.operands[place])
                pairs = visible.arranged(pairs) if pairs is not None else None
                return pairs.any(-1 if operand.role == "query" else -2) if pairs is not None else None

            is_folded = batch > 1 and visible.keys.shape[0] % batch == 0
            lines = self.lines(read, swapped, 0 if is_folded else None)
            if lines is None:
                return None
            found.append(lines)
        query, key = found
        return query, key


@once
def grid(subject: Subject) -> TokenGrid | None:
    """Return the map from which queries or keys come, where its sides differ; None if there is none, or it is large."""
    sources = tuple(source for one in operands(subject) if one.role != "value" for source in one.sources)
    upstream = {event.order for event in subject.graph.upstream(sources)}
    data = subject.graph.depends_on_data | subject.graph.data
    split: set[Producer] = set()  # tokens that were given an axis of heads: their axes are no map's
    for event in subject.base.events:
        if not split.isdisjoint(event.producers):
            split.update(event.refs)
            continue
        if event.name not in _LAYS_OUT or event.order not in upstream or data.isdisjoint(event.producers):
            continue
        if event.operand_values[0].ndim < 4 <= event.values[0].ndim:
            split.update(event.refs)
            continue
        axes, source = _axes_of_map(subject, event), event.sources[0][-1]
        if axes is None:
            continue
        source = _before_projection(subject, source)
        shape = (subject.base.value(source) if isinstance(source, OutputRef) else subject.inputs[source]).shape
        found = TokenGrid(subject, source, shape, axes, (shape[axes[0]], shape[axes[1]]))
        return found if _is_map(found) else None
    written = _written_grid(subject)
    return written if written is not None and _is_map(written) else None


def _before_projection(subject: Subject, source: Producer) -> Producer:
    """Return the map of which a convolution projects each token by itself, if it does, as for queries, keys and values.

    Each of these comes from another convolution of the same map.
    """
    event = subject.base.event(source) if isinstance(source, OutputRef) else None
    if event is None or event.name not in ops.CONVOLUTIONS or set(event.operand_values[1].shape[2:]) != {1}:
        return source
    made = event.sources[0][-1]
    is_map = isinstance(made, OutputRef) or made in subject.inputs
    return made if is_map and event.operand_values[0].shape[2:] == event.values[0].shape[2:] else source


def _is_map(found: TokenGrid) -> bool:
    rows, columns = found.sizes
    return rows != columns and min(rows, columns) > 1 and found.count <= _MOST_TOKENS and found.is_followed


def _written_grid(subject: Subject) -> TokenGrid | None:
    """Return the map whose rows and columns the user wrote as one axis of an input: `x: B Y*X D`."""
    for name, written in subject.experiment.target.sizes.inputs.items():
        value = subject.inputs.get(name)
        found = token_axes(subject, value) if value is not None else None
        if value is None or found is None or len(found.axes) != 1:
            continue
        (axis,) = found.axes
        sides = written[axis].text.split("*")
        if len(sides) == 2 and all(side in subject.numbers for side in sides):
            rows, columns = (subject.numbers[side] for side in sides)
            return TokenGrid(subject, name, value.shape, found.axes, (rows, columns))
    return None


def _axes_of_map(subject: Subject, event: ReplayedCall) -> _Axes | None:
    """Return the axes of rows and columns that a call merges with each other, or cuts and folds with other axes."""
    before, after = tuple(event.operand_values[0].shape), tuple(event.values[0].shape)
    if len(before) != 4 or len(event.operand_values) != 1:
        return None
    b, *rest = before
    source = event.sources[0][-1]
    own = token_axes(subject, event.operand_values[0]) if isinstance(source, str) else None
    if own is not None:
        return (own.axes[0], own.axes[1]) if len(own.axes) == 2 and after != before else None
    for axes in ((1, 2), (2, 3)):
        others = [size for axis, size in enumerate(rest, 1) if axis not in axes]
        merged = before[axes[0]] * before[axes[1]]
        # the call may split the features into heads, too
        is_last = (after[0], after[-1]) == (b, merged) and math.prod(after) == math.prod(before)
        if after == (b, merged, *others) or (is_last and axes == (2, 3)):
            return axes
    return (1, 2) if after[-1] == before[-1] and len(after) != 4 else None

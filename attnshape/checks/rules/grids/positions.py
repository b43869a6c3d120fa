"""Are positions on a grid counted in the order in which its tokens lie?"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attnshape.checks.attention.grids import Lines, TokenGrid
from attnshape.checks.attention.mistake_lines import helper_call
from attnshape.checks.attention.operands import AttentionOperand, AttentionOperands
from attnshape.checks.attention.subject import Subject
from attnshape.checks.attention.uniform import UniformRun, uniform_run
from attnshape.checks.attention.visibility import VisibleKeys
from attnshape.checks.interventions.replay import OutputRef, Producer
from attnshape.checks.rules.biases.terms import added_sources
from attnshape.checks.rules.grids.cells import Cells, Miscounted, follows_cells, follows_offsets, miscounted
from attnshape.checks.rules.protocol import Verification, Violation
from attnshape.tracing import operations as ops

_MOST_TABLES = 4
_VARIES = 1e-6
_CLOSE = 1e-5


@dataclass(frozen=True)
class _Found:
    """What follows from the positions of tokens."""

    what: str
    """The subject of a sentence about it."""
    sources: tuple[Producer, ...]
    tokens: Cells
    follows: Callable[[Miscounted | None], bool]
    """Returns whether it follows from cells that are counted in some way, by default from those of the tokens."""
    sides: tuple[int, int]
    at: OutputRef
    evidence: str


def check_biases(subject: Subject, grid: TokenGrid, visible: VisibleKeys) -> Iterator[Violation | Verification]:
    """Compare what is added to the scores with the offsets of the tokens on the map."""
    lines = grid.of_pairs(visible)
    places = [one.places for one in lines] if lines is not None else [None]
    if any(place is None for place in places):
        return
    queries, keys = (Cells(*place) for place in places if place is not None)
    elements = queries.rows.shape[0]
    steps = visible.added[..., 1:] - visible.added[..., :-1]
    both = visible.keys[..., 1:] & visible.keys[..., :-1]
    if not bool((steps[both].abs() > _VARIES).any()):
        return

    def follows(count: Miscounted | None) -> bool:
        of_queries, of_keys = (count.cells(one) if count is not None else one for one in (queries, keys))
        return follows_offsets(visible.added[:elements], visible.keys[:elements], of_queries, of_keys)

    one = Cells(queries.rows[0, 0], queries.columns[0, 0])
    at = _last_unlike_data(subject, added_sources(visible)) or visible.core.context
    evidence = "set the scores to 0, read what is added to them, and changed each row and each column of the map"
    what = "the bias of two tokens"
    yield from _judged(subject, _Found(what, added_sources(visible), one, follows, _sides(one), at, evidence))


def check_rotations(subject: Subject, grid: TokenGrid, own: AttentionOperands) -> Iterator[Violation | Verification]:
    """Give all queries and keys the same vector, and compare their scores with the offsets of the tokens."""
    query, key, _ = own
    same = uniform_run(subject, own)
    if same is None or not all(same.varies(one, same.tokens(one)) for one in (query, key)):
        return
    cells = [_cells_of_rows(same, grid, operand) for operand in (query, key)]
    rows = [same.rows(operand) for operand in (query, key)]
    known = [(cell, row) for cell, row in zip(cells, rows, strict=True) if cell is not None and row is not None]
    if len(known) < 2 or any(cell.rows.shape[0] != row.shape[0] for cell, row in known):
        return
    (queries, q), (keys, k) = known
    if q.shape[-1] != k.shape[-1]:
        return
    scores = q @ k.T

    def follows(count: Miscounted | None) -> bool:
        of_queries, of_keys = (count.cells(one) if count is not None else one for one in (queries, keys))
        return follows_offsets(scores, torch.ones(scores.shape, dtype=torch.bool), of_queries, of_keys)

    at = same.first_varying(query) or OutputRef(query.event.order)
    sources = (*query.sources, *key.sources)
    evidence = "gave all queries and keys the same vector, and changed each row and each column of the map"
    what = "the score of equal queries and keys"
    found = _Found(what, sources, queries, follows, _sides(queries), at, evidence)
    line = _line_of_both_halves(q, queries) if all(found.sides) else None
    if line is not None:
        yield _of_one_line(subject, found, *line)
    else:
        yield from _judged(subject, found)


def _line_of_both_halves(vectors: Tensor, tokens: Cells) -> tuple[str, str] | None:
    """Return "row" or "column", and the other one, if half of the features turn by it, and the others just alike.

    None where they turn by both, or each by an angle of its own, as by the time of tokens on several frames.
    """
    known = tokens.are_known
    turned = _turned(vectors[known]) if bool(known.any()) else None
    if turned is None:
        return None
    twins = (turned[:, :, None] - turned[:, None]).abs().amax(0) <= _CLOSE
    if not bool((twins.sum(-1) == 2).all()):
        return None
    for names, lines in ((("row", "column"), tokens.rows[known]), (("column", "row"), tokens.columns[known])):
        firsts = (lines[:, None] == lines[None]).int().argmax(-1)
        if bool(((turned - turned[firsts]).abs() <= _CLOSE).all()):
            return names
    return None


def _turned(vectors: Tensor) -> Tensor | None:
    """Return by what pairs of features turn from the first token to each, as complex numbers, (tokens, pairs).

    Pairs are adjacent features, those of two halves, or those of two halves of each half. None if none of these turn.
    """
    width = vectors.shape[-1]
    if width % 4:
        return None
    adjacent = vectors.reshape(-1, width // 2, 2).unbind(-1)
    of_halves = vectors.reshape(-1, 2, 2, width // 4).unbind(-2)
    for parts in (adjacent, vectors.chunk(2, dim=-1), of_halves):
        one, other = (part.flatten(1) for part in parts)
        numbers = torch.complex(one, other)
        lengths = numbers.abs()
        if bool((lengths - lengths[:1]).abs().le(_CLOSE * lengths[:1]).all()):
            return numbers / numbers[:1]
    return None


def _of_one_line(subject: Subject, found: _Found, line: str, other: str) -> Violation:
    message = f"both halves of the features turn by a token's {line}, and none by its {other}"
    hint = f"turn one half by the {other}"
    tables = (event for event in subject.graph.upstream(found.sources) if event.name in ops.JOINS)
    data = subject.graph.depends_on_data
    of_copies = (
        event.refs[0]
        for event in tables
        if event.refs[0] not in data
        and len(event.operand_values) == 2
        and torch.equal(*event.operand_values)
        and bool((event.operand_values[0] != event.operand_values[0].flatten()[0]).any())
    )
    return Violation("AS717", message, next(of_copies, found.at), hint, found.evidence)


def check_tables(
    subject: Subject, grid: TokenGrid, own: Sequence[AttentionOperand]
) -> Iterator[Violation | Verification]:
    """Compare what is added to the tokens with the sums of one vector for each row and one for each column."""
    sources = tuple(source for operand in own for source in operand.sources)
    after = subject.graph.downstream({grid.source})
    every = (event for event in subject.graph.upstream(sources) if event.name in ops.ADDITIONS)
    for event in [one for one in every if one.refs[0] in after][:_MOST_TABLES]:
        tables = [
            place for place, own_sources in enumerate(event.sources) if not subject.graph.carries_data(own_sources)
        ]
        if len(event.operands) != 2 or len(tables) != 1 or not event.operand_values[tables[0]].is_floating_point():
            continue
        lines = grid.of_result(event.refs[0])
        laid_out = _by_token(event.operand_values[tables[0]].expand(event.values[0].shape), lines) if lines else None
        if laid_out is None:
            continue
        table, tokens = laid_out
        if not bool(((table - table[:1]).abs() > _VARIES).any()):
            continue

        def follows(count: Miscounted | None, table: Tensor = table, tokens: Cells = tokens) -> bool:
            return follows_cells(table, count.cells(tokens) if count is not None else tokens)

        what = "what is added to a token"
        evidence = "read what is added to the tokens, and changed each row and each column of the map"
        found = _Found(what, event.sources[tables[0]], tokens, follows, _sides(tokens), event.refs[0], evidence)
        yield from _judged(subject, found)


def _judged(subject: Subject, found: _Found) -> Iterator[Violation | Verification]:
    if not all(found.sides):
        return  # no token lies on the map
    if found.follows(None):
        yield Verification("positions that follow from rows and columns follow from those on the map")
        return
    count = next((one for one in miscounted(found.sides) if found.follows(one)), None)
    if count is None:
        return
    rows, columns = found.sides
    if count.of_rows == count.of_columns:
        counted = f"of {columns} rows and {rows} columns"
        message = f"{found.what} fits a grid {counted}, but the tokens lie on one of {rows} rows and {columns} columns"
    else:
        message = (
            f"{found.what} follows from the row in a grid {count.of_rows} tokens wide, but the column in one "
            f"{count.of_columns} wide, where the tokens lie on {rows} rows and {columns} columns"
        )
    hint = "count positions in the order in which the tokens are flattened: the row is i // width, the column i % width"
    made = _first_miscounted(subject, found, count)
    at = made or found.at
    place = None if made is not None else helper_call(subject, at)
    yield Violation("AS717", message, at, hint, found.evidence, place=place)


def _sides(tokens: Cells) -> tuple[int, int]:
    """Return how many rows and columns some tokens lie in."""
    known = tokens.are_known
    return len(set(tokens.rows[known].tolist())), len(set(tokens.columns[known].tolist()))


def _cells_of_rows(same: UniformRun, grid: TokenGrid, operand: AttentionOperand) -> Cells | None:
    """Return the cells of the vectors of the first head and batch element, as `UniformRun.rows` has them."""
    axis, lines = same.tokens(operand), grid.of_operand(operand)
    if axis is None or lines is None:
        return None
    found = []
    for masks in (lines.rows, lines.columns):
        moved = masks.movedim((axis + 1, same.width(operand) + 1), (-2, -1))
        found.append(moved.reshape(len(masks), -1, *moved.shape[-2:])[:, 0, : same.filled(operand)[1]].any(-1))
    places = Lines(*found).places
    return Cells(*places) if places is not None else None


def _by_token(table: Tensor, lines: Lines) -> tuple[Tensor, Cells] | None:
    """Return a table as (tokens, features), and the cells of the tokens; None if its axes hold something else."""
    if lines.places is None:
        return None
    rows, columns = (one.expand(table.shape) for one in lines.places)
    axes = [
        axis
        for axis in range(rows.ndim)
        if bool((rows != rows.narrow(axis, 0, 1)).any()) or bool((columns != columns.narrow(axis, 0, 1)).any())
    ]
    count = math.prod(table.shape[axis] for axis in axes)
    front = list(range(len(axes)))
    rows, columns, table = (one.movedim(axes, front).reshape(count, -1) for one in (rows, columns, table))
    if bool((rows != rows[:, :1]).any()) or bool((columns != columns[:, :1]).any()):
        return None
    return table, Cells(rows[:, 0], columns[:, 0])


def _last_unlike_data(subject: Subject, sources: tuple[Producer, ...]) -> OutputRef | None:
    """Return the last call before the scores that depends on no data."""
    data = subject.graph.depends_on_data
    return next((event.refs[0] for event in subject.graph.upstream(sources) if event.refs[0] not in data), None)


def _first_miscounted(subject: Subject, found: _Found, count: Miscounted) -> OutputRef | None:
    """Return the first call that computes numbers of tokens which follow from cells that are counted so."""
    data = subject.graph.depends_on_data
    for event in sorted(subject.graph.upstream(found.sources), key=lambda event: event.order):
        if event.refs[0] in data:
            continue
        for value in event.values:
            for numbers in _of_tokens(value, found):
                if follows_cells(numbers, count.cells(found.tokens)) and not follows_cells(numbers, found.tokens):
                    return event.refs[0]
    return None


def _of_tokens(value: Tensor, found: _Found) -> Iterator[Tensor]:
    """Yield a result as (tokens, others), for each axis, or two adjacent ones, with as many indices as tokens."""
    if value.dtype == torch.bool or value.is_complex():
        return
    count, shape = found.tokens.rows.numel(), value.shape
    for axis, size in enumerate(shape):
        if size == count:
            yield value.double().movedim(axis, 0).reshape(count, -1)
        elif shape[axis : axis + 2].numel() == count and sorted(shape[axis : axis + 2]) == sorted(found.sides):
            yield value.double().movedim((axis, axis + 1), (0, 1)).reshape(count, -1)

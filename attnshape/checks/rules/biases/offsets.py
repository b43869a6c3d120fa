"""Does each offset on a grid of tokens have its own row in a table of relative positions?

Swin (Liu et al. 2021, https://arxiv.org/abs/2103.14030, section 3.2) has a row for each of the (2h - 1)(2w - 1)
offsets in a window of h by w tokens. BEiT (Bao et al. 2021, https://arxiv.org/abs/2106.08254) has three more, for a
class token.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from attnshape.checks.attention.products import recompute
from attnshape.checks.attention.subject import Subject
from attnshape.checks.attention.visibility import VisibleKeys
from attnshape.checks.interventions.replay import ReplayedCall
from attnshape.checks.rules.biases.terms import added_sources, term_map
from attnshape.checks.rules.protocol import Verification, Violation
from attnshape.tracing import operations as ops
from attnshape.tracing.raw import SourceLocation

_LOOKUPS = ops.GATHERS | {"getitem"}
_ARITHMETIC = ops.ADDITIONS | ops.SUBTRACTIONS | ops.REVERSED_SUBTRACTIONS | ops.MULTIPLICATIONS
_MOST_LOOKUPS = 4
_BEFORE_THE_GRID = ((0, 0), (1, 3))
"""How many tokens come before those of the grid, with the number of rows that such tokens have in the table."""


@dataclass(frozen=True)
class _Grid:
    """Tokens in rows and columns, after some that have no place in the grid."""

    height: int
    width: int
    before: int

    @property
    def offsets(self) -> int:
        """How many offsets there are between two of its tokens."""
        return (2 * self.height - 1) * (2 * self.width - 1)

    def numbers(self, width: int) -> Tensor:
        """Return a number for the offset of each pair of tokens, if rows of the grid have a width."""
        places = torch.arange(self.height * self.width)
        down, right = places // width, places % width
        return (down[:, None] - down) * (4 * self.height * self.width) + (right[:, None] - right)


def check_offsets(subject: Subject, visible: VisibleKeys) -> Iterator[Violation | Verification]:
    """Read which row of a table each pair of tokens gets, where the table has a row for each offset on a grid."""
    queries, keys = visible.keys.shape[-2:]
    lookups = list(_lookups(subject, visible)) if queries == keys else []
    for event, place in lookups[:_MOST_LOOKUPS]:
        entries = _entries(subject, visible, event, place, queries)
        if entries is None:
            continue
        grid, rows = entries
        read = min(_distinct(own) for own in rows)
        orders = {grid.height, grid.width}
        if any(all(_are_paired(own, grid.numbers(width)) for own in rows) for width in orders):
            yield Verification("each offset on the grid has its own row in the table of biases")
        elif read < grid.offsets:
            shape = f"{grid.height} by {grid.width}" if grid.height < grid.width else f"{grid.width} by {grid.height}"
            message = (
                f"different offsets share a row of the table: {read} of its {grid.offsets} rows for a grid of "
                f"{shape} tokens are read"
            )
            hint = "multiply the vertical offset by the number of horizontal ones: dy * (2 * width - 1) + dx"
            evidence = "replaced the table by the numbers of its entries, and read them at the softmax"
            yield Violation("AS715", message, event.refs[0], hint, evidence, made=_made(subject, event, place))
            return


def _lookups(subject: Subject, visible: VisibleKeys) -> Iterator[tuple[ReplayedCall, int]]:
    """Yield the calls that take numbers from a table by their indices, with the place of the table."""
    graph = subject.graph
    for event in graph.upstream(added_sources(visible)):
        if event.name not in _LOOKUPS or event.refs[0] in graph.depends_on_data:
            continue
        floating = [place for place, value in enumerate(event.operand_values) if value.is_floating_point()]
        indices = [value for value in event.operand_values if not value.is_floating_point() and value.ndim]
        if len(floating) == 1 and indices and all(value.dtype != torch.bool for value in indices):
            yield event, floating[0]


def _made(subject: Subject, event: ReplayedCall, table: int) -> SourceLocation | None:
    """Return where the index that a call reads is computed, if this run computes it on another line."""
    sources = [sources for place, sources in enumerate(event.sources) if place != table]
    calls = (call for index in sources for call in subject.graph.upstream(index) if call.name in _ARITHMETIC)
    last = max(calls, key=lambda call: call.order, default=None)
    place = subject.place(last.refs[0]) if last is not None else None
    here = subject.place(event.refs[0])
    return None if place is None or here is None or (place.file, place.line) == (here.file, here.line) else place


def _entries(
    subject: Subject, visible: VisibleKeys, event: ReplayedCall, place: int, tokens: int
) -> tuple[_Grid, list[Tensor]] | None:
    """Return the grid for which a table has rows, and for each head the entry that each pair of its tokens gets.

    None if there is no such grid, or not every pair gets an entry.
    """
    table = event.operand_values[place]
    heads = visible.keys.shape[1]
    counts = [table.numel()] + ([table.numel() // heads] if table.numel() % heads == 0 else [])
    grids = {count: grid for count in counts if (grid := _grid(tokens, count)) is not None}
    mapping = term_map(subject, visible, event.refs[0]) if grids else None
    if mapping is None:
        return None
    numbers = torch.arange(table.numel(), dtype=table.dtype).reshape(table.shape)
    found = recompute(event, {place: numbers}).double()
    known = mapping.known & (mapping.source >= 0)
    if bool((found != found.round()).any()) or not bool(known.any(0).all()):
        return None
    entry = torch.where(known, found.flatten()[mapping.source.clamp(min=0)], -1.0).amax(0)
    are_apart = sum(_distinct(own) for own in entry) == _distinct(entry)
    grid = grids.get(table.numel() // heads if are_apart else table.numel())
    if grid is None:
        return None
    return grid, [own[grid.before :, grid.before :] for own in entry]


def _grid(tokens: int, rows: int) -> _Grid | None:
    """Return the grid of tokens for whose offsets a table has exactly as many rows; there is one at most."""
    for before, more in _BEFORE_THE_GRID:
        count = tokens - before
        for height in range(2, count // 2 + 1):
            grid = _Grid(height, count // height, before)
            if count % height == 0 and grid.offsets + more == rows:
                return grid
    return None


def _are_paired(rows: Tensor, offsets: Tensor) -> bool:
    """Return whether each offset has one row, and each row one offset."""
    pairs = set(zip(rows.flatten().tolist(), offsets.flatten().tolist(), strict=True))
    return len(pairs) == _distinct(rows) == _distinct(offsets)


def _distinct(numbers: Tensor) -> int:
    return len(set(numbers.flatten().tolist()))

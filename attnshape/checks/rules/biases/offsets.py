"""Does each offset on a grid of tokens have its own row in a table of relative positions?

Swin (Liu et al. 2021, https://arxiv.org/abs/2103.14030, section 3.2) has a row for each of the (2h - 1)(2w - 1)
offsets in a window of h by w tokens. BEiT (Bao et al. 2021, https://arxiv.org/abs/2106.08254) has three more, for a
class token. Video Swin (Liu et al. 2021, https://arxiv.org/abs/2106.13230, section 3.2) has a third axis.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations

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
_HINTS = {
    2: "multiply the vertical offset by the number of horizontal ones: dy * (2 * width - 1) + dx",
    3: "multiply each offset by the numbers of offsets along all axes after it: "
    "(dz * (2 * height - 1) + dy) * (2 * width - 1) + dx",
}
"""The hint for a grid, by the number of its axes."""


@dataclass(frozen=True)
class _Grid:
    """Tokens on a grid of two or three axes, row by row, after some that have no place on it."""

    sides: tuple[int, ...]
    """The number of tokens along each axis, in no certain order."""
    before: int

    @property
    def offsets(self) -> int:
        """How many offsets there are between two of its tokens."""
        return math.prod([2 * side - 1 for side in self.sides])

    def numbers(self, sides: Sequence[int]) -> Tensor:
        """Return a number for the offset of each pair of tokens, if the grid has these sides in this order."""
        rest = torch.arange(math.prod(sides))
        found = torch.zeros(len(rest), len(rest), dtype=torch.long)
        for place, side in enumerate(reversed(sides)):
            along = rest % side
            rest = rest // side
            found += (along[:, None] - along) * (2 * len(found)) ** place
        return found


def check_offsets(subject: Subject, visible: VisibleKeys) -> Iterator[Violation | Verification]:
    """Read which row of a table each pair of tokens gets, where the table has a row for each offset on a grid."""
    queries, keys = visible.keys.shape[-2:]
    lookups = list(_lookups(subject, visible)) if queries == keys else []
    for event, place in lookups[:_MOST_LOOKUPS]:
        entries = _entries(subject, visible, event, place, queries)
        if entries is None:
            continue
        grids, entry = entries
        if any(_has_own_rows(grid, entry) for grid in grids):
            yield Verification("each offset on the grid has its own row in the table of biases")
            continue
        grid = grids[0]
        read = min(_distinct(own) for own in _on_the_grid(grid, entry))
        if read < grid.offsets:
            shape = " by ".join(map(str, sorted(grid.sides)))
            message = (
                f"different offsets share a row of the table: {read} of its {grid.offsets} rows for a grid of "
                f"{shape} tokens are read"
            )
            evidence = "replaced the table by the numbers of its entries, and read them at the softmax"
            hint = _HINTS[len(grid.sides)]
            yield Violation("AS715", message, event.refs[0], hint, evidence, made=_made(subject, event, place))
            return


def _on_the_grid(grid: _Grid, entry: Tensor) -> Sequence[Tensor]:
    """Return the entry that each pair of tokens on the grid gets, for each head."""
    return [own[grid.before :, grid.before :] for own in entry]


def _has_own_rows(grid: _Grid, entry: Tensor) -> bool:
    """Return whether, for an order of the grid's sides, each offset has one row in each head."""
    rows = _on_the_grid(grid, entry)
    return any(all(_are_paired(own, grid.numbers(sides)) for own in rows) for sides in {*permutations(grid.sides)})


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
) -> tuple[Sequence[_Grid], Tensor] | None:
    """Return the grids for which a table has rows, and the entry that each pair of tokens gets in each head.

    None if there is no such grid, or not every pair gets an entry.
    """
    table = event.operand_values[place]
    heads = _heads(subject, visible)
    counts = [table.numel()] + ([table.numel() // heads] if table.numel() % heads == 0 else [])
    grids = {count: fitting for count in counts if (fitting := list(_grids(tokens, count)))}
    mapping = term_map(subject, visible, event.refs[0]) if grids else None
    if mapping is None:
        return None
    numbers = torch.arange(table.numel(), dtype=table.dtype).reshape(table.shape)
    found = recompute(event, {place: numbers}).double()
    known = (mapping.known & (mapping.source >= 0)).reshape(-1, heads, tokens, tokens)
    if bool((found != found.round()).any()) or not bool(known.any(0).all()):
        return None
    every = torch.where(known, found.flatten()[mapping.source.clamp(min=0)].reshape(known.shape), -1.0)
    entry = every.amax(0)
    if bool(((every != entry) & known).any()):  # the windows have entries of their own
        return None
    are_apart = sum(_distinct(own) for own in entry) == _distinct(entry)
    own_grids = grids.get(table.numel() // heads if are_apart else table.numel())
    return (own_grids, entry) if own_grids is not None else None


def _heads(subject: Subject, visible: VisibleKeys) -> int:
    """Return the number of heads, without the windows that may be laid out with them, outside of the heads."""
    together, heads = visible.keys.shape[1], subject.numbers.get("H", 0)
    return heads if heads > 1 and together % heads == 0 else together


def _grids(tokens: int, rows: int) -> Iterator[_Grid]:
    """Yield the grids of tokens for whose offsets a table has exactly as many rows, those of two axes first."""
    for axes in _HINTS:
        for before, more in _BEFORE_THE_GRID:
            for sides in _sides(tokens - before, axes, 2):
                grid = _Grid(sides, before)
                if grid.offsets + more == rows:
                    yield grid


def _sides(tokens: int, axes: int, least: int) -> Iterator[tuple[int, ...]]:
    """Yield the ascending sides, none below the least one, of grids of as many tokens."""
    if axes == 1:
        yield from [(tokens,)] if tokens >= least else []
        return
    for side in range(least, tokens // least ** (axes - 1) + 1):
        if tokens % side == 0:
            yield from ((side, *others) for others in _sides(tokens // side, axes - 1, side))


def _are_paired(rows: Tensor, offsets: Tensor) -> bool:
    """Return whether each offset has one row, and each row one offset."""
    pairs = set(zip(rows.flatten().tolist(), offsets.flatten().tolist(), strict=True))
    return len(pairs) == _distinct(rows) == _distinct(offsets)


def _distinct(numbers: Tensor) -> int:
    return len(set(numbers.flatten().tolist()))

"""Cells of a grid: which token lies in which row and column, and which numbers follow from that."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from attnshape.checks.attention.token_positions import NO_TOKEN

_CLOSE = 1e-5
"""The relative difference up to which two numbers count as equal: tables of angles may be in single precision."""
_MOST_CLASSES = 0.5
"""How many offsets at most there may be for each pair of tokens, so that pairs of one offset can be compared."""


@dataclass(frozen=True)
class Cells:
    """The row and the column of each token."""

    rows: Tensor
    columns: Tensor

    @property
    def are_known(self) -> Tensor:
        """Which tokens lie on the grid, and not beside it as a class token does."""
        return self.rows != NO_TOKEN


@dataclass(frozen=True)
class Miscounted:
    """Another way to count rows and columns, from the number of a token."""

    of_rows: int
    """By what the number is divided for the row."""
    of_columns: int
    """The remainder of what division is the column."""

    def cells(self, tokens: Cells) -> Cells:
        """Return the cells of tokens counted so, along the last axis."""
        known = tokens.are_known
        number = known.long().cumsum(-1) - 1
        rows, columns = number // self.of_rows, number % self.of_columns
        return Cells(torch.where(known, rows, NO_TOKEN), torch.where(known, columns, NO_TOKEN))


def miscounted(sides: tuple[int, int]) -> Iterator[Miscounted]:
    """Yield the ways to count the cells of a grid that divide by either of its sides."""
    yield from (Miscounted(*pair) for pair in itertools.product(sides, repeat=2))


def follows_offsets(numbers: Tensor, chosen: Tensor, queries: Cells, keys: Cells) -> bool:
    """Return whether numbers of pairs of tokens, (…, queries, keys), are equal wherever their offsets on a grid are.

    Only the chosen pairs whose tokens lie on the grid count. Each index of the other axes is looked at by itself.
    """
    chosen = chosen & queries.are_known[..., :, None] & keys.are_known[..., None, :]
    down = queries.rows[..., :, None] - keys.rows[..., None, :]
    right = queries.columns[..., :, None] - keys.columns[..., None, :]
    span = 2 * int(max(one.max() for one in (down.abs(), right.abs()))) + 1
    offset = (down + span) * 3 * span + right + span
    slices = torch.arange(numbers[..., 0, 0].numel()).reshape(*numbers.shape[:-2], 1, 1)
    classes = (slices * 9 * span**2 + offset).expand(numbers.shape)[chosen]
    if not classes.numel():
        return False
    found, place = torch.unique(classes, return_inverse=True)
    if len(found) > _MOST_CLASSES * len(place):
        return False
    values = numbers[chosen].double()
    zeros = torch.zeros(len(found), dtype=values.dtype)
    most, least = (zeros.scatter_reduce(0, place, values, how, include_self=False) for how in ("amax", "amin"))
    return bool((most - least <= _CLOSE * float(values.abs().max())).all())


def follows_cells(numbers: Tensor, cells: Cells) -> bool:
    """Return whether numbers of tokens, (tokens, features), are sums of one number of the row and one of the column."""
    known = cells.are_known
    values = numbers[known].double()
    lines = [torch.nn.functional.one_hot(one[known]) for one in (cells.rows, cells.columns)]
    design = torch.cat(lines, dim=-1).double()
    if design.shape[1] > _MOST_CLASSES * 2 * design.shape[0]:
        return False
    rest = values - design @ (torch.linalg.pinv(design) @ values)
    return bool((rest.abs() <= _CLOSE * max(float(values.abs().max()), 1e-30)).all())

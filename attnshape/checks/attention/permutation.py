"""Reorders the elements of a batch: in one argument or in all of them, and compares the results with reordered ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial

import torch
from torch import Tensor

from attnshape.checks.attention.perturbation import changed_indices, differs
from attnshape.checks.interventions.experiment import ReplayRun
from attnshape.checks.interventions.replay import Replace
from attnshape.checks.interventions.small_sizes import involves


def cycle(number: int) -> list[int]:
    """Return an order of the elements in which each is at another's place.

    It commutes neither with shifts nor with a reversal from 4 elements on, so code that mixes up elements in one of
    these ways doesn't pass for right.

    >>> cycle(5)
    [2, 3, 1, 4, 0]
    """
    visited = [0, 2, 1, *range(3, number)] if number > 2 else list(range(number))
    following = dict(zip(visited, [*visited[1:], *visited[:1]], strict=True))
    return [following[element] for element in range(number)]


def reordered(value: Tensor, axis: int, order: list[int], inner: int = 1) -> Tensor:
    """Return a tensor whose elements along an axis are in another order.

    The axis may fold the elements' axis with others, with `inner` indices for each of its elements inside.
    """
    number = len(order)
    outer = value.shape[axis] // (number * inner)
    parts = value.reshape(*value.shape[:axis], outer, number, inner, *value.shape[axis + 1 :])
    return parts.index_select(axis + 1, torch.tensor(order)).reshape(value.shape)


def reorder(axis: int, order: list[int], inner: int = 1) -> Replace:
    """Return the replacement that reorders the elements along an axis; see `reordered`."""
    return partial(reordered, axis=axis, order=order, inner=inner)


def is_reordered(
    before: Tensor, after: Tensor, order: list[int], folds: Iterable[tuple[int, int]], tolerance: float
) -> bool:
    """Return whether a result is another one with its elements in this order, along one of some axes.

    `folds` are these axes, as `element_axes` yields them.
    """
    return before.shape == after.shape and any(
        not differs(reordered(before, axis, order, inner), after, tolerance).any() for axis, inner in folds
    )


def element_axes(shape: tuple[int, ...], symbol: str, numbers: Mapping[str, int]) -> Iterator[tuple[int, int]]:
    """Yield each axis that may be a symbol's, alone or folded, with the number of indices inside each element.

    If an axis has the symbol's size, folded ones are left out.
    """
    number = numbers[symbol]
    exact = [axis for axis, size in enumerate(shape) if size == number]
    if exact:
        yield from ((axis, 1) for axis in exact)
        return
    for axis, size in enumerate(shape):
        if involves(size, symbol, numbers):
            rest = size // number
            yield from ((axis, inner) for inner in range(1, rest + 1) if rest % inner == 0)


def changed_elements(
    before: ReplayRun, after: ReplayRun, symbol: str, numbers: Mapping[str, int], tolerance: float
) -> set[int]:
    """Return the elements of the batch whose results differ between two runs.

    Results whose shape differs, and those without an axis of elements, don't count. Where an axis can be read in
    several ways, the one with the fewest elements counts.
    """
    elements: set[int] = set()
    others = dict(after.returned)
    for path, value in before.returned:
        other = others.get(path)
        if other is None or other.shape != value.shape or not value.numel():
            continue
        mask = differs(value, other, tolerance)
        readings = [
            {index // inner % numbers[symbol] for index in changed_indices(mask, axis)}
            for axis, inner in element_axes(value.shape, symbol, numbers)
        ]
        elements |= min(readings, key=len, default=set())
    return elements

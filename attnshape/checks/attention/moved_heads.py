"""Follows an axis of heads, of a table or an argument, through calls that only move, select, add and scale numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor

from attnshape.checks.attention.cores import RunGraph
from attnshape.checks.attention.perturbation import changed_indices, differs
from attnshape.checks.interventions.experiment import ReplayRun
from attnshape.checks.interventions.replay import Producer, ReplayedCall
from attnshape.tracing import operations as ops

_KEEP_APART = (
    (ops.SAME_VALUES | ops.JOINS | ops.GATHERS | ops.PATTERNED_LAYOUT | ops.FILLS | ops.MASKS | ops.LOWER_BOUNDS)
    | (ops.ADDITIONS | ops.SUBTRACTIONS | ops.REVERSED_SUBTRACTIONS | ops.SCALINGS | ops.NONLINEARITIES)
    | (ops.EXPONENTIALS | ops.ROTATION_ARITHMETIC | {"pad", "roll", "flip"})
)
"""The operations through which a tensor's numbers stay apart: each result comes from one of them."""


def moving_path(graph: RunGraph, name: str, sources: tuple[Producer, ...]) -> list[ReplayedCall]:
    """Return the calls between an input or a parameter and a tensor; none if other calls than moves are among them."""
    downstream = graph.downstream({name})
    calls = list(graph.upstream(sources))[::-1]
    path = [event for event in calls if any(ref in downstream for ref in event.refs)]
    return path if all(event.name in _KEEP_APART for event in path) else []


def first_scattered(
    base: ReplayRun, run: ReplayRun, path: Iterable[ReplayedCall], heads: Mapping[int, int], folded: bool = True
) -> ReplayedCall | None:
    """Return the first call in whose result a change of one head is at more heads than it should be.

    `heads` are the numbers of heads that there may be, with how many of them should change. With `folded`, heads may be
    folded with something else, and a result without any axis of heads tells nothing; else it is the one.
    """
    for event in path:
        mask = differs(base.value(event.refs[0]), run.value(event.refs[0]), 0)
        over = [
            _least_changed(mask, axis, number) - most
            for number, most in heads.items()
            for axis, size in enumerate(mask.shape)
            if size == number or (folded and size and size % number == 0)
        ]
        if bool(mask.any()) and (min(over) > 0 if over else not folded):
            return event
    return None


def _least_changed(mask: Tensor, axis: int, heads: int) -> int:
    """Return how many heads have a true element, in whichever order they are folded with something else."""
    changed, rest = changed_indices(mask, axis), mask.shape[axis] // heads
    strides = (inner for inner in range(1, rest + 1) if rest % inner == 0)
    return min(len({index // inner % heads for index in changed}) for inner in strides)

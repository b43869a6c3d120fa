"""Does each token of a map look at its own place on it, as (x, y)?

Deformable attention (Zhu et al. 2020, https://arxiv.org/abs/2010.04159, section 4.1) adds learned offsets to a table of
places, one for each token of the map. A flow does so to sample the map beside each pixel.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Intervention
from attnshape.checks.interventions.replay import OutputRef, ReplayedCall
from attnshape.checks.rules.grids.samples import samplings
from attnshape.checks.rules.protocol import Violation
from attnshape.tracing import operations as ops

_CLOSE = 1e-5
_VARIES = 1e-3
_MOST_ADDED = 4


def check_references(subject: Subject) -> Iterator[Violation]:
    """Set what is added to tables of places to zero, and compare the sampled positions with those of the tokens."""
    for sampled in samplings(subject):
        height, width = sampled.operand_values[0].shape[-2:]
        for event in _added_to_tables(subject, sampled):
            places = _without(subject, sampled, event, height, width)
            if places is None:
                continue
            if _follow(places[..., 1], places[..., 0]):
                yield _violation(subject, event, height, width)
            return


def _added_to_tables(subject: Subject, sampled: ReplayedCall) -> list[ReplayedCall]:
    """Return the last calls on the way to sampled positions that add data to a table."""
    found = []
    for event in subject.graph.upstream(sampled.sources[1]):
        if event.name in ops.ADDITIONS and len(event.sources) == 2 and event.unusual is None:
            of_data = [subject.graph.carries_data(sources) for sources in event.sources]
            if sorted(of_data) == [False, True] and event.operand_values[of_data.index(False)].numel() > 1:
                found.append(event)
    return found[:_MOST_ADDED]


def _without(subject: Subject, sampled: ReplayedCall, event: ReplayedCall, height: int, width: int) -> Tensor | None:
    """Return the places where a map is sampled without the data that a call adds, (height, width, 2).

    None if they aren't the same everywhere else, or there isn't one for each token of the map.
    """
    data = next(sources for sources in event.sources if subject.graph.carries_data(sources))[-1]
    if isinstance(data, OutputRef):
        change = Intervention(results={data: torch.zeros_like})
    else:
        change = Intervention(inputs={data: torch.zeros_like})
    run = subject.experiment.run(change)
    if not run.follows(subject.base):
        return None
    found = run.events[sampled.order - 1].operand_values[1].double()
    for axis in range(found.ndim - 1):
        if found.shape[axis] == height * width:
            found = found.reshape(*found.shape[:axis], height, width, *found.shape[axis + 1 :])
        if found.ndim > axis + 2 and tuple(found.shape[axis : axis + 2]) == (height, width):
            places = found.movedim((axis, axis + 1), (-3, -2)).reshape(-1, height, width, 2)
            return places[0] if bool((places - places[:1]).abs().max() <= _CLOSE) else None
    return None


def _follow(x: Tensor, y: Tensor) -> bool:
    """Return whether x only grows from column to column, and y from row to row."""
    alike = (x.diff(dim=0), y.diff(dim=1))
    different = (x.diff(dim=1), y.diff(dim=0))
    return all(bool((step.abs() <= _CLOSE).all()) for step in alike) and all(
        bool((step.abs() > _VARIES).all()) for step in different
    )


def _violation(subject: Subject, event: ReplayedCall, height: int, width: int) -> Violation:
    message = (
        f"the places of the tokens of a map of height {height} and width {width} are given as (y, x), and sampled as "
        "(x, y)"
    )
    hint = "put the column first: the last axis of what grid_sample reads is (x, y)"
    evidence = "set what is added to the table of places to zero, and read where the map is sampled"
    table = next(sources for sources in event.sources if not subject.graph.carries_data(sources))
    joins = (one for one in subject.graph.upstream(table) if one.name in ops.JOINS)
    at = next((one.refs[0] for one in joins), event.refs[0])
    return Violation("AS125", message, at, hint, evidence)

"""Joined weights of which one part is selected twice, and another one never.

A weight that is passed to a function, or one with an axis of heads, may hold several projections one after the other.
Their sizes add up to its own, so that each number should be selected once.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import torch
from torch import Tensor

from attnshape.checks.attention.perturbation import others_where
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Intervention
from attnshape.checks.interventions.replay import ReplayedCall
from attnshape.checks.rules.protocol import Violation
from attnshape.tracing.operations import SELECTIONS

_FEWEST_AXES = 3
"""Of parameters with two axes, the gradients tell the parts without effect, other than rows that are indexed."""


def check_selected_twice(subject: Subject) -> Iterator[Violation]:
    """Change the numbers of joined weights that no selection contains, where selections overlap instead."""
    for name, value in _weights(subject):
        readers = [event for event, _ in subject.graph.consumers.get(name, [])]
        if len(readers) < 2 or any(event.name not in SELECTIONS for event in readers):
            continue
        for axis in range(value.ndim):
            again = _overlapping(value, axis, readers)
            if again is None:
                continue
            unread = ~torch.isin(value, torch.cat([event.values[0].flatten() for event in readers]))
            change = others_where(unread)
            is_input = name in subject.base.inputs
            intervention = Intervention(inputs={name: change}) if is_input else Intervention(parameters={name: change})
            if bool(unread.any()) and subject.perturb(intervention).has_no_effect:
                count = int(unread.any(tuple(one for one in range(value.ndim) if one != axis)).sum())
                share = Fraction(count, value.shape[axis])
                message = (
                    f"{share} of {name} along axis {axis} has no effect on the result: another part is selected twice"
                )
                hint = "select each part once: the second one starts where the first one ends"
                if again.values[0].ndim < value.ndim:
                    hint = "take each index once: functions that a loop makes all see its last index"
                evidence = f"changed the numbers of {name} that no selection contains"
                yield Violation("AS807", message, again.refs[0], hint, evidence)
                break


def _weights(subject: Subject) -> Iterator[tuple[str, Tensor]]:
    """Yield the arguments that are no data, and the parameters with several axes."""
    for name, value in subject.base.inputs.items():
        is_data = name in subject.inputs or name in subject.claims.arguments
        if value.is_floating_point() and value.ndim > 1 and not is_data:
            yield name, value
    for name, value in subject.parameters.items():
        if value.is_floating_point() and value.ndim > 1:
            yield name, value


def _overlapping(value: Tensor, axis: int, readers: list[ReplayedCall]) -> ReplayedCall | None:
    """Return a selection that contains numbers of an earlier one, if parts of an axis are as large together as all."""
    extents = [_extent(event.values[0].shape, value.shape, axis) for event in readers]
    if None in extents or sum(extent or 1 for extent in extents) != value.shape[axis]:
        return None
    if value.ndim < _FEWEST_AXES and any(extents):
        return None
    for place, event in enumerate(readers):
        if any(bool(torch.isin(event.values[0], other.values[0]).any()) for other in readers[:place]):
            return event
    return None


def _extent(part: torch.Size, whole: torch.Size, axis: int) -> int | None:
    """Return how many indices of an axis a part has, 0 if it is one that is indexed; None if it is no such part."""
    others = whole[:axis] + whole[axis + 1 :]
    if part == others:
        return 0
    return part[axis] if len(part) == len(whole) and part[:axis] + part[axis + 1 :] == others else None

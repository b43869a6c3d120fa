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
"""Of parameters with two axes, the gradients tell the parts without effect."""


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
                evidence = f"changed the numbers of {name} that no selection contains"
                yield Violation("AS807", message, again.refs[0], hint, evidence)
                break


def _weights(subject: Subject) -> Iterator[tuple[str, Tensor]]:
    """Yield the arguments that are no data, and the parameters with an axis besides those of a matrix."""
    for name, value in subject.base.inputs.items():
        is_data = name in subject.inputs or name in subject.claims.arguments
        if value.is_floating_point() and value.ndim > 1 and not is_data:
            yield name, value
    for name, value in subject.parameters.items():
        if value.is_floating_point() and value.ndim >= _FEWEST_AXES:
            yield name, value


def _overlapping(value: Tensor, axis: int, readers: list[ReplayedCall]) -> ReplayedCall | None:
    """Return a selection that contains numbers of an earlier one, if parts of an axis are as large together as all."""
    shapes = [event.values[0].shape for event in readers]
    others = [place for place in range(value.ndim) if place != axis]
    if any(len(shape) != value.ndim or any(shape[one] != value.shape[one] for one in others) for shape in shapes):
        return None
    if sum(shape[axis] for shape in shapes) != value.shape[axis]:
        return None
    for place, event in enumerate(readers):
        if any(bool(torch.isin(event.values[0], other.values[0]).any()) for other in readers[:place]):
            return event
    return None

"""Is every part of the cached keys and values that a call gets used, such as those of each layer?"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from attnshape.checks.attention.layers import format_layers, layers
from attnshape.checks.attention.operands import operands
from attnshape.checks.attention.perturbation import other_numbers, others_at
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Intervention
from attnshape.checks.rules.caches.sharing import line_of_values
from attnshape.checks.rules.protocol import Violation
from attnshape.checks.rules.unused_inputs import named_role

_MOST_PARTS = 16
"""How many indices an axis may have that are changed one by one."""
_INDEX = re.compile(r"\[\d+\]")


@dataclass(frozen=True)
class _Part:
    """One of several parts of the cached keys and values, such as those of one layer."""

    name: str
    change: Intervention


def unused_parts(subject: Subject, cached: Collection[str]) -> Iterator[Violation]:
    """Change each part of the caches alone: one that changes no result is unused, if others of its kind do.

    Layers that don't pass their number all read the cache of the first one.
    """
    for parts in _kinds(subject, cached):
        moved = [subject.perturb(part.change) for part in parts]
        if not all(one.comparable and one.returned() for one in moved):
            continue
        unused = [part for part, one in zip(parts, moved, strict=True) if one.has_no_effect]
        used = [part for part, one in zip(parts, moved, strict=True) if not one.has_no_effect]
        if unused and used:
            yield _violation(subject, unused[0], used[0])
            return


def _kinds(subject: Subject, cached: Collection[str]) -> Iterator[Sequence[_Part]]:
    """Yield the parts along each axis of a cache that counts something, and the caches of a list or a tuple."""
    for name in cached:
        shape = subject.base.inputs[name].shape
        for axis in subject.axes_that_stay(name):
            if 1 < shape[axis] <= _MOST_PARTS and axis < len(shape) - 2:  # the last two hold tokens and features
                before = ":, " * axis
                changes = [Intervention(inputs={name: others_at(axis, index)}) for index in range(shape[axis])]
                yield [_Part(f"{name}[{before}{index}]", change) for index, change in enumerate(changes)]
    lists: dict[str, list[_Part]] = {}
    for name in cached:
        part = _Part(name, Intervention(inputs={name: other_numbers}))
        for index in _INDEX.finditer(name) if named_role(name) is None else ():  # else it is an unused key or value
            lists.setdefault(f"{name[: index.start()]}[*]{name[index.end() :]}", []).append(part)
    yield from (parts for parts in lists.values() if 1 < len(parts) <= _MOST_PARTS)


def _violation(subject: Subject, unused: _Part, used: _Part) -> Violation:
    moved = subject.perturb_each(used.change)
    values = [operand for operand in operands(subject) if operand.role == "value"]
    readers = [value for value in values if moved.run.follows(subject.base) and moved.changes(value.core.context)]
    paths = layers(subject)
    names = [paths[reader.core.context] for reader in readers if reader.core.context in paths]
    by = f" by {format_layers(names)}" if len(names) > 1 else ""
    message = f"the result does not depend on the cache {unused.name}, while {used.name} is read{by}"
    hint = "read each part of the cache where it belongs: pass every layer its own number"
    at, place = line_of_values(subject, readers[-1]) if readers else (None, None)
    evidence = f"changed all of {unused.name}"
    return Violation("AS804", message, at, hint, evidence, place=place if len(readers) > 1 else None)

"""Does code that joins the parts of a tensor take each part once?

Merging patches (Liu et al. 2021, https://arxiv.org/abs/2103.14030, section 3.1) joins the four pixels of each square of
a map along the channels. With one pair of indices written twice, one pixel of four is never used.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attnshape.checks.attention.cores import moves_only
from attnshape.checks.attention.perturbation import others_where
from attnshape.checks.attention.products import recompute
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Intervention
from attnshape.checks.interventions.replay import OutputRef, Producer, ReplayedCall
from attnshape.checks.rules.protocol import Outcome, Violation
from attnshape.tracing import operations as ops

CODES: tuple[str, ...] = ("AS124",)
TOPIC = "parts that are joined"
_FEWEST_PARTS = 3
"""Of two equal parts nothing tells whether the tensor is meant to be doubled."""


@dataclass(frozen=True)
class _Part:
    """A part of a tensor, which layout operations take from it."""

    whole: Producer
    shape: torch.Size
    """The shape of the whole tensor."""
    indices: Tensor
    """For each number of the part its place in the flattened whole tensor."""
    taken: OutputRef
    """What the last call that takes a part returns."""


def check(subject: Subject) -> Iterator[Outcome]:
    """Look for joins of all parts of one tensor in which one part stands for another."""
    for event in subject.base.events:
        if event.name not in ops.JOINS or len(event.sources) < _FEWEST_PARTS:
            continue
        parts = [_part(subject, sources) for sources in event.sources]
        known = [part for part in parts if part is not None]
        if len(known) == len(parts) and len({part.whole for part in known}) == 1:
            yield from _judged(subject, known)


def _part(subject: Subject, sources: tuple[Producer, ...]) -> _Part | None:
    """Return the part of a tensor that an operand is; None if it isn't one."""
    path: list[tuple[ReplayedCall, int]] = []
    while len(sources) == 1 and isinstance(source := sources[0], OutputRef):
        event = subject.base.event(source)
        if len(event.operand_values) != 1 or event.in_place or not moves_only(event) or event.name in ops.DROPOUTS:
            break
        path.append((event, source.output))
        sources = event.sources[0]
    if not path or len(sources) != 1 or not subject.graph.carries_data(sources):
        return None
    # what is read from the whole tensor is a part; a layout of the whole that comes before belongs to it
    path = list(itertools.dropwhile(_is_whole, path[::-1]))
    if not path:
        return None
    whole = path[0][0].operand_values[0]
    numbers = torch.arange(whole.numel(), dtype=whole.dtype).reshape(whole.shape)
    for event, output in path:
        numbers = recompute(event, {0: numbers}, output)
    event, output = next(one for one in reversed(path) if not _is_whole(one))
    return _Part(path[0][0].sources[0][0], whole.shape, numbers.flatten().long(), OutputRef(event.order, output))


def _is_whole(step: tuple[ReplayedCall, int]) -> bool:
    event, output = step
    return event.values[output].numel() == event.operand_values[0].numel()


def _judged(subject: Subject, parts: Sequence[_Part]) -> Iterator[Violation]:
    size = parts[0].indices.numel()
    again = [
        part
        for place, part in enumerate(parts)
        if any(torch.equal(part.indices, other.indices) for other in parts[:place])
    ]
    if not again or any(part.indices.numel() != size for part in parts):
        return
    taken = torch.zeros(parts[0].shape.numel(), dtype=torch.bool)
    for part in parts:
        taken[part.indices] = True
    is_partition = int(taken.sum()) == size * (len(parts) - len(again)) and int((~taken).sum()) == size * len(again)
    if not is_partition or _has_effect(subject, parts[0], ~taken):
        return
    share = f"{len(again)}/{len(parts)}"
    message = (
        f"of {len(parts)} parts of one tensor that are joined this one comes twice, and {share} of it is never used"
    )
    hint = "take each part once: compare the indices of the parts that are joined"
    evidence = "followed the indices of each part, and changed what none of them has: no result changed"
    yield Violation("AS124", message, again[0].taken, hint, evidence)


def _has_effect(subject: Subject, part: _Part, rest: Tensor) -> bool:
    """Return whether a result depends on the numbers that no part has."""
    change = others_where(rest.reshape(part.shape))
    whole = part.whole
    changed = (
        Intervention(results={whole: change}) if isinstance(whole, OutputRef) else Intervention(inputs={whole: change})
    )
    moved = subject.perturb(changed)
    return not moved.comparable or any(bool(mask.any()) for _, mask in moved.returned())

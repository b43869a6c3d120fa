"""Are the positions at which a map is sampled scaled by its width along x, and by its height along y?

Deformable attention (Zhu et al. 2020, https://arxiv.org/abs/2010.04159, section 4.1) samples maps at offsets from
reference points. `grid_sample` reads positions as (x, y), and shapes are (height, width).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from attnshape.checks.attention.perturbation import PerturbationDiff
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Intervention
from attnshape.checks.interventions.replay import OutputRef, Producer, Replace, ReplayedCall
from attnshape.checks.rules.protocol import Verification, Violation
from attnshape.tracing import operations as ops
from attnshape.tracing.raw import SourceLocation

_STEP = 0.01
"""By how much a coordinate is moved."""
_CLOSE = 1e-3
_MOST_ALIKE = 0.9
"""The share of positions, of those that move, that have to move by the same number: the others may be clamped."""
_MOST_SAMPLED = 4
_MOST_SCALED = 6
_SCALES = ops.SCALINGS | ops.REVERSED_DIVISIONS
_KEEPS_COORDINATES = ops.SELECTIONS | ops.SPLITS | ops.ADDITIONS | ops.SUBTRACTIONS | _SCALES


@dataclass(frozen=True)
class _Scaled:
    """Coordinates that a call scales, as a tensor whose last axis holds both."""

    source: Producer
    event: ReplayedCall
    by: tuple[Producer, ...]
    """What they are divided or multiplied by, if it is a tensor."""


def check_samples(subject: Subject) -> Iterator[Violation | Verification]:
    """Move the coordinates that are scaled, one and then the other, and look at how far sampled positions move."""
    judged = False
    runs: dict[tuple[Producer, int], PerturbationDiff] = {}
    for sampled in samplings(subject):
        height, width = sampled.operand_values[0].shape[-2:]
        for scaled in itertools.islice(_scaled(subject, sampled), _MOST_SCALED):
            ratio = _ratio(subject, sampled, scaled, runs)
            if ratio is None:
                continue
            sizes = [(height, width), *_sizes_of_maps(subject, sampled, height < width)]
            if any(_is_close(ratio, w, h) or _is_close(ratio, w - 1, h - 1) for h, w in sizes):
                yield _violation(subject, scaled, height, width)
                return
            judged = judged or any(_is_close(ratio, h, w) or _is_close(ratio, h - 1, w - 1) for h, w in sizes)
    if judged:
        yield Verification(
            "positions at which maps are sampled are scaled by the width along x, and the height along y"
        )


def samplings(subject: Subject) -> Iterator[ReplayedCall]:
    """Yield the first calls that sample maps whose height and width differ."""
    found = (
        event
        for event in subject.base.events
        if event.name in ops.GRID_SAMPLINGS and len(event.operand_values) == 2 and event.operand_values[0].ndim == 4
    )
    maps = ((event, event.operand_values[0].shape[-2:]) for event in found)
    return itertools.islice((event for event, (h, w) in maps if h != w and min(h, w) > 2), _MOST_SAMPLED)


def _sizes_of_maps(subject: Subject, sampled: ReplayedCall, is_wide: bool) -> Iterator[tuple[int, int]]:
    """Yield the heights and widths of the maps that are convolved on the way to the positions, if as wide or narrow."""
    for event in subject.graph.upstream(sampled.sources[1]):
        if event.name in ops.CONVOLUTIONS and event.values[0].ndim == 4:
            height, width = event.values[0].shape[-2:]
            if height != width and min(height, width) > 2 and (height < width) == is_wide:
                yield height, width


def _scaled(subject: Subject, sampled: ReplayedCall) -> Iterator[_Scaled]:
    """Yield the coordinates that are scaled on the way to the positions of samples, the last ones first."""
    known: set[Producer] = set()
    for event in subject.graph.upstream(sampled.sources[1]):
        if event.name not in _SCALES or event.unread:
            continue
        for place, sources in enumerate(event.sources):
            source = _both_coordinates(subject, sources, event.operand_values[place])
            by = tuple(one for other, those in enumerate(event.sources) if other != place for one in those)
            if source is not None and source not in known:
                known.add(source)
                yield _Scaled(source, event, by)


def _both_coordinates(subject: Subject, sources: tuple[Producer, ...], value: Tensor) -> Producer | None:
    """Return the tensor that has two coordinates on its last axis, of which an operand may be one; None without one."""
    while sources:
        source = sources[-1]
        if not value.is_floating_point():
            return None
        if value.ndim > 1 and value.shape[-1] == 2 and value.numel() > 2:
            made = subject.base.value(source) if isinstance(source, OutputRef) else subject.inputs.get(source)
            return source if made is not None and made.shape == value.shape else None
        if not isinstance(source, OutputRef):
            return None
        event = subject.base.event(source)
        if event.name not in _KEEPS_COORDINATES or not event.sources or event.unread:
            return None
        sizes = [one.numel() for one in event.operand_values]
        largest = sizes.index(max(sizes))
        sources, value = event.sources[largest], event.operand_values[largest]
    return None


def _ratio(
    subject: Subject, sampled: ReplayedCall, scaled: _Scaled, runs: dict[tuple[Producer, int], PerturbationDiff]
) -> float | None:
    """Return how far a coordinate moves positions along x, divided by how far the other one moves them along y.

    None unless each of two coordinates moves all positions by one number, along its own axis alone.
    """
    gains: dict[int, float] = {}
    for coordinate in (0, 1):
        key = (scaled.source, coordinate)
        if key not in runs:
            runs[key] = subject.perturb(_moved(scaled.source, coordinate))
        run = runs[key]
        if not run.comparable:
            return None
        before = sampled.operand_values[1]
        steps = (run.changed.events[sampled.order - 1].operand_values[1] - before).double() / _STEP
        moved = [axis for axis in (0, 1) if bool((steps[..., axis].abs() > _CLOSE * _STEP).any())]
        gain = _common(steps[..., moved[0]]) if len(moved) == 1 else None
        if gain is None or moved[0] in gains:
            return None
        gains[moved[0]] = gain
    return abs(gains[0] / gains[1])


def _moved(source: Producer, coordinate: int) -> Intervention:
    """Return the intervention that moves all positions along one coordinate."""

    def move(value: Tensor) -> Tensor:
        value = value.clone()
        value[..., coordinate] += _STEP
        return value

    change: Replace = move
    return (
        Intervention(results={source: change})
        if isinstance(source, OutputRef)
        else Intervention(inputs={source: change})
    )


def _common(steps: Tensor) -> float | None:
    """Return the number by which most positions move, of those that move; None if these are different ones."""
    moving = steps[steps.abs() > _CLOSE * _STEP]
    middle = moving.median()
    alike = (moving - middle).abs() <= _CLOSE * middle.abs()
    return float(middle) if float(alike.double().mean()) >= _MOST_ALIKE else None


def _is_close(ratio: float, one: int, other: int) -> bool:
    """Return whether a ratio is that of two sizes."""
    return abs(ratio * other / one - 1) <= 2 * _CLOSE


def _violation(subject: Subject, scaled: _Scaled, height: int, width: int) -> Violation:
    event = scaled.event
    message = (
        f"positions at which a map of height {height} and width {width} is sampled are scaled along x by the height, "
        "and along y by the width"
    )
    hint = "divide x by the width and y by the height: the last axis of what grid_sample reads is (x, y)"
    evidence = "moved each of the two coordinates alone, and looked at how far the sampled positions move"
    return Violation("AS122", message, event.refs[0], hint, evidence, made=_made(subject, scaled))


def _made(subject: Subject, scaled: _Scaled) -> SourceLocation | None:
    """Return where the two sizes are put together by which coordinates are scaled, if that is on a line of its own."""
    own = subject.place(scaled.event.refs[0])
    for event in subject.graph.upstream(scaled.by):
        if event.values[0].ndim and event.values[0].shape[-1] == 2 and event.name in ops.FROM_PYTHON | ops.JOINS:
            place = subject.place(event.refs[0])
            differs = place is not None and own is not None and (place.file, place.line) != (own.file, own.line)
            return place if differs else None
    return None

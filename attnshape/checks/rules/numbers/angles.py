"""Are the angles of positions precise enough, at late positions too?

A number of bfloat16 has 8 significant bits, one of float16 has 11: integers above 256 and 2048 are rounded, and an
angle of 500 radians is off by up to one radian.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from attnshape.checks.attention.cores import RunGraph
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import ReplayRun
from attnshape.checks.interventions.replay import OutputRef, ReplayedCall
from attnshape.checks.interventions.small_sizes import LENGTHS
from attnshape.checks.rules.protocol import Outcome, Violation
from attnshape.inference.dataflow import Producers
from attnshape.model.report import Level
from attnshape.options.spec import DtypeName
from attnshape.tracing.operations import CASTS, CREATED_LIKE, RANDOM

_HALF = (torch.float16, torch.bfloat16)
_HALF_NAMES: tuple[DtypeName, ...] = ("float16", "bfloat16")
_ANGLE_PLACES: Mapping[str, int] = {"cos": 0, "sin": 0, "polar": 1}
"""The operations that take angles, and the places of the angles among their operands."""
_MOST = 0.1
"""The largest error of an angle that may pass, in radians."""
_SHARE = 0.9
"""The first call that makes this share of the largest error that any single call makes is named."""
_LONG = 512
"""The length at which the code is tried if its angles are precise at the checked lengths."""
_ROUNDING = 2.0**-6
"""More than the relative error of any half type."""


def imprecise_angles(subject: Subject, in_half: ReplayRun | None) -> Iterator[Outcome]:
    """Yield where angles that don't depend on the data are computed in a half type, and are off by too much.

    `in_half` is a run in float16 at the user's sizes. The code itself computes in a half type if its checked run does,
    if the user asks for that type, or if it makes its parameters in that type; else a finding is a notice.
    """
    experiment, data = subject.experiment, set(subject.inputs)
    kinds = {subject.requested_dtype, *(str(dtype).removeprefix("torch.") for dtype in experiment.made_in)}
    meant = [kind for kind in _HALF_NAMES if kind in kinds]
    own = _worst(subject.base, data)
    runs: list[tuple[ReplayRun | None, Level]] = [(subject.base, "error")] if own is not None else []
    if meant:
        runs.append((in_half if meant == ["float16"] else experiment.run_in(meant[0]), "error"))
    tried = [(found, level) for run, level in runs if run is not None and (found := _worst(run, data)) is not None]
    if tried and max(found.error for found, _ in tried) <= _MOST:
        # a default length says nothing about the lengths for which the code is meant
        records = experiment.target.sizes.records
        given = any(records[name].origin == "given" for name in LENGTHS if name in records)
        longer = experiment.run_at_length(_LONG, meant[0] if meant else subject.requested_dtype)
        found = _worst(longer, data) if longer is not None else None
        tried = [(found, "notice" if given else "error")] if found is not None else []
    elif not runs and in_half is not None and (found := _worst(in_half, data)) is not None:
        tried = [(found, "notice")]
    for angles, level in tried:
        if angles.error > _MOST:
            yield _imprecise(angles, level)
            return


def _imprecise(angles: _Angles, level: Level) -> Violation:
    kind = str(angles.value.dtype).removeprefix("torch.")
    reach = float(angles.value.double().abs().max())
    error = f"of up to {reach:.4g} radians, they are off by up to {angles.error:.2g}"
    message = f"the angles of {angles.event.short_name} are computed in {kind}: {error}"
    hint = "compute positions, frequencies and their products in float32, and cast cosines and sines instead"
    at, evidence = OutputRef(angles.cause.order), "computed the same angles in float64"
    return Violation("AS209", message, at, hint, evidence, "measured", level=level)


def _worst(run: ReplayRun, data: set[str]) -> _Angles | None:
    """Return the angles of a half type that are off by most; None if there are none."""
    return max(_angles(run, data), key=lambda angles: angles.error, default=None)


def _angles(run: ReplayRun, data: set[str]) -> Iterator[_Angles]:
    """Yield the angles of a half type that don't depend on the data."""
    graph = RunGraph(run, data)
    for event in run.events:
        place = _ANGLE_PLACES.get(event.name)
        if place is None or event.unusual or len(event.operand_values) <= place:
            continue
        value = event.operand_values[place]
        if value.dtype in _HALF and value.numel() and not graph.carries_data(event.sources[place]):
            yield _Angles(graph, event, place)


class _Angles:
    """The angles that one call gets in a half type."""

    def __init__(self, graph: RunGraph, event: ReplayedCall, place: int) -> None:
        self._graph = graph
        self._sources = event.sources[place]
        self.event = event
        self.value = event.operand_values[place]
        self._exact = _InDouble(graph).value(self._sources, self.value)
        self.error = self._distance(self.value.double())

    @property
    def cause(self) -> ReplayedCall:
        """The first call whose own rounding makes most of the error; the call that gets the angles if none does."""
        upstream = sorted(self._graph.upstream(self._sources), key=lambda event: event.order)
        rounded = [event for event in upstream if event.values[0].dtype in _HALF]
        errors = [self._distance(_InDouble(self._graph, one).value(self._sources, self.value)) for one in rounded]
        least = _SHARE * max(errors, default=0.0)
        return next((one for one, error in zip(rounded, errors, strict=True) if error >= least), self.event)

    def _distance(self, angles: Tensor) -> float:
        if angles.shape != self._exact.shape:
            return 0.0
        return float((angles - self._exact).abs().nan_to_num(0.0, 0.0, 0.0).max())


class _InDouble:
    """Computes results of a run again in float64, of which one call's may be rounded as in the run."""

    def __init__(self, graph: RunGraph, rounded: ReplayedCall | None = None) -> None:
        self._graph = graph
        self._rounded = rounded
        self._known: dict[OutputRef, Tensor] = {}

    def value(self, sources: Producers, recorded: Tensor) -> Tensor:
        """Return a tensor with these producers; what was written to in place keeps the numbers of the run."""
        if len(sources) == 1 and isinstance(sources[0], OutputRef):
            return self._result(sources[0])
        return recorded.double() if recorded.is_floating_point() else recorded

    def _result(self, ref: OutputRef) -> Tensor:
        if ref not in self._known:
            event = self._graph.node(ref)
            recorded = event.values[ref.output]
            result = self._computed(event, recorded) if recorded.is_floating_point() else recorded
            self._known[ref] = result.to(recorded.dtype).double() if event is self._rounded else result
        return self._known[ref]

    def _computed(self, event: ReplayedCall, recorded: Tensor) -> Tensor:
        kept = recorded.double()
        if event.in_place or len(event.values) > 1 or event.name in CREATED_LIKE | RANDOM:
            return kept
        operands = [self.value(*operand) for operand in zip(event.sources, event.operand_values, strict=True)]
        if event.name in CASTS:
            return operands[0].double()
        values = iter(operands)

        def in_double(argument: Any) -> Any:
            if isinstance(argument, Tensor):
                return next(values)
            return torch.float64 if argument in _HALF else argument

        args, keywords = tree_map(in_double, (event.args, dict(event.keywords)))
        try:
            result = event.function(*args, **keywords)
        except (RuntimeError, TypeError, ValueError):
            return kept
        if not isinstance(result, Tensor) or result.shape != kept.shape:
            return kept
        # without operands it may be random
        is_same = operands or torch.allclose(result.double(), kept, rtol=_ROUNDING, atol=_ROUNDING)
        return result.double() if is_same else kept

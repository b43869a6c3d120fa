"""Summarises the numbers of the results, where parameters and inputs have numbers that don't depend on the version."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import torch
from torch import Tensor

from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Intervention
from attnshape.checks.interventions.replay import Replace
from attnshape.model.behaviour import ResultNumbers, ResultsRun

_SUMS = 6
_SPREAD = 0.3


def results(subject: Subject) -> tuple[dict[str, tuple[int, ...]], tuple[ResultsRun, ...]]:
    """Return what was filled with numbers, by name with its shape, and the summaries of two runs.

    In the first run numbers follow from the names of parameters and inputs, in the second one from their places, so
    that versions with other names can be compared too.
    """
    given = {name: value for name, value in subject.inputs.items() if value.is_floating_point()}
    filled = {
        **{f"parameter {name}": value for name, value in subject.parameters.items() if value.is_floating_point()},
        **given,
    }
    shapes = {name: tuple(value.shape) for name, value in filled.items()}
    runs = []
    seeds: tuple[tuple[str, Callable[[int, str], str]], ...] = (
        ("name", lambda place, name: name),
        ("place", lambda place, name: str(place)),
    )
    for filled_by, seed in seeds:
        change = {
            name: _fill(zlib.crc32(seed(place, name).encode()), is_parameter=name not in given)
            for place, name in enumerate(filled)
        }
        run = subject.experiment.run(
            Intervention(
                inputs={name: change[name] for name in given},
                parameters={name: fill for name in subject.parameters if (fill := change.get(f"parameter {name}"))},
            )
        )
        if run.error is None:
            numbers = tuple(_summary(path, value) for path, value in run.returned)
            runs.append(ResultsRun("name" if filled_by == "name" else "place", numbers))
    return shapes, tuple(runs)


def _fill(seed: int, is_parameter: bool) -> Replace:
    """Return a replacement by normally distributed numbers; what a vector has on average, such as 1, stays."""

    def change(value: Tensor) -> Tensor:
        if not value.is_floating_point() or not value.numel():
            return value
        noise = torch.randn(value.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        if value.ndim < 2:
            noise = noise * _SPREAD + round(float(value.double().mean().nan_to_num()))
        elif is_parameter:
            noise = noise / value.shape[-1] ** 0.5  # what a layer computes stays of the size of what it reads
        return noise.to(value.dtype)

    return change


def _summary(path: str, value: Tensor) -> ResultNumbers:
    numbers = torch.view_as_real(value.resolve_conj()) if value.is_complex() else value
    flat = numbers.double().flatten().nan_to_num(nan=7.0, posinf=1e6, neginf=-1e6)
    generator = torch.Generator().manual_seed(zlib.crc32(str(tuple(value.shape)).encode()))
    factors = torch.randn((_SUMS, flat.numel()), generator=generator, dtype=torch.float64)
    count = max(flat.numel(), 1)
    sums = (factors @ flat / count**0.5).tolist()
    return ResultNumbers(path, tuple(value.shape), float(flat.square().sum().div(count).sqrt()), tuple(sums))

"""Runs a target at several sizes and keeps what its functions' variables held in each."""

from __future__ import annotations

import contextlib
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import CodeType

import executing
import torch

from attnshape.ending import reraise_interruption
from attnshape.inference.variation import Variation
from attnshape.paths import installed_package
from attnshape.target.request import Placement, Target
from attnshape.tracing.frames import Frames
from attnshape.tracing.isolation import one_thread
from attnshape.tracing.modules import own_file
from attnshape.tracing.patience import Patience, TooLong
from attnshape.tracing.raw import RawTrace
from attnshape.tracing.runner import Runnable, parameters_within, record_anew
from attnshape.variables.watch import Invocation, Watch

_STANDARD = sysconfig.get_path("stdlib")
_RECORDING = str(Path(executing.__file__).parent)
"""What runs there does so for the recorder, in between the target's own lines."""


@dataclass(frozen=True)
class Run:
    """One run: its sizes, its steps, and the calls of the traced code's functions in order."""

    numbers: Mapping[str, int]
    raw: RawTrace
    invocations: Sequence[Invocation]
    parameters: Mapping[str, tuple[int, ...]]
    """The shapes of the parameters and buffers of the modules that take part, under the paths to them."""
    file: str | None
    """The file of the code that is called; None where it has none."""


@dataclass(frozen=True)
class Observed:
    """What several runs of one target showed."""

    file: str | None
    """The file of the code that is called; None where it has none."""
    variation: Variation
    small: tuple[Run, ...]
    """The runs at small sizes, in the order of `variation.every`; fewer where one failed under the watch."""
    actual: Run


def observe(target: Target, variation: Variation, placement: Placement, patience: Patience) -> Observed:
    """Return what the variables of the target's functions held, at the user's sizes and at those of the variation.

    Whatever the target raises at its own sizes is raised.
    """
    single = replace(placement, device=torch.device("cpu"), dtype=torch.float32)
    actual = _run(target, variation.plan.sizes.numbers, single)
    small = runs_at(target, [numbers for numbers, _ in variation.every], single, patience)
    return Observed(actual.file, variation, tuple(small), actual)


def runs_at(target: Target, sizes: Iterable[Mapping[str, int]], placement: Placement, patience: Patience) -> list[Run]:
    """Return a run at each of these sizes, but for those at which the target fails or takes too long."""
    single = replace(placement, device=torch.device("cpu"), dtype=torch.float32)
    made = []
    for numbers in sizes:
        with contextlib.suppress(TooLong), one_thread():
            run = patience.run(lambda numbers=numbers: _unless_it_fails(target, numbers, single))  # type: ignore[misc]  # mypy can't type it
            made += [run] if run is not None else []
    return made


def _unless_it_fails(target: Target, numbers: Mapping[str, int], placement: Placement) -> Run | None:
    try:
        return _run(target, numbers, placement)
    except BaseException as error:  # noqa: BLE001 - the user's constructor may raise anything
        reraise_interruption(error)
        return None


def _run(target: Target, numbers: Mapping[str, int], placement: Placement) -> Run:
    files: set[str | None] = set()
    kinds: list[Frames] = []
    parameters: dict[str, tuple[int, ...]] = {}

    def wanted(code: CodeType) -> bool:
        file = code.co_filename
        of_target = not _is_standard(file) and not file.startswith(_RECORDING)
        return of_target and bool(kinds) and kinds[-1].kind(code) == "own"

    watch = Watch(wanted)

    def build() -> Runnable:
        kinds.clear()  # what is built isn't looked at
        runnable = target.build(numbers, placement)
        file = own_file(runnable.function)
        files.add(file)
        parameters.update(
            (name, tuple(one.shape)) for name, one in parameters_within(runnable.function, runnable.bound())
        )
        kinds.append(Frames(frozenset({file} if file else ())))
        watch.clear()
        return runnable

    with watch:
        raw = record_anew(build, placement.seed, stepped=watch.step)
    if raw.failure is not None:
        raise raw.failure.error
    return Run(numbers, raw, tuple(watch.invocations), parameters, next(iter(files), None))


def _is_standard(file: str) -> bool:
    """Say whether a file is of Python's own library."""
    return file.startswith(_STANDARD) and installed_package(file) is None

"""Measures the memory blocks that each step of a run allocates and frees."""

from __future__ import annotations

import contextlib
import gc
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnshape.runtime.capture import suppressed_stderr
from attnshape.tracing.raw import RawStep, RawTrace
from attnshape.tracing.tensor_access import layout_of, shape_of, storage_of

_MARK = "attnshape::mark"


@dataclass(frozen=True)
class MemoryLog:
    """The bytes of each block that a run allocated (positive) or freed (negative), in order."""

    building: tuple[int, ...]
    """Blocks while the target and its inputs were built."""
    running: tuple[tuple[int, ...], ...]
    """Blocks during each step, and after the last step."""
    steps: tuple[RawStep, ...]
    inputs: tuple[int, ...]
    """The bytes of each block that contains an input."""
    tensors: tuple[tuple[tuple[int, ...], int], ...]
    """The shape and bytes per element of each parameter, buffer and input."""

    @property
    def peak(self) -> int:
        """The peak number of allocated bytes."""
        changes = itertools.chain(self.building, *self.running)
        return max(itertools.accumulate(changes, initial=0))


class Meter:
    """A context manager that measures allocations on the host, including those inside torch's kernels.

    It uses torch's profiler, so that the code takes the same path as without it. If the profiler is missing or already
    active, nothing is measured and `log` returns None.
    """

    def __init__(self) -> None:
        self._mark: Callable[[], None] = lambda: None
        self._disable: Callable[[], Sequence[Sequence[Any]]] | None = None
        self._segments: list[list[int]] = []
        self._marks = 0
        self._before = 0
        self._inputs: tuple[int, ...] | None = None
        self._tensors: tuple[tuple[tuple[int, ...], int], ...] = ()
        self._collecting = False

    def __enter__(self) -> Meter:
        # garbage collection would free blocks that were allocated before the measurement
        self._collecting = gc.isenabled()
        gc.disable()
        with contextlib.suppress(ImportError, AttributeError, TypeError, RuntimeError):
            self._start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._collecting:
            gc.enable()
        if self._disable is not None:
            with contextlib.suppress(RuntimeError):
                self._segments = _segments(self._disable())
            self._disable = None

    def mark_built(self, inputs: Sequence[Tensor], parameters: Sequence[Tensor]) -> None:
        """Mark the end of building the target, with its inputs, parameters and buffers; the last call counts."""
        self._before = self._marks
        blocks = {storage._cdata: storage.nbytes() for tensor in inputs if (storage := storage_of(tensor)) is not None}
        self._inputs = tuple(blocks.values())
        tensors = [tensor for tensor in (*inputs, *parameters) if layout_of(tensor) is None]
        self._tensors = tuple((shape_of(tensor), tensor.itemsize) for tensor in tensors)
        self.mark_step()

    def mark_step(self, outputs: Sequence[Tensor] = ()) -> None:
        """Mark the end of a step, whatever it returned."""
        self._marks += 1
        self._mark()

    def log(self, steps: Sequence[RawStep]) -> MemoryLog | None:
        """Return the log of a run with these steps; None if the marks don't match the steps.

        Blocks of a step that was removed are counted at the next step.
        """
        single = sorted((step for step in steps if step.order is not None), key=lambda step: step.order or 0)
        ends = [step.order or 0 for step in single]
        running = self._segments[self._before + 1 :]
        if self._inputs is None or len(running) < (ends[-1] if ends else 0) + 1:
            return None
        building = itertools.chain.from_iterable(self._segments[: self._before + 1])
        joined = [
            tuple(itertools.chain.from_iterable(running[begin:end]))
            for begin, end in itertools.pairwise([0, *ends, len(running)])
        ]
        return MemoryLog(tuple(building), tuple(joined), tuple(single), self._inputs, self._tensors)

    def _start(self) -> None:
        # the public profiler writes to standard error and takes a hundred times as long
        from torch._C._autograd import _disable_profiler_legacy, _enable_profiler_legacy
        from torch._C._profiler import ProfilerConfig, ProfilerState, _ExperimentalConfig, _RecordFunctionFast

        config = ProfilerConfig(ProfilerState.CPU, False, True, False, False, False, _ExperimentalConfig())
        _suppress_warning(lambda: _enable_profiler_legacy(config), _disable_profiler_legacy)
        _enable_profiler_legacy(config)
        self._disable = _disable_profiler_legacy
        mark = _RecordFunctionFast(_MARK)

        def leave_mark() -> None:
            with mark:
                pass

        self._mark = leave_mark


_warning_triggered: list[bool] = []


def _suppress_warning(enable: Callable[[], None], disable: Callable[[], object]) -> None:
    """Trigger and suppress the warning that torch prints once, when a block older than the profile is freed."""
    if _warning_triggered:
        return
    _warning_triggered.append(True)
    older = torch.empty(1)
    with suppressed_stderr():
        enable()
        del older
        disable()


def _segments(threads: Sequence[Sequence[Any]]) -> list[list[int]]:
    """Return the bytes allocated and freed between marks, for the thread that has the marks."""
    events = max(threads, key=lambda events: sum(event.name() == _MARK for event in events), default=())
    segments: list[list[int]] = [[]]
    for event in events:
        if event.kind() == "memory_alloc":
            if changed := event.cpu_memory_usage():
                segments[-1].append(changed)
        elif event.kind() == "push" and event.name() == _MARK:
            segments.append([])
    return segments


SmallRun = Callable[[Mapping[str, int], Meter | None], RawTrace]
"""Runs the target at the given sizes, with a meter if it isn't None, and returns the raw trace."""


class MeteredRuns:
    """Runs the target at any sizes, and keeps the memory log of each run."""

    def __init__(self, run: SmallRun) -> None:
        self._run = run
        self.sizes_run: list[Mapping[str, int]] = []
        """The sizes of every run."""
        self._raw_traces: dict[tuple[tuple[str, int], ...], RawTrace] = {}
        self._logs: dict[tuple[tuple[str, int], ...], MemoryLog | None] = {}

    def __call__(self, numbers: Mapping[str, int]) -> RawTrace:
        """Run the target at these sizes."""
        self.sizes_run.append(numbers)
        with Meter() as meter:
            raw = self._run(numbers, meter)
        if raw.failure is not None and "rofiler is already enabled" in str(raw.failure.error):
            raw = self._run(numbers, None)  # the traced code uses the profiler itself, which can't be nested
        key = tuple(numbers.items())
        self._logs[key], self._raw_traces[key] = meter.log(raw.steps), raw
        return raw

    def reuse(self, numbers: Mapping[str, int]) -> RawTrace:
        """Return and forget the last run at these sizes; run the target if there is none."""
        return self._raw_traces.pop(tuple(numbers.items()), None) or self._run(numbers, None)

    def log(self, numbers: Mapping[str, int]) -> MemoryLog | None:
        """Return the memory log of the run at these sizes; None if it couldn't be measured."""
        return self._logs.get(tuple(numbers.items()))

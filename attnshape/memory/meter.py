"""Measures what a run allocates and frees, block by block, and between which steps."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnshape.tracing.raw import RawStep

_MARK = "attnshape::mark"


@dataclass(frozen=True)
class MemoryLog:
    """What one run allocated and freed, in order: positive bytes for a block taken, negative for one given back."""

    building: tuple[int, ...]
    """While the target and its inputs were made."""
    running: tuple[tuple[int, ...], ...]
    """During each step, and behind the last."""
    steps: tuple[RawStep, ...]
    inputs: tuple[int, ...]
    """The bytes of each block that an input lies in."""
    held: tuple[tuple[tuple[int, ...], int], ...]
    """Shape and bytes of a number of each parameter, buffer and input."""


class Meter:
    """Watches the allocations on the host between entering and leaving it, those inside torch's kernels included.

    It observes through torch's profiler, so that the code takes the same path as without it. Where that profiler is
    missing, or at work already, nothing is measured and `log` gives None.
    """

    def __init__(self) -> None:
        self._mark: Callable[[], None] = _nothing
        self._disable: Callable[[], Sequence[Sequence[Any]]] | None = None
        self._segments: list[list[int]] = []
        self._marks = 0
        self._before = 0
        self._inputs: tuple[int, ...] | None = None
        self._held: tuple[tuple[tuple[int, ...], int], ...] = ()
        self._collecting = False

    def __enter__(self) -> Meter:
        # what is collected now would be given back without having been taken
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

    def built(self, inputs: Sequence[Tensor], parameters: Sequence[Tensor]) -> None:
        """Take note that the target is built, with these inputs, parameters and buffers; the last time counts."""
        self._before = self._marks
        blocks = {storage._cdata: storage.nbytes() for tensor in inputs if (storage := _storage(tensor)) is not None}
        self._inputs = tuple(blocks.values())
        self._held = tuple((tuple(tensor.shape), tensor.itemsize) for tensor in (*inputs, *parameters))
        self.stepped()

    def stepped(self) -> None:
        """Take note that a step has been recorded."""
        self._marks += 1
        self._mark()

    def log(self, steps: Sequence[RawStep]) -> MemoryLog | None:
        """Return what was measured of a run of these steps; None where it can't be told which step is which.

        What a step that is no longer there took, or gave back, counts to the next one.
        """
        single = sorted((step for step in steps if step.order is not None), key=lambda step: step.order or 0)
        ends = [step.order for step in single if step.order is not None]
        running = self._segments[self._before + 1 :]
        if self._inputs is None or len(running) < (ends[-1] if ends else 0) + 1:
            return None
        building = itertools.chain.from_iterable(self._segments[: self._before + 1])
        joined = [
            tuple(itertools.chain.from_iterable(running[begin:end]))
            for begin, end in itertools.pairwise([0, *ends, len(running)])
        ]
        return MemoryLog(tuple(building), tuple(joined), tuple(single), self._inputs, self._held)

    def _start(self) -> None:
        # the public profiler writes to standard error and takes a hundred times as long
        from torch._C._autograd import _disable_profiler_legacy, _enable_profiler_legacy
        from torch._C._profiler import ProfilerConfig, ProfilerState, _ExperimentalConfig, _RecordFunctionFast

        config = ProfilerConfig(ProfilerState.CPU, False, True, False, False, False, _ExperimentalConfig())
        _hush(lambda: _enable_profiler_legacy(config), _disable_profiler_legacy)
        _enable_profiler_legacy(config)
        self._disable = _disable_profiler_legacy
        mark = _RecordFunctionFast(_MARK)

        def leave_mark() -> None:
            with mark:
                pass

        self._mark = leave_mark


_hushed: list[bool] = []


def _hush(enable: Callable[[], None], disable: Callable[[], object]) -> None:
    """Let torch's allocator say once, to nobody, what it says at the first block older than the profile."""
    if _hushed:
        return
    _hushed.append(True)
    older = torch.empty(1)
    try:
        kept = os.dup(2)
    except OSError:
        return
    try:
        with open(os.devnull, "wb") as nowhere:  # noqa: PTH123 - its descriptor is what counts
            os.dup2(nowhere.fileno(), 2)
            enable()
            del older
            disable()
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _segments(threads: Sequence[Sequence[Any]]) -> list[list[int]]:
    """Return the bytes taken and given back between the marks of the thread that has any."""
    events = max(threads, key=lambda events: sum(event.name() == _MARK for event in events), default=())
    segments: list[list[int]] = [[]]
    for event in events:
        if event.kind() == "memory_alloc":
            changed = event.cpu_memory_usage()
            if changed:
                segments[-1].append(changed)
        elif event.kind() == "push" and event.name() == _MARK:
            segments.append([])
    return segments


def _storage(tensor: Tensor) -> torch.UntypedStorage | None:
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):  # sparse and opaque tensors have none
        return None


def _nothing() -> None:
    """Leave no mark: nothing is being measured."""

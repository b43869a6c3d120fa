"""Small runs whose memory is measured beside what they do."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from attnshape.memory.meter import MemoryLog, Meter
from attnshape.tracing.raw import RawTrace

SmallRun = Callable[[Mapping[str, int], Meter | None], RawTrace]
"""Runs the target at some sizes, under a meter where there is one, and returns the raw facts as they were recorded."""


class MeteredRuns:
    """Runs the target at any sizes, and keeps what each run allocated."""

    def __init__(self, run: SmallRun) -> None:
        self._run = run
        self._made: dict[tuple[tuple[str, int], ...], RawTrace] = {}
        self._logs: dict[tuple[tuple[str, int], ...], MemoryLog | None] = {}

    def __call__(self, numbers: Mapping[str, int]) -> RawTrace:
        """Run it at these sizes."""
        with Meter() as meter:
            raw = self._run(numbers, meter)
        if raw.failure is not None and "rofiler is already enabled" in str(raw.failure.error):
            raw = self._run(numbers, None)  # the traced code profiles itself, and two profiles can't be taken at once
        key = tuple(numbers.items())
        self._logs[key] = meter.log(raw.steps)
        self._made[key] = raw
        return self._made[key]

    def once_more(self, numbers: Mapping[str, int]) -> RawTrace:
        """Return what the last run at these sizes did; the next time, and where there was none, run it."""
        made = self._made.pop(tuple(numbers.items()), None)
        return made if made is not None else self._run(numbers, None)

    def log(self, numbers: Mapping[str, int]) -> MemoryLog | None:
        """Return what the run at these sizes allocated; None where that couldn't be measured."""
        return self._logs.get(tuple(numbers.items()))

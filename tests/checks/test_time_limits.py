"""Where time decided how a target was run, a report is incomplete: it never says that all is well.

No test waits: clocks go on by what they are told.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from torch import Tensor, nn

from attnshape.model.report import ExitStatus, Report
from attnshape.options.claims import Claims
from attnshape.options.spec import RunOptions, TargetSpec
from attnshape.pipelines.check import check_request, is_whole
from attnshape.proposals import search
from attnshape.runtime import time_limit
from attnshape.runtime.time_limit import TooLong

LATER = 1000.0
"""Seconds after which every limit is over."""


@dataclass
class Clock:
    """A clock that stands still, and jumps at one of the target's calls, which is then ended as by a timer.

    Its numbers are in lists: before each run, what a target's module has as numbers is put back.
    """

    at: list[int] = field(default_factory=list)
    calls: list[object] = field(default_factory=list)
    jumps: list[float] = field(default_factory=list)

    def monotonic(self) -> float:
        return sum(self.jumps)

    def call(self) -> None:
        self.calls.append(None)
        if len(self.calls) in self.at:
            self.jumps.append(LATER)
            raise TooLong("it took too long")

    def reset(self, *at: int) -> None:
        self.at[:] = at
        self.calls.clear()
        self.jumps.clear()


CLOCK = Clock()


class Attention(nn.Module):
    """Right attention, which tells the clock when it is called."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        CLOCK.call()
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(dim=-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


def checked(spec: TargetSpec, limit: float = 300.0) -> Report:
    return check_request(spec, RunOptions(), Claims(), limit, contextlib.nullcontext)


DESCRIBED = TargetSpec("attention", callable=Attention, init="D, H", inputs={"x": "B L D"})


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    monkeypatch.setattr(time_limit, "monotonic", CLOCK.monotonic)
    CLOCK.reset()
    yield CLOCK
    CLOCK.reset()


@pytest.fixture(scope="module")
def calls() -> int:
    """How often a whole check calls the target."""
    CLOCK.reset()
    report = checked(DESCRIBED)
    assert report.exit_status is ExitStatus.FINE
    assert is_whole(report)
    return len(CLOCK.calls)


@pytest.mark.parametrize(
    "place",
    [pytest.param(part / 40, marks=[] if part in {3, 10, 40} else [pytest.mark.slow]) for part in range(3, 41)],
)
def test_whichever_run_takes_too_long_the_report_is_incomplete(clock: Clock, calls: int, place: float) -> None:
    # the first calls are a look at the smallest sizes and the user's own run, whose time isn't limited
    clock.reset(round(place * calls))
    report = checked(DESCRIBED)
    assert report.exit_status is ExitStatus.CANNOT
    assert not is_whole(report)


@pytest.mark.usefixtures("clock")
def test_a_search_for_constraints_that_time_cuts_short_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = itertools.count()
    clock = SimpleNamespace(monotonic=lambda: float(next(readings)))
    monkeypatch.setattr("attnshape.inference.small_runs.time", clock)
    report = checked(DESCRIBED, limit=10.0)
    assert report.exit_status is ExitStatus.CANNOT
    assert not is_whole(report)
    assert ("other constraints on the sizes", "the time limit was reached") in {
        (one.what, one.why) for one in report.undecided
    }


def test_arguments_found_after_an_attempt_that_took_too_long_are_doubtful(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert checked(TargetSpec("attention", callable=Attention)).exit_status is ExitStatus.FINE
    monkeypatch.setattr(search, "call_within", lambda seconds, action: action())
    clock.reset(1)
    report = checked(TargetSpec("attention", callable=Attention))
    assert report.exit_status is not ExitStatus.FINE
    assert "other arguments of the target" in {one.what for one in report.undecided}

"""A run that takes too long is ended, also where Python lets no exception out."""

from __future__ import annotations

import gc
import signal
import sys
import time
import weakref
from collections.abc import Callable
from contextlib import suppress

import pytest

from attnshape.runtime.time_limit import TooLong, at_most

LIMIT = 0.05
LATER = 5.0


class Node:
    """What a finalizer is called for."""


def wait_in_del() -> None:
    class Slow(Node):
        def __del__(self) -> None:
            time.sleep(2 * LIMIT)

    Slow()


def wait_in_weakref_callback() -> None:
    node = Node()
    reference = weakref.ref(node, lambda _: time.sleep(2 * LIMIT))
    del node
    assert reference() is None


def wait_in_gc_callback() -> None:
    def wait(phase: str, info: dict[str, int]) -> None:
        time.sleep(2 * LIMIT)

    gc.callbacks.append(wait)
    try:
        gc.collect()
    finally:
        gc.callbacks.remove(wait)


def stay_busy_until(end: float) -> None:
    """Loop, in a frame of its own: Python 3.13.0 takes the jump back of such a loop to be outside of its `with`."""
    while time.monotonic() < end:
        pass


@pytest.mark.parametrize("wait", [wait_in_del, wait_in_weakref_callback, wait_in_gc_callback])
def test_a_limit_reached_in_a_finalizer_ends_the_run_at_once_and_prints_nothing(
    wait: Callable[[], None], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)
    # far later than the test, so that only the hook can raise it again
    monkeypatch.setattr("attnshape.runtime.time_limit._REPEAT_SECONDS", 2 * LATER)
    started = time.monotonic()
    ended = False
    with suppress(TooLong), at_most(LIMIT):
        wait()
        stay_busy_until(started + LATER)
        ended = True
    assert not ended
    assert capfd.readouterr().err == ""
    assert sys.unraisablehook is sys.__unraisablehook__


def test_a_timer_of_the_code_ends_nothing_early() -> None:
    signal_before = signal.getsignal(signal.SIGALRM)
    started = time.monotonic()
    with suppress(TooLong), at_most(10 * LIMIT):
        signal.setitimer(signal.ITIMER_REAL, LIMIT / 10, LIMIT / 10)
        stay_busy_until(started + LATER)
    assert 10 * LIMIT - 0.06 <= time.monotonic() - started < LATER
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
    assert signal.getsignal(signal.SIGALRM) is signal_before


def test_other_exceptions_in_finalizers_are_still_reported(capfd: pytest.CaptureFixture[str]) -> None:
    reported = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "unraisablehook", lambda unraisable: reported.append(unraisable.exc_value))
        with at_most(LATER):

            class Failing(Node):
                def __del__(self) -> None:
                    raise ValueError("from a finalizer")

            Failing()
    assert [str(error) for error in reported] == ["from a finalizer"]

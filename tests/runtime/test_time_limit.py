"""A run that takes too long is ended, also where Python lets no exception out."""

from __future__ import annotations

import gc
import importlib
import signal
import sys
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from attnshape.runtime.time_limit import TooLong, call_within

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

    def action() -> None:
        wait()
        stay_busy_until(started + LATER)

    with pytest.raises(TooLong):
        call_within(LIMIT, action)
    assert capfd.readouterr().err == ""
    assert sys.unraisablehook is sys.__unraisablehook__


def test_a_timer_of_the_code_ends_nothing_early() -> None:
    signal_before = signal.getsignal(signal.SIGALRM)
    started = time.monotonic()

    def action() -> None:
        signal.setitimer(signal.ITIMER_REAL, LIMIT / 10, LIMIT / 10)
        stay_busy_until(started + LATER)

    with pytest.raises(TooLong):
        call_within(10 * LIMIT, action)
    assert 10 * LIMIT - 0.06 <= time.monotonic() - started < LATER
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
    assert signal.getsignal(signal.SIGALRM) is signal_before


def test_other_exceptions_in_finalizers_are_still_reported(capfd: pytest.CaptureFixture[str]) -> None:
    reported = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "unraisablehook", lambda unraisable: reported.append(unraisable.exc_value))

        class Failing(Node):
            def __del__(self) -> None:
                raise ValueError("from a finalizer")

        call_within(LATER, Failing)
    assert [str(error) for error in reported] == ["from a finalizer"]


def test_an_import_ends_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of which half ran stays in sys.modules, and fails whoever imports it later."""
    busy = "import time\nend = time.monotonic() + 0.5\nwhile time.monotonic() < end:\n    pass\nlast = True\n"
    (tmp_path / "slow_to_import.py").write_text(busy)
    monkeypatch.syspath_prepend(tmp_path)

    def action() -> None:
        importlib.import_module("slow_to_import")
        stay_busy_until(time.monotonic() + LATER)

    try:
        with pytest.raises(TooLong):
            call_within(LIMIT / 2, action)
        assert sys.modules["slow_to_import"].last
    finally:
        sys.modules.pop("slow_to_import", None)


def test_a_limit_reached_as_it_is_lifted_leaves_no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    set_timer, interrupted = signal.setitimer, []

    def interrupt_once(which: int, seconds: float, interval: float = 0.0) -> object:
        if seconds == 0 and not interrupted:
            interrupted.append(True)
            raise TooLong("just now")
        return set_timer(which, seconds, interval)

    before = signal.getsignal(signal.SIGALRM)
    monkeypatch.setattr(signal, "setitimer", interrupt_once)
    with pytest.raises(TooLong):
        call_within(60.0, lambda: None)
    assert interrupted
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
    assert signal.getsignal(signal.SIGALRM) is before


def test_the_limit_that_ends_first_holds() -> None:
    started = time.monotonic()
    caught = []

    def busy() -> None:
        stay_busy_until(started + LATER)

    def inner_then_busy() -> None:
        try:
            call_within(LIMIT, busy)
        except TooLong:
            caught.append(time.monotonic() - started)
        busy()

    with pytest.raises(TooLong):
        call_within(6 * LIMIT, inner_then_busy)
    assert caught[0] < 5 * LIMIT <= time.monotonic() - started < LATER
    with pytest.raises(TooLong):
        call_within(LIMIT, lambda: call_within(2 * LATER, busy))
    assert time.monotonic() - started < LATER
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_an_outer_limit_ends_what_catches_its_exception() -> None:
    started = time.monotonic()

    def stubborn() -> None:
        while True:
            with suppress(TooLong):
                call_within(LATER, lambda: stay_busy_until(started + LATER))
            stay_busy_until(started + LATER)

    with pytest.raises(TooLong):
        call_within(LIMIT, stubborn)
    assert time.monotonic() - started < LATER

"""Ends a run that takes too long."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

Result = TypeVar("Result")

_SECONDS, _TIMES, _LESS = 10.0, 3.0, 4
_LEAST = 2.0
"""Seconds that every run may take: what takes long at large sizes must not end those at small ones."""
_AGAIN = 0.5
"""Seconds after which a run is told once more, where its code caught the exception."""


class TooLong(BaseException):
    """A run was ended because it took too long. Not an Exception, so that the traced code rarely catches it."""


class Patience:
    """How long a run at small sizes may take: some seconds, or more where the user's own run did."""

    def __init__(self) -> None:
        self._seconds = _SECONDS

    def learn(self, elapsed: float) -> None:
        """Take into account how many seconds the user's own run took."""
        self._seconds = max(_SECONDS, _TIMES * elapsed)

    def run(self, action: Callable[[], Result]) -> Result:
        """Do it, and raise TooLong when it lasts too long."""
        try:
            with self.limited():
                return action()
        except TooLong:
            # where it was raised while the limit itself was ending, the timer may still run
            with contextlib.suppress(TooLong):
                signal.setitimer(signal.ITIMER_REAL, 0)
            raise

    @contextlib.contextmanager
    def limited(self) -> Iterator[None]:
        """Raise TooLong within it when it lasts too long; less patient the next time, since it would happen again."""
        started = time.monotonic()
        try:
            with at_most(self._seconds):
                yield
        finally:
            if time.monotonic() - started >= self._seconds:
                self._seconds = max(self._seconds / _LESS, _LEAST)


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise TooLong within it after so many seconds, as soon as Python's own code runs.

    Where the platform has no timers, in other threads than the main one, and where one is set already, nothing is
    limited.
    """
    able = hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()
    if not able or signal.getitimer(signal.ITIMER_REAL)[0] > 0:
        yield
        return
    before = signal.signal(signal.SIGALRM, _end)
    signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before if before is not None else signal.SIG_DFL)


def _end(number: int, frame: object) -> None:
    raise TooLong("it took too long")

"""Time limits: a run that takes too long is ended by an exception."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from time import monotonic  # bound now, since code may replace it
from typing import Any, TypeVar

from attnshape.runtime.signals import reraise_interruption

Result = TypeVar("Result")

_DEFAULT_SECONDS = 10.0
_FACTOR = 3.0
"""How many times as long as the user's own run a run at small sizes may take."""
_DIVISOR = 4
_LEAST_SECONDS = 2.0
"""Every run may take this long: a slow run at large sizes must not end those at small ones."""
_REPEAT_SECONDS = 0.5
"""How soon the exception is raised again in code that caught it."""
_TOLERANCE = 0.05
"""How much earlier than asked the timer may be, in seconds."""
_AT_ONCE_SECONDS = 0.001
"""How soon it is raised again after a finalizer, out of which Python lets no exception."""


class TooLong(BaseException):
    """Ends a run that takes too long. It isn't an Exception, so the traced code rarely catches it."""


def reraise_interruption_or_timeout(error: BaseException) -> None:
    """Raise an exception again if the user's Ctrl-C or a time limit raised it, rather than the traced code."""
    reraise_interruption(error)
    if isinstance(error, TooLong):
        raise error


class TimeLimit:
    """How long a run at small sizes may take: some seconds, or more if the user's own run took long."""

    def __init__(self) -> None:
        self._seconds = _DEFAULT_SECONDS

    def learn_from(self, action: Callable[[], Result]) -> Result:
        """Return the result of the user's own run, and set the limit by how long it took."""
        started = monotonic()
        result = action()
        self._seconds = max(_DEFAULT_SECONDS, _FACTOR * (monotonic() - started))
        return result

    def run(self, action: Callable[[], Result]) -> Result:
        """Return the result of `action`.

        Raises TooLong if it takes too long; the next limit is then shorter, since that one would too.
        """
        started = monotonic()
        try:
            with at_most(self._seconds):
                return action()
        except TooLong:
            # it may have been raised just as the limit was lifted, with the timer still running
            with contextlib.suppress(TooLong):
                signal.setitimer(signal.ITIMER_REAL, 0)
            raise
        finally:
            if monotonic() - started >= self._seconds:
                self._seconds = max(self._seconds / _DIVISOR, _LEAST_SECONDS)


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise TooLong inside after `seconds`, as soon as Python runs a bytecode.

    Nothing is limited on platforms without timers (Windows), outside the main thread, and while another timer runs.
    """
    available = hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()
    if not available or signal.getitimer(signal.ITIMER_REAL)[0] > 0:
        yield
        return
    deadline = monotonic() + seconds

    def expire(number: int, frame: object) -> None:
        left = deadline - monotonic()
        if left > _TOLERANCE:  # the traced code has set the timer
            signal.setitimer(signal.ITIMER_REAL, left, _REPEAT_SECONDS)
        else:
            raise TooLong("it took too long")

    before = signal.signal(signal.SIGALRM, expire)
    with _raised_after_finalizers():
        signal.setitimer(signal.ITIMER_REAL, seconds, _REPEAT_SECONDS)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before if before is not None else signal.SIG_DFL)


@contextlib.contextmanager
def _raised_after_finalizers() -> Iterator[None]:
    """Raise TooLong once more after a `__del__` or a callback that it ended, where Python would only print it."""
    before = sys.unraisablehook

    def raise_again(unraisable: Any) -> None:
        if isinstance(unraisable.exc_value, TooLong):
            signal.setitimer(signal.ITIMER_REAL, _AT_ONCE_SECONDS, _REPEAT_SECONDS)
        else:
            before(unraisable)

    sys.unraisablehook = raise_again
    try:
        yield
    finally:
        if sys.unraisablehook is raise_again:  # the traced code may set its own
            sys.unraisablehook = before

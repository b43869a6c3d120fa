"""Time limits: a run that takes too long is ended by an exception."""

from __future__ import annotations

import contextlib
import math
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import monotonic  # bound now, since code may replace it
from types import FrameType
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
_IMPORT_SECONDS = 30.0
"""How much longer an import may take: one that is ended leaves modules behind that lack half of their names."""
_IMPORT_FILES = ("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>")
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
        self.has_ended_a_run = False
        """Whether some run took too long, whatever became of the exception that ended it."""

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
            return call_within(self._seconds, action)
        except TooLong:
            self.has_ended_a_run = True
            raise
        finally:
            if monotonic() - started >= self._seconds - _TOLERANCE:
                self.has_ended_a_run = True
                self._seconds = max(self._seconds / _DIVISOR, _LEAST_SECONDS)


def call_within(seconds: float, action: Callable[[], Result]) -> Result:
    """Return the result of `action`, which may make such a call too: the limit that ends first holds.

    A function rather than a context manager, which an exception raised just as it is left would leave unfinished.
    Nothing is limited on platforms without timers (Windows), outside the main thread, and while another timer runs.

    Raises TooLong after `seconds`, as soon as Python runs a bytecode, and again where `action` catches it.
    """
    available = hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()
    if not available or (not _limits and signal.getitimer(signal.ITIMER_REAL)[0] > 0):
        return action()
    limit = _Limit(monotonic() + seconds)
    handler = signal.getsignal(signal.SIGALRM)
    with _raised_after_finalizers():
        try:
            try:
                _limits.append(limit)
                signal.signal(signal.SIGALRM, _expire)
                _set_timer()
                return action()
            finally:
                limit.lift(handler)
        finally:
            # again, since the exception may have been raised just as the limit was lifted; the next one comes later
            limit.lift(handler)


@dataclass(eq=False)
class _Limit:
    """One limit in force."""

    deadline: float

    def lift(self, handler: Any) -> None:
        """End this limit, and go on with those around it; after the last one the signal gets its handler back."""
        if self in _limits:
            _limits.remove(self)
        _set_timer()
        signal.signal(signal.SIGALRM, handler if handler is not None else signal.SIG_DFL)


_limits: list[_Limit] = []
"""Those in force, in the main thread."""


def _set_timer() -> None:
    left = min((limit.deadline for limit in _limits), default=None)
    seconds = 0.0 if left is None else max(left - monotonic(), _AT_ONCE_SECONDS)
    signal.setitimer(signal.ITIMER_REAL, seconds, _REPEAT_SECONDS)


def _expire(number: int, frame: FrameType | None) -> None:
    """Raise TooLong if a limit is over, unless a module is being imported."""
    left = min((limit.deadline for limit in _limits), default=math.inf) - monotonic()
    if left > _TOLERANCE:  # the traced code, or a finalizer after the last limit, has set the timer
        _set_timer()
    elif left < -_IMPORT_SECONDS or not _is_importing(frame):
        raise TooLong("it took too long")


def _is_importing(frame: FrameType | None) -> bool:
    """Return whether code runs as a module is imported."""
    while frame is not None:
        if begins_import(frame):
            return True
        frame = frame.f_back
    return False


def begins_import(frame: FrameType) -> bool:
    """Return whether a frame is one of Python's own that import a module."""
    return frame.f_code.co_filename in _IMPORT_FILES


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

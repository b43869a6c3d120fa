"""Time limits of a file's own statements as it is imported, such as a script's that trains when it is run."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic  # bound now, since code may replace it
from types import FrameType
from typing import TypeVar

from attnshape.runtime.time_limit import TooLong, begins_import

Result = TypeVar("Result")
Allowed = Callable[[int], tuple[int, float]]
"""Returns the first line of the statement on a line, and how many seconds it may take."""

_TICK = 0.25
"""How often the running statement is looked at, in seconds."""


def limit_statements(file: str, allowed: Allowed, action: Callable[[], Result]) -> Result:
    """Return the result of `action`, which runs the statements of a file. What they import may take any time.

    Nothing is limited on platforms without timers (Windows), outside the main thread, and while another timer runs.

    Raises:
        TooLong: A statement took longer than it may; it is raised in that statement, and again where that catches it.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not hasattr(signal, "setitimer") or not is_main or signal.getitimer(signal.ITIMER_REAL)[0] > 0:
        return action()
    watch = _Watch(file, allowed)
    look = watch.look
    handler = signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, _TICK, _TICK)
    try:
        return action()
    finally:
        if signal.getsignal(signal.SIGALRM) is look:  # the code may have its own
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, handler if handler is not None else signal.SIG_DFL)


@dataclass
class _Watch:
    file: str
    allowed: Allowed
    taken: dict[int, float] = field(default_factory=dict)
    """The seconds that the statements on these lines have taken."""
    last: float = field(default_factory=monotonic)

    def look(self, number: int, frame: FrameType | None) -> None:
        """Add the time since the last look to the statement that runs, unless it imports; raise TooLong in the end."""
        elapsed, self.last = monotonic() - self.last, monotonic()
        line = self._line(frame)
        if line is None:
            return
        start, seconds = self.allowed(line)
        self.taken[start] = self.taken.get(start, 0.0) + elapsed
        if self.taken[start] > seconds:
            raise TooLong("it took too long")

    def _line(self, frame: FrameType | None) -> int | None:
        """Return the line of the file at which its own statements are; None if none runs, or something is imported."""
        while frame is not None and not begins_import(frame):
            if frame.f_code.co_name == "<module>" and frame.f_code.co_filename == self.file:
                return frame.f_lineno
            frame = frame.f_back
        return None

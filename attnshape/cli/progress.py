"""A progress line on the terminal for long commands, erased at the end.

rich's Status isn't suitable: it wraps the traced code's output at the terminal's width, ends its unfinished lines, and
replaces sys.stdout and sys.stderr, which attnshape.runtime.capture has replaced already.
"""

from __future__ import annotations

import io
import os
import sys
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

from attnshape.runtime import worker

if TYPE_CHECKING:
    from rich.console import Console

_DELAY = 2.0
"""Seconds until the line appears; most traces take less."""
_INTERVAL = 0.2


class Progress:
    """A progress line on standard error, if that is a terminal.

    Text printed to `sys.stderr` in the meantime appears above the line, unchanged.
    """

    def __init__(self) -> None:
        self._activity = ""
        self._started = time.monotonic()
        self._stream = self._terminal = sys.stderr
        self._console: Console | None = None
        self._visible = ""
        self._at_line_start = True
        self._lock = threading.RLock()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._refresh, daemon=True)

    def __call__(self, activity: str) -> None:
        """Set the activity that the line shows."""
        self._activity = activity
        worker.send_activity(activity)

    def __enter__(self) -> Progress:
        if _is_terminal(self._stream):
            sys.stderr = io.TextIOWrapper(
                io.BufferedWriter(_ErasingFile(self)), self._stream.encoding, self._stream.errors, line_buffering=True
            )
            # while the traced code runs unattended, descriptor 2 leads elsewhere
            self._terminal = os.fdopen(os.dup(2), "w", encoding=self._stream.encoding, errors=self._stream.errors)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._done.set()
        if self._thread.is_alive():
            self._thread.join()
        self.hide()
        if sys.stderr is not self._stream:
            sys.stderr.flush()
            sys.stderr = self._stream
        if self._terminal is not self._stream:
            self._terminal.close()

    def hide(self, at_line_start: bool = True) -> None:
        """Erase the line. It reappears once other output ends with a newline."""
        with self._lock:
            if self._visible and self._console is not None:
                from rich.control import Control
                from rich.segment import ControlType

                self._console.control(Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2)))
                worker.send(worker.PROGRESS)
            self._visible = ""
            self._at_line_start = at_line_start

    def _refresh(self) -> None:
        if self._done.wait(_DELAY):
            return
        # the import takes a tenth of a second, so only long commands make it
        from rich.console import Console

        self._console = Console(file=self._terminal, highlight=False)
        while not self._console.is_dumb_terminal and not self._done.wait(_INTERVAL):
            with self._lock:
                if self._at_line_start:
                    self._draw(self._console)

    def _draw(self, console: Console) -> None:
        seconds = f", {int(time.monotonic() - self._started)} s"
        text = f"attnshape: {self._activity}"[: max(console.width - 1 - len(seconds), 0)] + seconds
        if text == self._visible:
            return
        self.hide()
        worker.send(worker.PROGRESS, b"1")
        console.print(text[: max(console.width - 1, 0)], end="", style="dim", markup=False, soft_wrap=True)
        self._terminal.flush()
        self._visible = text


class _ErasingFile(io.FileIO):
    """The file of standard error, which erases the progress line before each write."""

    def __init__(self, progress: Progress) -> None:
        super().__init__(2, "w", closefd=False)
        self._progress = progress

    def write(self, data: bytes) -> int:  # type: ignore[override]  # only bytes come from a buffered writer
        with self._progress._lock:
            self._progress.hide(bytes(data[-1:]) == b"\n")
            return super().write(data) or 0


def _is_terminal(stream: Any) -> bool:
    """Return whether a stream is the process's own standard error, and a terminal."""
    try:
        return bool(stream.fileno() == 2 and stream.isatty())
    except (AttributeError, OSError, ValueError):  # None, closed, or replaced by an object that isn't a file
        return False

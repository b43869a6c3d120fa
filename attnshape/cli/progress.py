"""Shows on a terminal what a long command is doing, and leaves nothing behind.

Not by rich's Status: that wraps what the traced code prints at the terminal's width, ends its unfinished lines, and
replaces sys.stdout and sys.stderr, which attnshape.runtime.capture has replaced by then.
"""

from __future__ import annotations

import io
import sys
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

from attnshape.runtime.signals import clear_progress_on_exit

if TYPE_CHECKING:
    from rich.console import Console

_AFTER = 2.0
"""Seconds before anything is shown: most traces are done by then."""
_INTERVAL = 0.2


class Progress:
    """A line at the bottom of the terminal that standard error is; nothing if it isn't a terminal.

    Text that is printed to `sys.stderr` in the meantime goes above the line, unchanged.
    """

    def __init__(self) -> None:
        self._activity = ""
        self._started = time.monotonic()
        self._stream = sys.stderr
        self._console: Console | None = None
        self._visible = ""
        self._at_line_start = True
        self._lock = threading.RLock()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._refresh, daemon=True)

    def __call__(self, activity: str) -> None:
        """Set what the line says that the command is doing."""
        self._activity = activity

    def __enter__(self) -> Progress:
        if _is_terminal(self._stream):
            sys.stderr = io.TextIOWrapper(
                io.BufferedWriter(_Above(self)), self._stream.encoding, self._stream.errors, line_buffering=True
            )
            clear_progress_on_exit(lambda: bool(self._visible))
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

    def hide(self, at_line_start: bool = True) -> None:
        """Erase the line. It comes back once the text printed after it has ended its own line."""
        with self._lock:
            if self._visible and self._console is not None:
                from rich.control import Control
                from rich.segment import ControlType

                self._console.control(Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2)))
            self._visible = ""
            self._at_line_start = at_line_start

    def _refresh(self) -> None:
        if self._done.wait(_AFTER):
            return
        # the import takes a tenth of a second, which only long work can spare
        from rich.console import Console

        self._console = Console(file=self._stream, highlight=False)
        while not self._console.is_dumb_terminal and not self._done.wait(_INTERVAL):
            with self._lock:
                if self._at_line_start:
                    self._draw(self._console)

    def _draw(self, console: Console) -> None:
        text = f"attnshape: {self._activity}, {int(time.monotonic() - self._started)} s"
        if text == self._visible:
            return
        self.hide()
        console.print(text[: max(console.width - 1, 0)], end="", style="dim", markup=False, soft_wrap=True)
        self._stream.flush()
        self._visible = text


class _Above(io.FileIO):
    """Standard error's own file, which erases the progress line before anything is written."""

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
    except (AttributeError, OSError, ValueError):  # it is None or closed, or was replaced by something that is no file
        return False

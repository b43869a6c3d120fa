"""Says on a terminal what is being done, where that takes a while, and leaves nothing behind."""

from __future__ import annotations

import io
import sys
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING

from attnshape.ending import wiped_at_the_end

if TYPE_CHECKING:
    from rich.console import Console

_AFTER = 2.0
"""Seconds for which nothing is shown: most traces are done by then."""
_TICK = 0.2


class Progress:
    """A line at the bottom of standard error's terminal; nothing at all where that is none.

    What is printed to `sys.stderr` meanwhile goes above the line, unchanged.
    """

    def __init__(self) -> None:
        self._doing = ""
        self._started = time.monotonic()
        self._stream = sys.stderr
        self._console: Console | None = None
        self._shown = ""
        self._at_line_start = True
        self._drawing = threading.RLock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep_showing, daemon=True)

    def __call__(self, doing: str) -> None:
        """Say what is being done from now on."""
        self._doing = doing

    def __enter__(self) -> Progress:
        if _is_terminal(self._stream):
            sys.stderr = io.TextIOWrapper(
                io.BufferedWriter(_Above(self)), self._stream.encoding, self._stream.errors, line_buffering=True
            )
            wiped_at_the_end(lambda: bool(self._shown))
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        self.hide()
        if sys.stderr is not self._stream:
            sys.stderr.flush()
            sys.stderr = self._stream

    def hide(self, at_line_start: bool = True) -> None:
        """Take the line away; it comes back only where what is then printed has ended its own."""
        with self._drawing:
            if self._shown and self._console is not None:
                from rich.control import Control
                from rich.segment import ControlType

                self._console.control(Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2)))
            self._shown = ""
            self._at_line_start = at_line_start

    def _keep_showing(self) -> None:
        if self._over.wait(_AFTER):
            return
        # a tenth of a second that only long work can spare
        from rich.console import Console

        self._console = Console(file=self._stream, highlight=False)
        while not self._console.is_dumb_terminal and not self._over.wait(_TICK):
            with self._drawing:
                if self._at_line_start:
                    self._show(self._console)

    def _show(self, console: Console) -> None:
        text = f"attnshape: {self._doing}, {int(time.monotonic() - self._started)} s"
        if text == self._shown:
            return
        self.hide()
        console.print(text[: max(console.width - 1, 0)], end="", style="dim", markup=False, soft_wrap=True)
        self._stream.flush()
        self._shown = text


class _Above(io.FileIO):
    """Standard error's own file, which takes the line away before anything is written."""

    def __init__(self, progress: Progress) -> None:
        super().__init__(2, "w", closefd=False)
        self._progress = progress

    def write(self, data: bytes) -> int:  # type: ignore[override]  # only bytes come from a buffered writer
        with self._progress._drawing:
            self._progress.hide(bytes(data[-1:]) == b"\n")
            return super().write(data) or 0


def _is_terminal(stream: object) -> bool:
    """Say whether a stream is the process's own standard error, and a terminal."""
    try:
        return stream is not None and stream.fileno() == 2 and stream.isatty()  # type: ignore[attr-defined]
    except (AttributeError, OSError, ValueError):  # replaced by something that is no file, or closed
        return False

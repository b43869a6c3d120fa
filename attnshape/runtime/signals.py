"""Shutdown: the process ends at once on Ctrl-C or SIGTERM, and quickly after its work, with no file half written.

Without POSIX signals (Windows), Ctrl-C takes effect only between two bytecodes: code that is stuck in C delays it.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

_GRACE = 1.0
"""Seconds that the traced code has to clean up after Ctrl-C, and its threads after the last step."""


class _Shutdown:
    """Whether the process was told to end, and what remains to be done before it does."""

    owns_process: bool = False
    """Whether the process runs the command line, and nothing else."""
    status: int | None = None
    """The exit status that a signal requests."""
    foreign_depth: int = 0
    """How many `foreign_code` contexts are open."""
    unfinished: tuple[str, ...] = ()
    """Files that are being written."""
    progress_visible: Callable[[], bool] = staticmethod(lambda: False)


def obey_signals() -> None:
    """Make Ctrl-C and SIGTERM end the process with status 130 and 143, whatever it is doing.

    Call it once, first, in a process that runs the command line. A signal that was ignored when the process started,
    as SIGINT is in a shell's background job, stays ignored.
    """
    _Shutdown.owns_process = True
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _handle)
    sys.unraisablehook = _report_unraisable
    if not hasattr(os, "register_at_fork"):
        return
    # Python runs a handler only between two bytecodes; this thread ends the process where the code is stuck in C
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    os.register_at_fork(after_in_child=_reset_in_child)
    _thread.start_new_thread(_watch, (reader,))


@contextlib.contextmanager
def foreign_code() -> Iterator[None]:
    """Deliver Ctrl-C as a KeyboardInterrupt while other people's code runs, so that it can clean up."""
    _Shutdown.foreign_depth += 1
    try:
        yield
    finally:
        _Shutdown.foreign_depth -= 1
        if _Shutdown.status is not None:
            leave(_Shutdown.status)


@contextlib.contextmanager
def removed_if_unfinished(*files: str) -> Iterator[None]:
    """Remove these files if the process is told to end inside the context."""
    _Shutdown.unfinished = files
    try:
        yield
    finally:
        _Shutdown.unfinished = ()


def ends_with_the_command() -> bool:
    """Return whether the process runs the command line, and so ends with its one command."""
    return _Shutdown.owns_process


def is_interrupted() -> bool:
    """Return whether a signal has told the process to end."""
    return _Shutdown.status is not None


def reraise_interruption(error: BaseException) -> None:
    """Raise an exception again if it comes from the user's Ctrl-C, rather than from a `raise` in the traced code."""
    if is_interrupted():
        raise KeyboardInterrupt
    if not isinstance(error, KeyboardInterrupt) or error.__traceback__ is None:
        return
    import dis  # rarely needed

    # the traced code raises one by a `raise` statement; a signal raises one anywhere
    last: TracebackType = error.__traceback__
    while last.tb_next is not None:
        last = last.tb_next
    if dis.opname[last.tb_frame.f_code.co_code[last.tb_lasti]] != "RAISE_VARARGS":
        raise error


def leave(status: int) -> None:
    """End the process without unloading torch, which would take the interpreter longer than a trace.

    The traced code's exit handlers run first, printing to standard error, and its threads have a second to finish.
    """
    gc.freeze()
    _flush()
    with contextlib.suppress(OSError):
        os.dup2(2, 1)
    if any(not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
        _thread.start_new_thread(_end_after, (_GRACE, status))
    for finalize in (threading._shutdown, atexit._run_exitfuncs):  # type: ignore[attr-defined]  # as the interpreter does
        with contextlib.suppress(BaseException):
            finalize()
    _flush()
    _end(_Shutdown.status or status)


def clear_progress_on_exit(visible: Callable[[], bool]) -> None:
    """Erase the terminal's current line when the process is told to end while `visible` returns True."""
    _Shutdown.progress_visible = visible


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()


def _end(status: int) -> None:
    if _Shutdown.progress_visible():
        with contextlib.suppress(OSError):
            os.write(2, b"\r\x1b[2K")
    for file in _Shutdown.unfinished:
        with contextlib.suppress(OSError):
            os.unlink(file)  # noqa: PTH108 - a signal handler does as little as it can
    os._exit(status)


def _handle(number: int, frame: object) -> None:
    _Shutdown.status = 128 + number
    if not _Shutdown.foreign_depth:
        _end(_Shutdown.status)
    raise KeyboardInterrupt


def _watch(reader: int) -> None:
    """Wait for a signal; end the process if it still runs a second later, or on a second signal."""
    import select  # rarely needed

    while True:
        number = os.read(reader, 1)[0]
        if number in (signal.SIGINT, signal.SIGTERM):
            select.select([reader], [], [], _GRACE)
            _end(128 + number)


def _end_after(seconds: float, status: int) -> None:
    import time  # rarely needed

    time.sleep(seconds)
    _end(status)


def _reset_in_child() -> None:
    """Give a forked child Python's own signal handlers."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is _handle:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def _report_unraisable(unraisable: Any) -> None:
    """Keep silent about a KeyboardInterrupt that comes where none can be raised, as in `__del__`."""
    if not (is_interrupted() and isinstance(unraisable.exc_value, KeyboardInterrupt)):
        sys.__unraisablehook__(unraisable)

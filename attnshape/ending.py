"""How the process ends: by itself, or at once when the user or the system asks for it, with nothing half written."""

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


class _Asked:
    """Whether the process was asked to end, and what is to be done then."""

    obeys: bool = False
    """Whether the process is the tool's own."""
    status: int | None = None
    foreign: int = 0
    """How many `foreign_code` contexts are open."""
    unfinished: tuple[str, ...] = ()
    """Files that are being written."""
    line: Callable[[], bool] = staticmethod(lambda: False)
    """Whether a line of progress is on the terminal."""


def obey_signals() -> None:
    """Have Ctrl-C and SIGTERM end the process with 130 and 143, whatever it is doing. For the process's own start.

    A signal that the process was started to ignore, as in the background, stays ignored.
    """
    _Asked.obeys = True
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _asked)
    sys.unraisablehook = _unraisable
    if os.name != "posix":
        return
    # Python runs a handler only between two bytecodes; this thread ends the process where the code is stuck in C
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    os.register_at_fork(after_in_child=_forget)
    _thread.start_new_thread(_watch, (reader,))


@contextlib.contextmanager
def foreign_code() -> Iterator[None]:
    """Within it the code of others runs: Ctrl-C is a KeyboardInterrupt there, so that it can clean up."""
    _Asked.foreign += 1
    try:
        yield
    finally:
        _Asked.foreign -= 1
        if _Asked.status is not None:
            leave(_Asked.status)


@contextlib.contextmanager
def removed_if_unfinished(*files: str) -> Iterator[None]:
    """Within it files are being written, which are removed where the process ends meanwhile."""
    _Asked.unfinished = files
    try:
        yield
    finally:
        _Asked.unfinished = ()


def ends_with_the_command() -> bool:
    """Say whether the process is the tool's own, which ends once its one command is done."""
    return _Asked.obeys


def was_asked() -> bool:
    """Say whether the process has been asked to end."""
    return _Asked.status is not None


def reraise_interruption(error: BaseException) -> None:
    """Raise an exception again where it is the user's Ctrl-C, not one of the traced code's own."""
    if was_asked():
        raise KeyboardInterrupt
    if not isinstance(error, KeyboardInterrupt) or error.__traceback__ is None:
        return
    import dis  # only where it is needed

    # one that the code raised itself comes from a `raise`; a signal's comes from anywhere
    last: TracebackType = error.__traceback__
    while last.tb_next is not None:
        last = last.tb_next
    if dis.opname[last.tb_frame.f_code.co_code[last.tb_lasti]] != "RAISE_VARARGS":
        raise error


def leave(status: int) -> None:
    """End the process at once: taking torch's modules apart, as the interpreter does, takes longer than a trace.

    What the traced code has left to do at exit is done, printing to standard error; its threads have a second.
    """
    gc.freeze()
    _flush()
    with contextlib.suppress(OSError):
        os.dup2(2, 1)
    if any(not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
        _thread.start_new_thread(_end_after, (_GRACE, status))
    for last in (threading._shutdown, atexit._run_exitfuncs):  # type: ignore[attr-defined]  # as the interpreter does
        with contextlib.suppress(BaseException):
            last()
    _flush()
    _end(_Asked.status or status)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()


def wiped_at_the_end(line: Callable[[], bool]) -> None:
    """Have a line on standard error's terminal wiped away where the process is ended, if it is there by then."""
    _Asked.line = line


def _end(status: int) -> None:
    if _Asked.line():
        with contextlib.suppress(OSError):
            os.write(2, b"\r\x1b[2K")
    for file in _Asked.unfinished:
        with contextlib.suppress(OSError):
            os.unlink(file)  # noqa: PTH108 - in a signal's handler the less is done the better
    os._exit(status)


def _asked(number: int, frame: object) -> None:
    _Asked.status = 128 + number
    if not _Asked.foreign:
        _end(_Asked.status)
    raise KeyboardInterrupt


def _watch(reader: int) -> None:
    """Wait for a signal; where the process still runs a second later, or is asked again, end it."""
    import select  # only where it is needed

    while True:
        number = os.read(reader, 1)[0]
        if number in (signal.SIGINT, signal.SIGTERM):
            select.select([reader], [], [], _GRACE)
            _end(128 + number)


def _end_after(seconds: float, status: int) -> None:
    import time  # only where it is needed

    time.sleep(seconds)
    _end(status)


def _forget() -> None:
    """In a child of the process: its signals are its own."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is _asked:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def _unraisable(unraisable: Any) -> None:
    """Say nothing of a KeyboardInterrupt that came where none can be raised, as in `__del__`."""
    if not (_Asked.status is not None and isinstance(unraisable.exc_value, KeyboardInterrupt)):
        sys.__unraisablehook__(unraisable)

"""Signals: Ctrl-C and SIGTERM end the process at once, but let the traced code clean up.

The supervisor kills a worker that doesn't obey. Without a supervisor, as in a notebook, Ctrl-C has its usual effect.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator
from os import _exit  # bound now, since code may replace it
from types import TracebackType
from typing import Any, NoReturn

from attnshape.runtime import worker


class _Interruption:
    """Whether a signal has told the process to end."""

    status: int | None = None
    """The exit status that the signal requests."""
    foreign_depth: int = 0
    """How many `foreign_code` contexts are open."""


def obey_signals() -> None:
    """Make Ctrl-C and SIGTERM end the process with status 130 and 143.

    Call it once, first, in a worker. A signal that was ignored when the process started stays ignored.
    """
    for number in worker.SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _handle)
    sys.unraisablehook = _report_unraisable
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_reset_in_child)


@contextlib.contextmanager
def foreign_code() -> Iterator[None]:
    """Deliver Ctrl-C as a KeyboardInterrupt while other people's code runs, so that it can clean up."""
    worker.end_with_supervisor()
    _Interruption.foreign_depth += 1
    try:
        yield
    finally:
        _Interruption.foreign_depth -= 1
        if _Interruption.status is not None:
            leave(_Interruption.status)


def is_interrupted() -> bool:
    """Return whether a signal has told the process to end."""
    return _Interruption.status is not None


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


def leave(status: int) -> NoReturn:
    """Report that the work is done, run the traced code's exit handlers, and end the process.

    Unloading torch would take the interpreter longer than a trace. The supervisor ends what takes too long.
    """
    gc.freeze()
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    if not is_interrupted():
        worker.send(worker.DONE, bytes([status]))
    with contextlib.suppress(OSError):
        os.dup2(2, 1)
    for finalize in (threading._shutdown, atexit._run_exitfuncs):  # type: ignore[attr-defined]  # as the interpreter does
        with contextlib.suppress(BaseException):
            finalize()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    _exit(status)


def _handle(number: int, frame: object) -> None:
    if is_interrupted():
        return  # the terminal and the supervisor may both have sent it
    _Interruption.status = 128 + number
    worker.send(worker.INTERRUPTED)
    if not _Interruption.foreign_depth:
        _exit(_Interruption.status)
    raise KeyboardInterrupt


def _reset_in_child() -> None:
    """Give a forked child Python's own signal handlers."""
    for number in worker.SIGNALS:
        if signal.getsignal(number) is _handle:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def _report_unraisable(unraisable: Any) -> None:
    """Keep silent about a KeyboardInterrupt that comes where none can be raised, as in `__del__`."""
    if not (is_interrupted() and isinstance(unraisable.exc_value, KeyboardInterrupt)):
        sys.__unraisablehook__(unraisable)

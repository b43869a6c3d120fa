"""The worker: the process that does a command's work. It reports to the supervisor, which outlives whatever happens.

Without a supervisor, as in the Python API, output is written directly, and the other reports have no effect.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import signal
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from os import _exit, fstat, write  # bound now, since code may replace what the modules have
from time import monotonic
from types import FrameType
from typing import Any

from attnshape.errors import AttnshapeError

TOKEN_SIZE = 8
HEADER = struct.Struct(f"={TOKEN_SIZE}scI")
"""What precedes a message: the token of this worker, the kind, and the number of bytes that follow."""
TIME_LIMIT_FIELDS = struct.Struct("=dd")
"""The seconds that a result may take, and when it was begun, in seconds of `time.monotonic`."""
LARGEST = 4096 - HEADER.size
"""The most bytes of a message: a pipe takes up to 4096 at once, so that messages from several threads never mix."""
OUTPUT, ERRORS = b"o", b"e"
"""A part of what belongs on standard output or standard error, to be written once the current result is complete."""
FILE, FILE_GONE = b"f", b"g"
"""A temporary file is being written, which must not stay if the worker dies; it is no longer there."""
ACTIVITY = b"a"
"""What the worker is doing now."""
PROGRESS = b"p"
"""Whether a progress line is on the terminal."""
TIME_LIMIT = b"t"
"""How long the current result may take."""
ITEM, RESULT = b"i", b"r"
"""A batch starts an item; a part of the encoded result of the current one."""
ITEM_FIELDS = struct.Struct("=I")
"""The number of the item that starts."""
COMMIT = b"c"
"""The result of the current item is complete."""
INTERRUPTED = b"s"
"""A signal has arrived."""
DONE = b"d"
"""The exit status. Only with this message does the work count as done."""

SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
"""The signals that end the work."""
SLACK = 1.2
"""Seconds between the time limit, at which the worker stops by itself, and its end by force."""
_DUMP_EARLIER = 0.2


@dataclass(frozen=True)
class Death:
    """How a worker ended without having finished its work."""

    status: int
    """The exit status, or the negative number of the signal."""
    time_limit: float | None = None
    """The time limit in seconds, if the supervisor ended the worker because of it."""
    activity: str = ""
    location: str = ""
    """The line of the code that ran last, `file:line`, where it is known."""

    @property
    def error(self) -> AttnshapeError:
        """The error that tells the user."""
        during = (f", at {self.location}" if self.location else "") + (f" ({self.activity})" if self.activity else "")
        if self.time_limit is not None:
            return AttnshapeError(
                f"there is no result: the time limit of {self.time_limit:g} s was reached{during}",
                "raise --time-limit, or choose smaller sizes",
            )
        if self.status >= 0:
            return AttnshapeError(
                f"there is no result: the process ended with status {self.status}{during}",
                "look for os._exit(), and for code that closes all files or replaces functions of Python",
            )
        try:
            name = signal.Signals(-self.status).name
        except ValueError:
            name = f"signal {-self.status}"
        meaning = {"SIGSEGV": " (a segmentation fault)", "SIGKILL": " (perhaps for lack of memory)"}.get(name, "")
        hint = (
            "choose smaller sizes, or find the step that needs the memory with --memory-limit"
            if name == "SIGKILL"
            else "run the code by itself with python -X faulthandler"
        )
        return AttnshapeError(f"there is no result: {name}{meaning} ended the process{during}", hint)


class _Connection:
    """The pipe to the supervisor, and what the worker knows from it."""

    descriptor: int | None = None
    token: bytes = b""
    """Random bytes, which tell a message from what code writes to every open file."""
    identity: tuple[int, int] = (0, 0)
    """The pipe's device and inode: code may close the descriptor and open another file under its number."""
    dumps: int = -1
    """The descriptor to which the location is dumped in a crash, and at the time limit."""
    started: float = 0.0
    """When the time limit of the current result began to count."""
    in_batch: bool = False
    """Whether an item of a batch was started; the first one's time counts from the start of the process."""
    time_limit: float | None = None
    results: tuple[bytes, ...] = ()
    death: Death | None = None
    is_child: bool = False
    """Whether this process is a child of the worker, which has nothing to report."""


def connect(
    descriptor: int,
    dumps: int,
    token: bytes,
    started: float,
    results: tuple[bytes, ...] = (),
    death: Death | None = None,
) -> None:
    """Report to a supervisor from now on.

    Args:
        descriptor: The pipe for messages.
        dumps: The pipe for the location of a crash.
        token: What begins each message.
        started: When the worker was started, in seconds of `time.monotonic`.
        results: The encoded results of the items of a batch that earlier workers finished.
        death: How the worker before this one died, in the item after these.
    """
    import faulthandler

    _Connection.descriptor, _Connection.identity = descriptor, _identity(descriptor)
    _Connection.dumps, _Connection.token, _Connection.started = dumps, token, started
    _Connection.results, _Connection.death = results, death
    # what a process that supervises and was a worker itself has left
    _Connection.is_child, _Connection.in_batch, _Connection.time_limit = False, False, None
    faulthandler.enable(dumps, all_threads=False)
    encoding, errors = getattr(sys.stdout, "encoding", "utf-8"), getattr(sys.stdout, "errors", "strict")
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(_Output(os.dup(1), "w")), encoding, errors)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_become_child)


class _Output(io.FileIO):
    """Standard output, which the supervisor writes; this file tells only whether it is a terminal, and how wide."""

    def write(self, data: Any) -> int:
        send(OUTPUT, bytes(data))
        return len(data)


def is_supervised() -> bool:
    """Return whether a supervisor watches this process, or the process that forked it."""
    return _Connection.descriptor is not None or _Connection.is_child


def send(kind: bytes, payload: bytes = b"") -> None:
    """Send a message, in parts if it is long. Without a supervisor, do nothing."""
    for start in range(0, max(len(payload), 1), LARGEST):
        part = payload[start : start + LARGEST]
        descriptor = _Connection.descriptor
        if descriptor is None:
            return
        try:
            if _identity(descriptor) != _Connection.identity:
                raise OSError
            write(descriptor, HEADER.pack(_Connection.token, kind, len(part)) + part)
        except OSError:  # the supervisor has gone, or the code closed the pipe: nothing can be reported any more
            _exit(2)


def send_activity(activity: str) -> None:
    """Report what the worker is doing, which is named if it dies."""
    send(ACTIVITY, activity.encode(errors="backslashreplace")[:LARGEST])


def limit_time(seconds: float) -> None:
    """Have the supervisor end this process `SLACK` seconds after a result has taken this long.

    The time counts from the start of the process, or from the start of the batch's current item.
    """
    _Connection.time_limit = seconds
    # a worker that goes on with a batch starts to count with its first item
    if is_supervised() and (_Connection.death is None or _Connection.in_batch):
        import faulthandler

        send(TIME_LIMIT, TIME_LIMIT_FIELDS.pack(seconds, _Connection.started))
        faulthandler.dump_traceback_later(
            max(seconds_left(seconds) + SLACK - _DUMP_EARLIER, 0.1), file=_Connection.dumps
        )


def seconds_left(time_limit: float) -> float:
    """Return how much of a time limit is left for the current result; without a supervisor all of it."""
    return max(_Connection.started + time_limit - monotonic(), 0.0) if is_supervised() else time_limit


def seconds_until_limit() -> float:
    """Return how much is left of the time that `limit_time` set, infinity if it set none."""
    return math.inf if _Connection.time_limit is None else seconds_left(_Connection.time_limit)


def limit_memory(limit: int) -> None:
    """Limit the memory that this process can allocate, in bytes.

    Raises AttnshapeError on platforms without such limits.
    """
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    except (ImportError, AttributeError, ValueError, OSError) as error:
        raise AttnshapeError(
            f"--memory-limit: memory can't be limited here: {error}", "leave it out, or run in a container with a limit"
        ) from None


def end_with_supervisor() -> None:
    """Have the kernel end this process when the supervisor is killed. Only Linux can."""
    if _Connection.descriptor is None or sys.platform != "linux":
        return
    import ctypes  # torch, which the code needs, imports it anyway

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


_PR_SET_PDEATHSIG = 1


def earlier_results() -> tuple[bytes, ...]:
    """Return the encoded results of a batch's first items, which earlier workers finished and wrote."""
    return _Connection.results


def death_in_item() -> Death | None:
    """Return how the worker before this one died, in the item of the batch that follows the earlier results."""
    return _Connection.death


def start_item(number: int) -> None:
    """Report that a batch starts an item, for which a time limit counts from now on."""
    if _Connection.in_batch or _Connection.death is not None:
        _Connection.started = monotonic()
    _Connection.in_batch = True
    send(ITEM, ITEM_FIELDS.pack(number))
    if _Connection.time_limit is not None:
        limit_time(_Connection.time_limit)


def finish_item(result: bytes) -> None:
    """Report the encoded result of the current item of a batch, after its output."""
    send(RESULT, result)
    send(COMMIT)


@contextlib.contextmanager
def temporary_file(path: str) -> Iterator[None]:
    """Have the supervisor remove a temporary file if this process dies inside the context."""
    send(FILE, os.fsencode(path))
    try:
        yield
    finally:
        send(FILE_GONE, os.fsencode(path))


def _identity(descriptor: int) -> tuple[int, int]:
    status = fstat(descriptor)
    return status.st_dev, status.st_ino


# forked children

_OWN = __name__.partition(".")[0]
_PIPELINES = f"{_OWN}.pipelines."


def _become_child() -> None:
    """Disconnect a child that the target forked, and have it end where the target's code ends.

    What called the target belongs to the worker alone: in the child, the caller's next line ends the process.
    """
    descriptor, _Connection.descriptor = _Connection.descriptor, None
    if descriptor is None:
        return
    _Connection.is_child = True
    with contextlib.suppress(OSError):
        os.close(descriptor)
    caller = _caller_of_target(sys._getframe(1))
    if caller is not None:
        caller.f_trace = _end_child
        sys.settrace(lambda frame, event, argument: None)  # a frame's own trace function needs one for the thread


def _caller_of_target(frame: FrameType | None) -> FrameType | None:
    """Return the function of this package that called the target: below the pipeline, the first to call other code."""
    caller = found = None
    called_is_own = True
    while frame is not None:
        name = str(frame.f_globals.get("__name__"))
        is_own = name.partition(".")[0] == _OWN
        if is_own and not called_is_own:
            caller = frame
        if name.startswith(_PIPELINES):
            found = caller
        called_is_own, frame = is_own, frame.f_back
    return found


def _end_child(frame: FrameType, event: str, argument: Any) -> None:
    """End this process as Python ends a script: with the status of an exception, or with 0."""
    status: object = 0
    if event == "exception":
        kind, error, traceback = argument
        status = error.code if isinstance(error, SystemExit) else 1
        if not isinstance(error, SystemExit):
            sys.excepthook(kind, error, traceback)
        elif status is not None and not isinstance(status, int):
            print(status, file=sys.stderr)  # noqa: T201 - as Python does
            status = 1
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    _exit(status & 0xFF if isinstance(status, int) else 0)

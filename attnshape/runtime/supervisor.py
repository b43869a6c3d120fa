"""The supervisor: the small process that the user starts. It starts a worker for a command's work, and watches it.

Whatever the traced code does to the worker's process, the supervisor answers signals, ends the worker at the time
limit, writes the output of complete results, and returns the right exit status.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import select
import signal
import sys
import sysconfig
import time
from _queue import Empty, SimpleQueue
from _thread import start_new_thread
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn, Protocol

from attnshape.runtime import worker
from attnshape.runtime.worker import SIGNALS, Death

_WORKER = "ATTNSHAPE_WORKER"
"""The environment variable that gives the descriptors to a worker that wasn't forked."""
_GRACE = 1.2
"""Seconds that a worker has to end after a signal, and after its work is done."""
_TERMINAL_GRACE = 0.1
"""Seconds for the terminal's Ctrl-C to reach the worker by itself, since it is sent to both processes."""
_END_OF_MESSAGES, _DIED, _SIGNAL = "end of messages", "died", "signal"
_LOCATION = re.compile(r'^  File "(.*)", line (\d+) in ', re.MULTILINE)

Events = SimpleQueue[tuple[Any, Any]]
Work = Callable[[], int]
"""Does the work of the command line in the worker, and returns its exit status."""


class _Process(Protocol):
    """A process as `subprocess.Popen` represents it."""

    pid: int

    def wait(self) -> int: ...

    def send_signal(self, number: int) -> None: ...


class _Forked:
    """A process that was forked."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._ended = False

    def wait(self) -> int:
        """Wait for the end; return the exit status, or the negative number of the signal."""
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self._ended = True
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if not self._ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


def supervise(work: Work, report: Callable[[Death], None]) -> int:
    """Do the work in a worker process, and return the exit status for this one.

    If the worker dies in an item of a batch, another one goes on with the next item.

    Args:
        work: Does the work.
        report: Tells the user how the worker died.
    """
    _open_standard_streams()
    events = _receive_signals()
    terminal = _Terminal()
    results: tuple[bytes, ...] = ()
    death: Death | None = None
    while True:
        watched = _Watched(work, events, results, death)
        outcome = watched.watch()
        terminal.restore()
        if not isinstance(outcome, Death):
            for number in SIGNALS:
                signal.signal(number, signal.SIG_IGN)  # else a late one ends this process with another status
            return outcome
        if watched.item is None or not hasattr(os, "fork"):
            report(outcome)
            return 2
        results, death = tuple(watched.results), outcome


def supervise_items(work: Work, started: Callable[[int], None], finished: Callable[[int, bytes | Death], None]) -> int:
    """Do some items of a batch in a worker process, and return its exit status.

    If the worker dies in an item, another one does the rest of the work.

    Args:
        work: Does the items that are left when it is called.
        started: Gets the number of each item that is begun.
        finished: Gets the number of each item that is complete, with its encoded result, or with how the worker died.
    """
    events = _receive_signals()
    while True:
        watched = _Watched(work, events, (), None, started, finished)
        outcome = watched.watch()
        if not isinstance(outcome, Death):
            return outcome
        if watched.item is None:
            return 2
        finished(watched.item, outcome)


def _receive_signals() -> Events:
    """Return a queue into which the signals that end the work are put from now on."""
    events: Events = SimpleQueue()

    def receive(number: int, frame: object) -> None:
        events.put((_SIGNAL, number))
        if _Writing.active:
            raise InterruptedError

    for number in SIGNALS:
        # what was ignored when the process started, as SIGINT is in a shell's background job, stays ignored
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, receive)
    return events


def serve(work: Work) -> None:
    """Do the work and end the process, if a supervisor started it without `os.fork`."""
    descriptors = os.environ.pop(_WORKER, None)
    if descriptors is not None:
        messages, dumps, token = descriptors.split(",")
        worker.connect(_inherited(messages), _inherited(dumps), bytes.fromhex(token), time.monotonic())
        _work(work)


def _work(work: Work) -> NoReturn:
    from attnshape.runtime.signals import leave, obey_signals

    obey_signals()
    try:
        status = work()
    except BaseException:  # noqa: BLE001 - the code has broken Python itself, so that not even an error can be reported
        os._exit(2)
    leave(status)


class _Watched:
    """A worker process, what it has reported, and until when it may run."""

    def __init__(
        self,
        work: Work,
        events: Events,
        results: tuple[bytes, ...],
        death: Death | None,
        started: Callable[[int], None] = lambda number: None,
        finished: Callable[[int, bytes | Death], None] = lambda number, outcome: None,
    ) -> None:
        self.results = [*results]
        """The results of the items of a batch that are complete."""
        self.item: int | None = None
        """The number of the item of a batch that has been started and isn't complete."""
        self._item_started, self._item_finished = started, finished
        self._events = events
        self._started = time.monotonic()
        self._output: list[tuple[int, bytes]] = []
        self._output_error: OSError | None = None
        self._result = bytearray()
        self._activity = ""
        self._temporary_files: set[bytes] = set()
        self._progress_visible = False
        self._time_limit: float | None = None
        self._status: int | None = None
        self._interrupted = 0
        self._died: int | None = None
        self._killed = self._over_time = False
        self._deadline: float | None = None
        """When to kill the worker."""
        self._forward_at: float | None = None
        """When to send the worker the signal that this process got, unless the worker reports that it got it too."""
        token = os.urandom(worker.TOKEN_SIZE)
        with _signals_blocked():  # in the threads too: if one got a signal, the main thread would wait on
            self._process, messages, self._dumps = _start(work, token, self._started, results, death)
            try:
                start_new_thread(_read_messages, (messages, token, events))
                start_new_thread(lambda: events.put((_DIED, self._process.wait())), ())
            except RuntimeError as error:  # for lack of memory
                self._process.send_signal(getattr(signal, "SIGKILL", signal.SIGTERM))
                raise OSError(errno.EAGAIN, str(error)) from None
        _adopt_orphans()

    def watch(self) -> int | Death:
        """Return the exit status once the worker has ended, or how it died."""
        messages_ended = False
        while self._died is None or not messages_ended:
            moments = [moment for moment in (self._deadline, self._forward_at) if moment is not None]
            try:
                timeout = max(min(moments) - time.monotonic(), 0.0) if moments else None
                kind, payload = self._events.get(timeout=timeout)
            except Empty:
                if self._act_on_time():
                    continue
                break
            if kind == _DIED:
                self._died = payload
                self._forward_at, self._deadline = None, time.monotonic() + _GRACE
                _kill_descendants()  # they may hold the pipe open
            elif kind == _END_OF_MESSAGES:
                messages_ended = True
            elif kind == _SIGNAL:
                self._on_signal(payload)
            else:
                self._on_message(kind, payload)
        _kill_descendants()
        for file in self._temporary_files:
            with contextlib.suppress(OSError):
                os.unlink(file)  # noqa: PTH108 - pathlib takes no bytes
        if self._progress_visible:
            _write(2, b"\r\x1b[2K")
        if self._status is not None:
            return self._status
        self._take_late_signal()
        if self._interrupted:
            return 128 + self._interrupted
        limit = self._time_limit if self._over_time else None
        return Death(self._died or 0, limit, self._activity, _last_location(self._dumps))

    def _take_late_signal(self) -> None:
        """Take note of a signal that ended the worker before this process heard of it: it was sent to both."""
        same = self._died is not None and -self._died in SIGNALS
        with contextlib.suppress(Empty):
            while not self._interrupted:
                kind, payload = self._events.get(timeout=_TERMINAL_GRACE if same else 0)
                self._interrupted = payload if kind == _SIGNAL else 0

    def _on_message(self, kind: bytes, payload: bytes) -> None:
        if kind in (worker.OUTPUT, worker.ERRORS):
            self._output.append((1 if kind == worker.OUTPUT else 2, payload))
        elif kind == worker.ACTIVITY:
            self._activity = payload.decode()
        elif kind == worker.PROGRESS:
            self._progress_visible = bool(payload)
        elif kind == worker.FILE:
            self._temporary_files.add(payload)
        elif kind == worker.FILE_GONE:
            self._temporary_files.discard(payload)
        elif kind == worker.TIME_LIMIT:
            self._time_limit, self._started = worker.TIME_LIMIT_FIELDS.unpack(payload)
            if not self._interrupted:
                self._deadline = self._started + self._time_limit + worker.SLACK
        elif kind == worker.ITEM:
            (self.item,) = worker.ITEM_FIELDS.unpack(payload)
            self._item_started(self.item)
        elif kind == worker.RESULT:
            self._result += payload
        elif kind == worker.INTERRUPTED:
            self._forward_at = None
        elif self._interrupted:
            return
        elif kind == worker.COMMIT:
            self._write_output()
            result = bytes(self._result)
            self.results.append(result)
            self._result.clear()
            if self.item is not None:
                self._item_finished(self.item, result)
            self.item, self._deadline = None, None
        elif kind == worker.DONE:
            self._finish(payload[0])

    def _on_signal(self, number: int) -> None:
        now = time.monotonic()
        if self._interrupted or self._status is not None:
            self._deadline = now  # the second one is urgent; after the work nothing is worth waiting for
            return
        self._interrupted = number
        self._deadline = now + _GRACE
        self._forward_at = now + _TERMINAL_GRACE if number == signal.SIGINT and _has_terminal() else now

    def _act_on_time(self) -> bool:
        """Do what is due; return False if there is nothing left to try."""
        now = time.monotonic()
        if self._forward_at is not None and now >= self._forward_at:
            self._forward_at = None
            self._process.send_signal(self._interrupted)
        if self._deadline is not None and now >= self._deadline:
            if self._killed:
                return False
            self._over_time = self._died is None and not self._interrupted and self._status is None
            self._killed, self._deadline = True, now + _GRACE
            if self._died is None:
                self._process.send_signal(getattr(signal, "SIGKILL", signal.SIGTERM))
        return True

    def _write_output(self) -> None:
        """Write the output of a complete result, unless standard output has refused some before."""
        output, self._output = self._output, []
        for descriptor, data in output:
            if self._output_error is None or descriptor == 2:
                error = _write(descriptor, data)
                # a reader that has gone, as in `attnshape … | head`, is no error
                if descriptor == 1 and not isinstance(error, BrokenPipeError):
                    self._output_error = error

    def _finish(self, status: int) -> None:
        """Write the output, and let the worker end; what the code does from now on doesn't count."""
        self._write_output()
        error = self._output_error
        if isinstance(error, InterruptedError):
            return
        if error is not None:
            message = f"error: standard output can't be written: {error.strerror}\n"
            _write(2, f"{message}hint: write to a file: --output FILE\n".encode())
        self._status = status if error is None else 2
        self._deadline = time.monotonic() + _GRACE


def _start(
    work: Work, token: bytes, started: float, results: tuple[bytes, ...], death: Death | None
) -> tuple[_Process, int, int]:
    """Start a worker; return its process, and the pipes of its messages and of its dumps."""
    messages, messages_end = os.pipe()
    dumps, dumps_end = os.pipe()
    if hasattr(os, "fork"):
        pid = os.fork()
        if not pid:
            for number in SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    signal.signal(number, signal.SIG_DFL)  # until the worker has handlers of its own
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            os.close(messages)
            os.close(dumps)
            if not _has_terminal():
                os.setpgid(0, 0)  # a signal that the code sends to its group then doesn't end the supervisor
            os.set_blocking(dumps_end, False)  # a crash must not wait for a reader
            worker.connect(messages_end, dumps_end, token, started, results, death)
            _work(work)
        process: _Process = _Forked(pid)
    else:
        process = _spawn(token, messages_end, dumps_end)
    os.close(messages_end)
    os.close(dumps_end)
    return process, messages, dumps


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block the signals inside, for good in the threads that are started there; they are handled at the end."""
    can_block = hasattr(signal, "pthread_sigmask")
    if can_block:
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        if can_block:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def _spawn(token: bytes, *descriptors: int) -> _Process:
    """Start a worker where there is no `os.fork`: this command again, with the pipes in its environment."""
    import subprocess

    handles = list(descriptors)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, True)
    if sys.platform == "win32":
        import msvcrt

        handles = [msvcrt.get_osfhandle(descriptor) for descriptor in descriptors]
    return subprocess.Popen(
        [sys.executable, "-P", "-m", __name__.partition(".")[0], *sys.argv[1:]],
        env={**os.environ, _WORKER: ",".join([*map(str, handles), token.hex()])},
        close_fds=False,
    )


def _inherited(handle: str) -> int:
    """Return the descriptor of a pipe that a worker inherited."""
    if sys.platform == "win32":
        import msvcrt

        return msvcrt.open_osfhandle(int(handle), os.O_WRONLY)
    os.set_inheritable(int(handle), False)
    return int(handle)


def _read_messages(descriptor: int, token: bytes, events: Events) -> None:
    """Put each complete message into the queue, up to the first that the worker didn't send."""
    with open(descriptor, "rb") as stream:
        while len(header := stream.read(worker.HEADER.size)) == worker.HEADER.size:
            sender, kind, length = worker.HEADER.unpack(header)
            if sender != token:
                break
            payload = stream.read(length)
            if len(payload) == length:
                events.put((kind, payload))
    events.put((_END_OF_MESSAGES, None))


class _Writing:
    """Whether output is being written, to a reader that may never take it: then a signal ends that."""

    active: bool = False


def _write(descriptor: int, data: bytes) -> OSError | None:
    """Write all data; return the error that prevented it, or None."""
    _Writing.active = True
    try:
        while data:
            try:
                data = data[os.write(descriptor, data) :]
            except BlockingIOError:
                select.select([], [descriptor], [])
    except OSError as error:
        return error
    finally:
        _Writing.active = False
    return None


def _open_standard_streams() -> None:
    """Open those of descriptors 0 to 2 that were closed, as with `>&-`: a pipe must not get such a number."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:  # as Python leaves the stream of a descriptor that was closed
            setattr(sys, name, open(descriptor, "w", encoding="utf-8", closefd=False))  # noqa: SIM115 - it stays open


# processes


def _adopt_orphans() -> None:
    """Become the parent of the worker's descendants when their own parents end, so that they can be found."""
    if sys.platform == "linux":
        import ctypes

        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


_PR_SET_CHILD_SUBREAPER = 36


def _kill_descendants() -> None:
    """Kill what the worker has left behind: children, and their children."""
    if not hasattr(os, "waitpid"):
        return
    until = time.monotonic() + _GRACE
    while time.monotonic() < until:
        try:
            if os.waitpid(-1, os.WNOHANG)[0]:
                continue
        except ChildProcessError:
            return
        for pid in _descendants():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)


def _descendants() -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208 - nothing else here needs pathlib
        if entry.isdecimal():
            with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{entry}/stat", "rb") as file:  # noqa: PTH123
                # the name in parentheses may contain anything
                children.setdefault(int(file.read().rpartition(b")")[2].split()[1]), []).append(int(entry))
    found = children.get(os.getpid(), [])
    for pid in found:
        found += children.get(pid, [])
    return found


# the terminal


def _has_terminal() -> bool:
    """Return whether a terminal controls this process: then Ctrl-C reaches the worker too, and it may read input."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR))
    except OSError:
        return False
    return True


class _Terminal:
    """The terminal's settings, which code may change, as `getpass` does, and not get to restore."""

    def __init__(self) -> None:
        self._saved: tuple[int, list[Any]] | None = None
        with contextlib.suppress(ImportError):
            import termios

            for descriptor in range(3):
                with contextlib.suppress(termios.error):
                    self._saved = descriptor, termios.tcgetattr(descriptor)
                    return

    def restore(self) -> None:
        """Restore the settings, if they have changed."""
        if self._saved is None:
            return
        import termios

        descriptor, before = self._saved
        with contextlib.suppress(termios.error):
            if termios.tcgetattr(descriptor) != before:
                # else a process in the background would be stopped
                signal.signal(signal.SIGTTOU, signal.SIG_IGN)
                termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


# locations


def _last_location(dumps: int) -> str:
    """Return the line, as `file:line`, that a dump names as the last outside of installed packages."""
    dump = b""
    with open(dumps, "rb", buffering=0) as stream, contextlib.suppress(OSError):
        os.set_blocking(dumps, False)
        while part := stream.read(1 << 16):
            dump += part
    installed = (*map(sysconfig.get_path, ("stdlib", "purelib", "scripts")), str(Path(__file__).parents[1]), "<")
    # of the threads, the main one is the last
    for thread in reversed(dump.decode(errors="replace").split("\n\n")):
        for file, line in _LOCATION.findall(thread):
            if not file.startswith(installed):
                return f"{os.path.relpath(file)}:{line}" if file.startswith(os.getcwd()) else f"{file}:{line}"  # noqa: PTH109
    return ""

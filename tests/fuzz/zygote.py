"""Forks a process for each command, with torch and attnshape imported already, and guards the machine against it.

`serve` runs in a process of its own, which never computes anything with torch. Every process of a case is a
descendant of it, also a daemon, because it is a subreaper: it counts them, kills them at the limits, and says which
ones a command left behind.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import multiprocessing.forkserver
import multiprocessing.process
import os
import pty
import resource
import select
import shutil
import signal
import socket
import sys
import termios
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

MOST_PROCESSES = 40
"""How many processes a command may have at one time."""
GRACE = 2.0
"""Seconds that processes may take to disappear after the command has ended."""
UNSUPPORTED = 97
"""The status of a child that couldn't be prepared because this machine permits no mounts or the like."""
_INTERVAL = 0.05
_COUNTING_INTERVAL = 0.25
_MOST_MEMORY = 4 << 30
_LIMITS = {"DATA": _MOST_MEMORY, "FSIZE": 64 << 20, "CORE": 0, "NOFILE": 256}
_PR_SET_CHILD_SUBREAPER, _PR_SET_PDEATHSIG = 36, 1
_CLONE_NEWNS, _MS_REC, _MS_PRIVATE = 0x20000, 0x4000, 0x40000
_FORK_SERVER_DESCRIPTOR = 200
_LIBC = ctypes.CDLL(None, use_errno=True)


def serve(connection: socket.socket) -> None:
    """Run the commands that arrive, one by one, until the other end is closed."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    _preload()
    gc.freeze()
    with connection.makefile("r", encoding="utf-8") as requests:
        connection.sendall(b'"ready"\n')
        for line in requests:
            connection.sendall(json.dumps(_run(json.loads(line))).encode() + b"\n")


def _preload() -> None:
    import libcst.matchers
    import libcst.metadata

    import attnshape.__main__
    import attnshape.annotate.sandbox.verification
    import attnshape.cli.app
    import attnshape.cli.batch
    import attnshape.comparison.saved
    import attnshape.pipelines.annotate
    import attnshape.pipelines.check
    import attnshape.pipelines.comments
    import attnshape.pipelines.record
    import attnshape.pipelines.trace

    assert libcst.metadata
    assert attnshape


class _Watched:
    """A command that runs."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        self.request = request
        self.status: int | None = None
        self.leader, self.follower = pty.openpty() if request["terminal"] else (-1, -1)
        self.modes = termios.tcgetattr(self.follower) if request["terminal"] else None
        self.terminal_output = bytearray()
        self.pipes: dict[int, _Reader] = {}
        self.ends: list[int] = []
        streams = [self._open(number) for number in range(3)]
        fork_server = _start_fork_server(Path(request["folder"])) if request["fork_server"] else None
        self.started = time.monotonic()
        self.pid = os.fork()
        if not self.pid:
            _become(request, streams, self.follower, fork_server)
        if fork_server is not None:
            os.close(fork_server[1])
        for end in self.ends:
            os.close(end)

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.started

    def _open(self, number: int) -> int | None:
        """Return the descriptor for a standard stream, None to close it."""
        kind = self.request["streams"][number]
        if kind == "closed":
            return None
        if kind == "terminal":
            return self.follower
        if kind.startswith("pipe:"):  # a reader that goes away after so many bytes
            reader, writer = os.pipe()
            self.pipes[reader] = _Reader(int(kind.removeprefix("pipe:")))
            if not self.pipes[reader].left:
                os.close(reader)
                del self.pipes[reader]
            self.ends.append(writer)
            return writer
        flags = os.O_RDONLY if not number else os.O_WRONLY | os.O_CREAT | os.O_APPEND
        opened = os.open(kind, flags, 0o600)
        self.ends.append(opened)
        return opened

    def read(self, seconds: float) -> None:
        """Read what the command writes to its terminal or its pipes, for at most this long."""
        sources = [*self.pipes, *([self.leader] if self.leader >= 0 else [])]
        if not sources:
            time.sleep(seconds)
            return
        for source in select.select(sources, [], [], seconds)[0]:
            with contextlib.suppress(OSError):
                data = os.read(source, 65536)
                if source == self.leader:
                    self.terminal_output += data
                elif self.pipes[source].taken(len(data)):
                    os.close(source)
                    del self.pipes[source]

    def signal(self, number: int, to: str) -> None:
        """Send a signal to the process or its group, or type the character that makes the terminal send it."""
        with contextlib.suppress(OSError):
            if to == "typed":
                os.write(self.leader, b"\x03")
            elif to == "group":
                os.killpg(self.pid, number)
            else:
                os.kill(self.pid, number)

    def close(self) -> None:
        for reader in self.pipes:
            os.close(reader)
        if self.leader >= 0:
            os.close(self.leader)
            os.close(self.follower)


class _Reader:
    """How many bytes a reader still wants before it goes away."""

    def __init__(self, left: int) -> None:
        self.left = left

    def taken(self, count: int) -> bool:
        self.left -= count
        return self.left <= 0 or not count


def _run(request: Mapping[str, Any]) -> dict[str, Any]:
    """Run a command and return what happened."""
    watched = _Watched(request)
    signals = sorted(request["signals"])
    ready_at = 0.0 if not signals else None
    last_signal = None
    most, counted_at, timed_out = 1, 0.0, False
    while watched.status is None:
        if ready_at is None and _handles_termination(watched.pid):
            ready_at = watched.elapsed
        while signals and ready_at is not None and watched.elapsed - ready_at >= signals[0][0]:
            _, number, to = signals.pop(0)
            watched.signal(number, to)
            last_signal = watched.elapsed
        due = _INTERVAL
        if signals:
            due = 0.002 if ready_at is None else signals[0][0] - watched.elapsed + ready_at
        if watched.leader < 0 and not watched.pipes:
            _wait_for_exit(watched.pid, max(min(due, _INTERVAL), 0.001))
        else:
            watched.read(max(min(due, _INTERVAL), 0.001))
        _reap(watched)
        if watched.status is None and watched.elapsed - counted_at > _COUNTING_INTERVAL:
            counted_at = watched.elapsed
            most = max(most, len(_descendants()))
            timed_out = watched.elapsed > request["seconds"]
            if timed_out or most > MOST_PROCESSES:
                _kill_all(watched)
    seconds = watched.elapsed
    left = _left_behind(watched)
    _kill_all(watched)
    modes = termios.tcgetattr(watched.follower) if watched.modes is not None else None
    watched.read(0.0)
    watched.close()
    return {
        "status": watched.status,
        "seconds": seconds,
        "after_signal": seconds - last_signal if last_signal is not None else None,
        "timed_out": timed_out,
        "most_processes": most,
        "left": left,
        "terminal_restored": modes == watched.modes,
        "terminal_output": watched.terminal_output.decode(errors="replace"),
    }


def _handles_termination(pid: int) -> bool:
    """Return whether attnshape has begun: a process that the interpreter only starts has no handler for SIGTERM."""
    with contextlib.suppress(OSError):
        caught = Path(f"/proc/{pid}/status").read_text(encoding="ascii").partition("SigCgt:")[2].split()[0]
        return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)
    return False


def _wait_for_exit(pid: int, seconds: float) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return
    try:
        select.select([descriptor], [], [], seconds)
    finally:
        os.close(descriptor)


def _reap(watched: _Watched) -> None:
    """Collect every process that has ended."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        if pid == watched.pid:
            watched.status = os.waitstatus_to_exitcode(status)


def _left_behind(watched: _Watched) -> list[str]:
    """Return the command lines of the processes that still run when all should be gone."""
    end = time.monotonic() + GRACE
    while (left := _descendants()) and time.monotonic() < end:
        time.sleep(0.01)
        _reap(watched)
    return [_command_line(pid) for pid in left]


def _kill_all(watched: _Watched) -> None:
    while descendants := _descendants():
        for number in (signal.SIGSTOP, signal.SIGKILL):  # so that none can start another meanwhile
            for pid in descendants:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        time.sleep(0.005)
        _reap(watched)


def _descendants() -> list[int]:
    """Return the processes below this one that haven't ended."""
    parents: dict[int, int] = {}
    ended = set()
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal():
            try:
                stat = Path(entry.path, "stat").read_bytes()
            except OSError:
                continue
            state, parent = stat[stat.rindex(b")") + 2 :].split(None, 2)[:2]
            parents[int(entry.name)] = int(parent)
            if state in b"ZX":
                ended.add(int(entry.name))
    return [pid for pid in parents if pid not in ended and os.getpid() in _ancestors(pid, parents)]


def _ancestors(pid: int, parents: Mapping[int, int]) -> Iterator[int]:
    while pid := parents.get(pid, 0):
        yield pid


def _command_line(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()[:200]
    return str(pid)


def _start_fork_server(folder: Path) -> tuple[str, int]:
    """Fork the process that multiprocessing would execute for the method `forkserver`, which takes a second to import.

    Return its address, and the descriptor that keeps it alive.
    """
    address = str(folder.parent / "fork-server")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        reader, writer = os.pipe()
        if not os.fork():
            try:
                os.setsid()
                os.chdir(folder)
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
                os.dup2(2, 1)
                _lower_limits(_LIMITS)
                os.closerange(3, min(listener.fileno(), reader))
                os.close(writer)
                multiprocessing.forkserver.main(listener.fileno(), reader, [])
            finally:
                os._exit(0)
        os.close(reader)
    return address, writer


def _use_fork_server(address: str, descriptor: int) -> None:
    server = multiprocessing.forkserver._forkserver  # type: ignore[attr-defined]  # there is no public way
    server._forkserver_address, server._forkserver_alive_fd = address, descriptor
    server.ensure_running = lambda: None


def _become(
    request: Mapping[str, Any], streams: list[int | None], terminal: int, fork_server: tuple[str, int] | None
) -> None:
    """Turn this process into the command. Never returns."""
    status = UNSUPPORTED
    try:
        os.setsid()
        if terminal >= 0:
            import fcntl

            fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
        _enter_folder(request)
        _replace_descriptors(streams, fork_server[1] if fork_server is not None else None)
        if fork_server is not None:
            _use_fork_server(fork_server[0], _FORK_SERVER_DESCRIPTOR)
        multiprocessing.process.ORIGINAL_DIR = str(Path.cwd()) if not request["folder_removed"] else None
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # as Python itself does
        _lower_limits({**_LIMITS, "CPU": int(2 * request["seconds"]) + 5, **request["limits"]})
        if request["without_privileges"]:
            _drop_privileges()
        if request["program"] is not None:
            program = [os.fsencode(word) for word in request["program"]]
            environment = {os.fsencode(k): os.fsencode(v) for k, v in request["environment"].items()}
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            os.execve(program[0], program, environment)
        os.environ.clear()
        os.environ.update(request["environment"])
        status = _call(request)
    except OSError as error:
        print(f"not prepared: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(status)


def _call(request: Mapping[str, Any]) -> int:
    """Run attnshape's main, or a script; return the status as the interpreter would."""
    import runpy

    from attnshape.__main__ import main

    try:
        if request["script"] is not None:
            sys.argv = [request["script"]]
            sys.path.insert(0, str(Path(request["script"]).parent))
            runpy.run_path(request["script"], run_name="__main__")
        else:
            sys.argv = ["attnshape", *request["words"]]
            main()
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # noqa: BLE001 - as the interpreter does
        sys.excepthook(*sys.exc_info())
        return 1
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        with contextlib.suppress(Exception):
            sys.stderr.flush()
    return 0


def _replace_descriptors(streams: list[int | None], kept_open: int | None) -> None:
    """Make these the standard streams, close all others, and open Python's own as the interpreter would."""
    sys.stdin, sys.stdout, sys.stderr = (None,) * 3  # type: ignore[assignment]  # as with closed ones
    kept = [os.dup(stream) if stream is not None else None for stream in streams]
    high = [_above_standard(stream) if stream is not None else None for stream in kept]
    for number, stream in enumerate(high):
        if stream is None:
            with contextlib.suppress(OSError):
                os.close(number)
        else:
            os.dup2(stream, number)
    if kept_open is not None:
        os.dup2(kept_open, _FORK_SERVER_DESCRIPTOR)
    os.closerange(3, _FORK_SERVER_DESCRIPTOR)
    os.closerange(_FORK_SERVER_DESCRIPTOR + (kept_open is not None), 1024)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = None
        if streams[number] is not None:
            how = "backslashreplace" if number == 2 else "strict"
            stream = open(number, "w" if number else "r", encoding="utf-8", errors=how, closefd=False)  # noqa: SIM115
            if number:
                stream.reconfigure(line_buffering=number == 2 or os.isatty(number))
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _above_standard(descriptor: int) -> int:
    import fcntl

    return fcntl.fcntl(descriptor, fcntl.F_DUPFD, 10)


def _enter_folder(request: Mapping[str, Any]) -> None:
    os.umask(0o022)
    os.chdir(request["folder"])
    if request["small_disk"] is not None:
        # in a mount namespace of its own, so that nothing has to be unmounted
        _checked(_LIBC.unshare(_CLONE_NEWNS))
        _checked(_LIBC.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None))
        size = f"size={request['small_disk']}".encode()
        _checked(_LIBC.mount(b"tmpfs", os.fsencode(Path(request["folder"]) / "small"), b"tmpfs", 0, size))
    if request["folder_removed"]:
        shutil.rmtree(request["folder"])


def _lower_limits(limits: Mapping[str, int]) -> None:
    for name, limit in limits.items():
        number = getattr(resource, f"RLIMIT_{name}")
        resource.setrlimit(number, (limit, limit))


def _drop_privileges() -> None:
    """Give up root's right to read and write files regardless of their permissions."""

    class Header(ctypes.Structure):
        _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))

    none = (ctypes.c_uint32 * 6)()
    _checked(_LIBC.capset(ctypes.byref(Header(0x20080522, 0)), none))


def _checked(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))

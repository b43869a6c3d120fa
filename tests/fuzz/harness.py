"""Runs commands through a zygote, each in a folder of its own, and says what was wrong with one whatever it was."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.fuzz.zygote import UNSUPPORTED

ROOT = Path(__file__).parents[2]
SECONDS = 60.0
"""How long a command may take, on a busy machine."""
_NEVER = ("Traceback (most recent call last)", "Exception ignored", "internal error", "attnshape itself failed")
_PRINTED = 2
"""How many of these Python itself prints for an error in a thread, a destructor or an exit handler."""
_ENVIRONMENT = ("PATH", "HOME", "LANG", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV")


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command line of attnshape, and what is unusual about the process that runs it."""

    words: tuple[str, ...] = ()
    program: tuple[str, ...] | None = None
    """What to execute instead of calling attnshape in a forked process: a command with its path."""
    script: str | None = None
    """The Python file to run instead of attnshape."""
    environment: Mapping[str, str | None] = field(default_factory=dict)
    """What differs from the usual environment; None removes a variable."""
    streams: tuple[str, str, str] = ("/dev/null", "", "")
    """A path, `closed`, `terminal`, or `pipe:N` for a reader that goes away after N bytes; by default, files."""
    limits: Mapping[str, int] = field(default_factory=dict)
    signals: tuple[tuple[float, int, str], ...] = ()
    """When to send which signal, and to whom: `process`, `group`, or `typed` on the terminal."""
    terminal: bool = False
    seconds: float = SECONDS
    without_privileges: bool = False
    small_disk: int | None = None
    """The bytes of a file system of its own in the folder `small`."""
    fork_server: bool = False
    """Whether `annotate` finds a fork server that has imported torch, so that it needn't wait for one to start."""
    folder_removed: bool = False
    """Whether the current folder is gone when the command starts."""


@dataclass(frozen=True)
class Outcome:
    """What a command did."""

    status: int
    out: str
    err: str
    seconds: float
    after_signal: float | None
    timed_out: bool
    most_processes: int
    left: tuple[str, ...]
    """The processes that it left behind."""
    terminal_restored: bool
    terminal_output: str

    @property
    def unsupported(self) -> bool:
        """Whether this machine doesn't permit what the command needs, such as a mount."""
        return self.status == UNSUPPORTED

    def problems(self, statuses: Sequence[int] = (0, 1, 2), prints_errors: bool = False) -> list[str]:
        """Return what is wrong with it, whatever the command was.

        `prints_errors` says that the traced code itself prints a traceback.
        """
        found = []
        if self.timed_out:
            found.append(f"it was killed after {self.seconds:.0f} s")
        elif self.status not in statuses:
            expected = " or ".join(map(str, statuses))
            found.append(f"status {self.status}, expected {expected}: {self.err[-400:].strip()!r}")
        if self.left:
            found.append(f"left running: {'; '.join(self.left)}")
        never = _NEVER[_PRINTED:] if prints_errors else _NEVER
        return [*found, *(f"{text!r} in the output" for text in never if text in self.err or text in self.out)]


class Harness:
    """A zygote and a temporary folder: use it as a context."""

    def __init__(self) -> None:
        self._numbers = itertools.count()

    def __enter__(self) -> Harness:
        self.folder = Path(tempfile.mkdtemp(prefix="attnshape-fuzz-"))
        ours, theirs = socket.socketpair()
        code = f"import socket; from tests.fuzz.zygote import serve; serve(socket.socket(fileno={theirs.fileno()}))"
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", code],
            cwd=ROOT,
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            env=_usual_environment() | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        )
        theirs.close()
        self._connection = ours
        self._replies = ours.makefile("r", encoding="utf-8")
        assert self._replies.readline() == '"ready"\n'
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._replies.close()
        self._connection.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        _remove(self.folder)

    @contextlib.contextmanager
    def case_folder(self, files: Mapping[str, bytes], name: str = "case") -> Iterator[Path]:
        """Make a current folder that has these files, and remove it in the end."""
        outer = self.folder / str(next(self._numbers))
        folder = outer / name
        folder.mkdir(parents=True)
        for path, content in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
        try:
            yield folder
        finally:
            _remove(outer)

    def run(self, command: Command, folder: Path) -> Outcome:
        """Run a command in a folder; its output is kept in files beside the folder."""
        number = next(self._numbers)
        out, err = (folder.parent / f"{number}.{name}" for name in ("out", "err"))
        streams = [stream or str(path) for stream, path in zip(command.streams, ("/dev/null", out, err), strict=True)]
        environment = {**_usual_environment(), "COLUMNS": "100", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        environment |= {"PYTHONPATH": str(ROOT)} if command.program is not None else {}
        environment |= {name: value for name, value in command.environment.items() if value is not None}
        for name in [name for name, value in command.environment.items() if value is None]:
            environment.pop(name, None)
        request = {
            **{name: getattr(command, name) for name in ("words", "program", "limits", "signals", "terminal")},
            **{name: getattr(command, name) for name in ("seconds", "without_privileges", "small_disk", "script")},
            "fork_server": command.fork_server,
            "folder_removed": command.folder_removed,
            "streams": streams,
            "environment": environment,
            "folder": str(folder),
        }
        self._connection.sendall(json.dumps(request).encode() + b"\n")
        line = self._replies.readline()
        if not line:
            raise RuntimeError(f"the zygote ended while it ran {command}")
        reply: dict[str, Any] = json.loads(line)
        texts = [path.read_bytes().decode(errors="replace") if path.exists() else "" for path in (out, err)]
        return Outcome(out=texts[0], err=texts[1], left=tuple(reply.pop("left")), **reply)


def contents(folder: Path) -> dict[str, bytes | None]:
    """Return the content of each regular file below a folder; None for what is something else, except folders."""
    found: dict[str, bytes | None] = {}
    for parent, folders, names in os.walk(folder):
        if "__pycache__" in folders:
            folders.remove("__pycache__")
        for name in names:
            path = Path(parent, name)
            regular = path.is_file() and not path.is_symlink()
            found[str(path.relative_to(folder))] = path.read_bytes() if regular else None
    return found


def changes(
    before: Mapping[str, bytes | None], after: Mapping[str, bytes | None], declared: Sequence[str]
) -> list[str]:
    """Return which files have changed, appeared or gone, except declared ones."""
    found = []
    for name in sorted({*before, *after} - {*declared}):
        if name not in before:
            found.append(f"the file {name!r} is new")
        elif name not in after:
            found.append(f"the file {name!r} is gone")
        elif before[name] != after[name]:
            found.append(f"the file {name!r} has changed")
    return found


def _usual_environment() -> dict[str, str]:
    return {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}


def _remove(folder: Path) -> None:
    for parent, folders, _ in os.walk(folder):
        for name in folders:  # some have no permissions
            if not Path(parent, name).is_symlink():
                with contextlib.suppress(OSError):
                    Path(parent, name).chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)

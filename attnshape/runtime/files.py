"""Files: their names as shown to the user, their lines, and writes that replace a file only once it is complete."""

from __future__ import annotations

import contextlib
import functools
import itertools
import linecache
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from attnshape.runtime.worker import temporary_file


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that a reader finds either the old content or the new, never a part of it.

    A symbolic link is followed. Raises OSError if the file can't be written; no temporary file is left then.
    """
    with staged([(path, data)]) as pairs:
        for temporary, destination in pairs:
            temporary.replace(destination)


def check_replaceable(path: Path) -> None:
    """Raise PermissionError if `write_atomically` can't write a file, or couldn't keep its owner."""
    folder = path.parent
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"permission denied to write in {folder}")
    if not path.exists():
        return
    if not os.access(path, os.W_OK):
        raise PermissionError("permission denied")
    status = path.stat()
    if hasattr(os, "geteuid") and os.geteuid() not in (0, status.st_uid):
        raise PermissionError("it belongs to another user")


@contextlib.contextmanager
def staged(contents: Sequence[tuple[Path, bytes]]) -> Iterator[list[tuple[Path, Path]]]:
    """Write new contents to temporary files beside their destinations, for the caller to move into place.

    A destination that exists passes on its permissions and its owner. Temporary files that were not moved are removed
    at the end of the context, on an error, and when the process dies. Yields each temporary file and its destination,
    with symbolic links resolved; raises OSError if a temporary file can't be written.
    """
    pairs: list[tuple[Path, Path]] = []
    with contextlib.ExitStack() as stack:
        for path, data in contents:
            destination = Path(os.path.realpath(path))
            # a name that nobody can foresee; a short one, since that of the destination may have the greatest length
            temporary = destination.with_name(f".attnshape-{os.urandom(8).hex()}.tmp")
            stack.enter_context(temporary_file(str(temporary)))
            stack.callback(_remove, temporary)
            _write(temporary, destination, data)
            pairs.append((temporary, destination))
        yield pairs


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


def _write(temporary: Path, destination: Path, data: bytes) -> None:
    existing = destination.stat() if destination.exists() else None
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    with os.fdopen(os.open(temporary, flags, 0o666 if existing is None else 0o600), "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
        if existing is not None:
            written = os.fstat(stream.fileno())
            if (written.st_uid, written.st_gid) != (existing.st_uid, existing.st_gid):
                os.fchown(stream.fileno(), existing.st_uid, existing.st_gid)
    if existing is not None:
        temporary.chmod(stat.S_IMODE(existing.st_mode))  # after the owner, whose change clears some of it


class _FilesRead:
    """The files that this process has opened for reading."""

    watched: bool = False
    names: ClassVar[set[str]] = set()


def watch_files_read() -> None:
    """Note each file that this process opens for reading from now on, whoever opens it."""
    _FilesRead.names.clear()
    if not _FilesRead.watched:
        _FilesRead.watched = True
        sys.addaudithook(_note_file)


def files_read() -> list[Path]:
    """Return the files that this process has read: its modules, and all since `watch_files_read`."""
    modules = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    return [Path(file) for file in modules | _FilesRead.names if isinstance(file, str)]


def files_opened() -> frozenset[str]:
    """Return the files that this process has opened for reading since `watch_files_read`, whether or not they exist."""
    return frozenset(_FilesRead.names)


def _note_file(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "open":
        return
    with contextlib.suppress(Exception):  # an exception would keep the file from being opened
        name, _, flags = arguments
        if not flags & (os.O_WRONLY | os.O_CREAT) and isinstance(name, (str, bytes)):
            _FilesRead.names.add(os.path.join(os.getcwd(), os.fsdecode(name)))  # noqa: PTH109, PTH118 - called often


def is_same_as_any(path: Path, others: Iterable[Path]) -> bool:
    """Return whether a file is one of the others, perhaps by another name, such as a link.

    Raises OSError if the file doesn't exist.
    """
    identity = path.stat()
    for other in others:
        with contextlib.suppress(OSError, ValueError):
            if os.path.samestat(identity, other.stat()):
                return True
    return False


INSTALLED = ("site-packages", "dist-packages")
"""The names of the folders in which packages are installed."""


def installed_package(file: str) -> str | None:
    """Return the installed package that a file belongs to, or None.

    >>> installed_package("/env/lib/python3.11/site-packages/timm/layers/attention.py")
    'timm'
    >>> installed_package("/home/me/project/model.py")
    """
    parts = Path(file).parts
    return next((name for folder, name in itertools.pairwise(parts) if folder in INSTALLED), None)


_displayed: dict[str, str] = {}
"""The files of displayed names that aren't relative to the current folder."""


@functools.cache
def display_path(file: str) -> str:
    """Return a path relative to the current folder, or for installed code, to the folder that it is imported from."""
    path = Path(file)
    with contextlib.suppress(OSError):  # the current folder may be gone
        if path.is_relative_to(Path.cwd()):
            name = str(path.relative_to(Path.cwd()))
            _displayed.pop(name, None)
            return name
    parents = [Path(entry) for entry in sys.path if entry]
    inside = [path.relative_to(parent) for parent in parents if path.is_relative_to(parent)]
    name = str(min(inside, key=lambda relative: len(relative.parts))) if inside else file
    _displayed[name] = file
    return name


ReadLines = Callable[[str], Sequence[str]]
"""Returns the lines of a file by its displayed name; none if it can't be read."""


def source_lines(file: str) -> Sequence[str]:
    """Return a file's lines with their ends, also of an interactive console; none if it can't be read.

    >>> source_lines("no/such.py")
    []
    """
    # the folder to which a displayed name is relative may be in the path of imports only while the target runs; for a
    # name of another process linecache looks there, and in the current folder
    try:
        name = file if Path(file).is_file() else _displayed.get(file, file)
        linecache.checkcache(name)
        return linecache.getlines(name)
    except (ValueError, OSError):  # a name that no file can have
        return []

"""Writes annotated files, as a unified diff or in place: only files of the current project, and all of them or none."""

from __future__ import annotations

import difflib
import os
import re
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from attnshape.annotate.source import PythonSource
from attnshape.errors import AttnshapeError
from attnshape.runtime.files import display_path, staged, write_atomically

_LINE = re.compile(rb"[^\n]*\n|[^\n]+\Z")
_COLORS = {b"---": b"\x1b[1m", b"+++": b"\x1b[1m", b"@@": b"\x1b[36m", b"+": b"\x1b[32m", b"-": b"\x1b[31m"}
_END = b"\x1b[0m"
_ESCAPES = {b"\\": rb"\\", b'"': rb"\"", b"\n": rb"\n", b"\t": rb"\t", b"\r": rb"\r"}


@dataclass(frozen=True)
class Project:
    """The current project, by its root folder."""

    root: Path

    def contains(self, path: Path) -> bool:
        """Return whether a file is in the project, with links resolved, and isn't a library installed there."""
        real = path.resolve()
        inside = real.is_relative_to(self.root)
        return inside and not {"site-packages", "dist-packages"} & set(real.relative_to(self.root).parts)

    def check(self, path: Path) -> None:
        """Raise AttnshapeError if a file isn't in the project."""
        if not self.contains(path):
            raise AttnshapeError(
                f"{path} is outside of the current project, {self.root}",
                "go to the folder that it belongs to, or annotate a copy of it in your project",
            )


def current_project() -> Project:
    """Return the project of the current folder: its git repository, else the folder itself."""
    here = Path.cwd()
    top = _git(["rev-parse", "--show-toplevel"], here)
    return Project(Path(top.rstrip("\n")).resolve() if top and top.strip() else here.resolve())


def is_in_repository(path: Path) -> bool:
    """Return whether a file is in a git repository, including one that git itself refuses to read."""
    top = _git(["rev-parse", "--show-toplevel"], path.parent)
    return top is not None or any((folder / ".git").exists() for folder in path.resolve().parents)


def _uncommitted(path: Path) -> str | None:
    """Return why git couldn't restore a file as it is now; None if it could, or if there is no git.

    This asks the file's own repository, which may lie within the project or around it.
    """
    if not is_in_repository(path):
        return None
    status = _git(["--literal-pathspecs", "status", "--porcelain", "--ignored", "--", str(path)], path.parent)
    if status is None:
        return "git can't say whether it has uncommitted changes"
    if not status.strip():
        return None
    return {"??": "it is untracked", "!!": "git ignores it"}.get(status[:2], "it has uncommitted changes")


def _git(arguments: list[str], folder: Path) -> str | None:
    """Return git's output, None if git fails or isn't installed."""
    try:
        done = subprocess.run(
            ["git", *arguments],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return done.stdout if done.returncode == 0 else None


def check_writable(paths: Sequence[Path], project: Project, force: bool) -> None:
    """Raise AttnshapeError if a file isn't the project's, can't be written, or, without `force`, isn't committed."""
    for path in paths:
        project.check(path)
        name = display_path(str(path))
        if not os.access(path, os.W_OK) or not os.access(path.parent, os.W_OK):
            raise AttnshapeError(f"{name} can't be written: permission denied", "make it and its folder writable")
        if not force and (why := _uncommitted(path)) is not None:
            raise AttnshapeError(
                f"{name} isn't written: {why}, so git couldn't restore it",
                "commit it first, or add --force; without --write the changes are only shown",
            )


def save(files: Sequence[tuple[PythonSource, bytes]]) -> None:
    """Write all files; raise AttnshapeError and write none if one can't be written or has changed since it was read."""
    done: list[PythonSource] = []
    try:
        with staged([(source.path, data) for source, data in files]) as pairs:
            for source, _ in files:
                _check_unchanged(source)
            for (source, _), (temporary, destination) in zip(files, pairs, strict=True):
                temporary.replace(destination)
                done.append(source)
    except OSError as error:
        for source in done:
            write_atomically(source.path, source.data)
        names = ", ".join(display_path(str(source.path)) for source, _ in files)
        raise AttnshapeError(f"{names} can't be written: {error.strerror}", "nothing was written") from None


def _check_unchanged(source: PythonSource) -> None:
    try:
        now = source.path.read_bytes()
    except OSError:
        now = b""
    if now != source.data:
        raise AttnshapeError(
            f"{display_path(str(source.path))} has changed since it was read; nothing was written", "run it again"
        )


def unified_diff(files: Iterable[tuple[PythonSource, bytes]], folder: Path) -> bytes:
    """Return the diff of files to their new contents as `git apply` takes it, with paths relative to a folder."""
    lines: list[bytes] = []
    for source, new in files:
        name = os.fsencode(os.path.relpath(source.path, folder)).replace(os.sep.encode(), b"/")
        old_name, new_name = _quoted(b"a/" + name), _quoted(b"b/" + name)
        both = _LINE.findall(source.data), _LINE.findall(new)
        lines += difflib.diff_bytes(difflib.unified_diff, *both, old_name, new_name)
    return b"".join(line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n" for line in lines)


def _quoted(name: bytes) -> bytes:
    """Return a file's name as git quotes it, where it has characters that would break the line."""
    if re.fullmatch(rb"[\x21\x23-\x5b\x5d-\x7e]+", name):
        return name
    if re.fullmatch(rb"[\x20\x21\x23-\x5b\x5d-\x7e]+", name):
        return name + b"\t"
    characters = [bytes([value]) for value in name]
    parts = [_ESCAPES.get(char, char if 0x20 <= char[0] < 0x7F else b"\\%03o" % char[0]) for char in characters]
    return b'"' + b"".join(parts) + b'"'


def color_diff(diff: bytes) -> bytes:
    """Return a diff in git's colors."""
    lines = _LINE.findall(diff)
    for place, line in enumerate(lines):
        if (color := next((color for start, color in _COLORS.items() if line.startswith(start)), None)) is not None:
            text = line.rstrip(b"\r\n")
            lines[place] = color + text + _END + line[len(text) :]
    return b"".join(lines)

"""The Python files of a folder that are the project's own."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from attnshape import __version__
from attnshape.discovery.project import find_attention
from attnshape.errors import AttnshapeError, exception_message
from attnshape.model.targets import FoundTarget, FoundTargets, UnreadFile

_NOT_OWN = frozenset({"build", "dist", "node_modules", "site-packages", "__pycache__"})
_TEST = re.compile(r"test_.*\.py|.*_test\.py|conftest\.py")
_TEST_FOLDERS = frozenset({"tests", "test", "testing"})


def find_targets(places: Sequence[str], command: str) -> FoundTargets:
    """Return the attention in files and folders, which are read as text and not imported.

    Of a folder these files are left out: hidden ones, virtual environments and builds, what git ignores, and tests.

    Raises:
        AttnshapeError: There is no such file or folder.
    """
    files: dict[Path, None] = {}
    tests = 0
    for place in places:
        path = Path(place)
        if not path.exists():
            raise AttnshapeError(f"there is no file or folder {place[:80]!r}", "name a Python file or a folder: src/")
        if path.is_dir():
            own = list(_files_of(path))
            kept = [one for one in own if not _is_test(one.relative_to(path))]
            tests += len(own) - len(kept)
            files |= dict.fromkeys(kept)
        else:
            files[path] = None
    texts: list[tuple[Path, str]] = []
    unread: list[UnreadFile] = []
    for path in files:
        try:
            text = path.read_text(encoding="utf-8")
            with warnings.catch_warnings(action="ignore"):  # such as of invalid escapes in strings
                ast.parse(text)
            texts.append((path, text))
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
            line = f", at line {error.lineno}" if isinstance(error, SyntaxError) else ""
            unread.append(UnreadFile(file=str(path), why=f"{exception_message(error)}{line}"))
    found = tuple(
        FoundTarget(
            target=f"{one.file}:{one.name}",
            file=str(one.file),
            name=one.name,
            line=one.line,
            kind=one.kind,
            why=one.why,
        )
        for one in find_attention(texts)
    )
    return FoundTargets(
        attnshape=__version__,
        command=command,
        files=len(texts),
        tests=tests,
        targets=found,
        unread=tuple(unread),
    )


def _is_test(path: Path) -> bool:
    return bool(_TEST.fullmatch(path.name)) or not _TEST_FOLDERS.isdisjoint(path.parts[:-1])


def _files_of(folder: Path) -> Iterator[Path]:
    """Yield the Python files of a folder in order, without what git ignores and what others wrote."""
    ignored = _ignored(folder)
    for parent, folders, names in os.walk(folder):
        here = Path(parent)
        folders[:] = sorted(name for name in folders if _is_own(here / name) and here / name not in ignored)
        for name in sorted(names):
            if name.endswith(".py") and not name.startswith(".") and here / name not in ignored:
                yield here / name


def _is_own(folder: Path) -> bool:
    hidden = folder.name.startswith(".") or folder.name in _NOT_OWN or folder.name.endswith(".egg-info")
    return not hidden and not (folder / "pyvenv.cfg").is_file()


def _ignored(folder: Path) -> frozenset[Path]:
    """Return the files and folders that git ignores; none where there is no git, or no repository."""
    # a repository may name a program to be run as its file-system monitor
    command = [
        "git",
        "-c",
        "core.fsmonitor=false",
        "-C",
        str(folder),
        "ls-files",
        "-oiz",
        "--exclude-standard",
        "--directory",
    ]
    try:
        listed = subprocess.run(command, capture_output=True, check=True, timeout=10).stdout
    except (OSError, subprocess.SubprocessError):
        return frozenset()
    return frozenset(folder / os.fsdecode(name) for name in listed.split(b"\0") if name)

"""Writes files so that each is whole at every moment: aside, to the disk, then in the place of the old one."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from attnshape.annotate.project import Project
from attnshape.annotate.source import Source
from attnshape.ending import removed_if_unfinished
from attnshape.errors import AttnshapeError
from attnshape.paths import display_path


def check_writable(paths: Sequence[Path], project: Project, force: bool) -> None:
    """Raise AttnshapeError where a file isn't the project's, can't be written, or has changes that git hasn't seen.

    The last is no reason where `force` says so.
    """
    for path in paths:
        project.check(path)
        name = display_path(str(path))
        if not os.access(path, os.W_OK) or not os.access(path.parent, os.W_OK):
            raise AttnshapeError(f"{name} can't be written: permission denied", "make it and its folder writable")
        why = project.uncommitted(path) if not force else None
        if why is not None:
            raise AttnshapeError(
                f"{name} isn't written: {why}, so that git couldn't bring it back",
                "commit it first, or say --force; without --write the changes are only shown",
            )


def save(files: Sequence[tuple[Source, bytes]]) -> None:
    """Write all files, or none where one can't be written.

    Raises AttnshapeError where one can't, or isn't any more what it was when it was read.
    """
    asides = [(source, _aside(source.path)) for source, _ in files]
    with removed_if_unfinished(*(str(aside) for _, aside in asides)), contextlib.ExitStack() as stack:
        for (source, data), (_, aside) in zip(files, asides, strict=True):
            stack.callback(aside.unlink, missing_ok=True)
            _reported(lambda source=source, data=data, aside=aside: _write(source.path, aside, data), source)
        for source, _ in files:
            _check_unchanged(source)
        done: list[Source] = []
        try:
            for source, aside in asides:
                _reported(lambda source=source, aside=aside: aside.replace(source.path), source)
                done.append(source)
        except AttnshapeError:
            for source in done:
                _write(source.path, _aside(source.path), source.data)
                _aside(source.path).replace(source.path)
            raise


def _aside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.attnshape")


def _write(path: Path, aside: Path, data: bytes) -> None:
    """Write data to the disk beside a file, with the file's permissions."""
    mode = stat.S_IMODE(path.stat().st_mode)
    with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fchmod(stream.fileno(), mode)
        os.fsync(stream.fileno())


def _check_unchanged(source: Source) -> None:
    try:
        now = source.path.read_bytes()
    except OSError:
        now = b""
    if now != source.data:
        raise AttnshapeError(
            f"{display_path(str(source.path))} has changed since it was read; nothing was written", "run it again"
        )


def _reported(action: object, source: Source) -> None:
    assert callable(action)
    try:
        action()
    except OSError as error:
        raise AttnshapeError(
            f"{display_path(str(source.path))} can't be written: {error.strerror}", "nothing was written"
        ) from None

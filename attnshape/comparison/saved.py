"""Reads saved traces and snapshots, and compares folders of them."""

from __future__ import annotations

import json
from pathlib import Path

from attnshape.comparison.compare import compare
from attnshape.comparison.outline import Outline, outline
from attnshape.comparison.snapshot import is_snapshot, read_snapshot
from attnshape.errors import AttnshapeError
from attnshape.model.difference import Difference, FileDifference, FolderDifference, NotCompared
from attnshape.model.trace import SCHEMA, Trace, decode_trace

HOW_TO_SAVE = "save a trace with: attnshape trace … --format json --output FILE"
SUFFIXES = (".json", ".txt")
"""The endings of the files that are compared in folders: saved traces and snapshots."""


def read_saved(path: Path) -> Trace | Outline:
    """Return the saved trace or the snapshot in a file. Raises OSError, or AttnshapeError if it is neither."""
    content = path.read_bytes()
    if not content:
        raise AttnshapeError(f"{path} is empty, expected a saved trace", HOW_TO_SAVE)
    text = content.decode(errors="replace")
    return read_snapshot(text, str(path)) if is_snapshot(text) else decode_trace(content, str(path))


def compare_saved(old: Trace | Outline, new: Trace | Outline) -> Difference:
    """Return the difference of traces or snapshots."""
    # a snapshot doesn't have the steps inside of libraries
    inner = isinstance(old, Trace) and isinstance(new, Trace)
    return compare(*(outline(side, inner) if isinstance(side, Trace) else side for side in (old, new)))


def compare_folders(old: Path, new: Path) -> FolderDifference:
    """Return the difference of the saved traces and snapshots of the same names in two folders.

    A file that can't be read is listed in the result. Raises AttnshapeError if neither folder has such a file.
    """
    before, after = _file_names(old), _file_names(new)
    ours = {name for folder, names in ((old, before), (new, after)) for name in names if _is_ours(folder / name)}
    if not ours:
        raise AttnshapeError(f"there is no saved trace in {old} nor in {new}", HOW_TO_SAVE)
    files: list[FileDifference] = []
    not_compared: list[NotCompared] = []
    for name in (name for name in before if name in after and name in ours):
        try:
            files.append(FileDifference(name, compare_saved(read_saved(old / name), read_saved(new / name))))
        except AttnshapeError as error:
            not_compared.append(NotCompared(name, error.message))
        except OSError as error:
            not_compared.append(NotCompared(name, f"can't be read: {error.strerror or error}"))
    return FolderDifference(
        old=str(old),
        new=str(new),
        files=tuple(files),
        only_old=tuple(name for name in before if name not in after and name in ours),
        only_new=tuple(name for name in after if name not in before and name in ours),
        not_compared=tuple(not_compared),
    )


def _is_ours(path: Path) -> bool:
    """Return whether a file is a snapshot or a saved trace, or is damaged; intact files of other kinds are neither."""
    try:
        content = path.read_bytes()
        if path.suffix == ".txt":
            return is_snapshot(content.decode(errors="replace"))
        value = json.loads(content)
    except (OSError, ValueError, RecursionError):
        return True
    return isinstance(value, dict) and str(value.get("schema")).startswith(SCHEMA.rpartition("/")[0])


def _file_names(folder: Path) -> list[str]:
    files = (path for path in folder.rglob("*") if path.suffix in SUFFIXES and path.is_file())
    return sorted(path.relative_to(folder).as_posix() for path in files if not path.name.startswith("."))

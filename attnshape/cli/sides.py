"""The two sides of a comparison: saved traces, snapshots, targets, or folders of files."""

from __future__ import annotations

import gc
import json
from dataclasses import dataclass
from pathlib import Path

from attnshape.catalog.registry import CATALOG
from attnshape.cli.progress import Progress
from attnshape.cli.request import Flags, combine
from attnshape.comparing.compare import compare
from attnshape.comparing.difference import Difference
from attnshape.comparing.folders import Differences, FileDifference, NotCompared
from attnshape.comparing.outline import Outline, outline
from attnshape.comparing.snapshot_read import is_snapshot, read_snapshot
from attnshape.errors import AttnshapeError
from attnshape.hints import nearest
from attnshape.model import SCHEMA, Trace
from attnshape.schema import from_json
from attnshape.settings import Settings
from attnshape.target.project import project_targets
from attnshape.target.request import Request

_SAVE = "save a trace with: attnshape trace … --format json --output FILE"
_SUFFIXES = (".json", ".txt")
"""The names of files that are compared in folders: saved traces and snapshots."""


@dataclass(frozen=True)
class Target:
    """A side that has to be run: what was asked for."""

    request: Request
    settings: Settings


@dataclass(frozen=True)
class Folder:
    """A side of many files."""

    path: Path


Side = Trace | Outline | Target | Folder


def side(text: str, name: str, flags: Flags, command: str) -> Side:
    """Return what was typed for a side, which `name` says in errors.

    Raises AttnshapeError where there is no such file or target, or the file is neither a trace nor a snapshot.
    """
    if not text.strip():
        raise AttnshapeError(f"{name} is empty", "name a saved trace, a snapshot, a folder of these, or a target")
    known = [*CATALOG, *project_targets()]
    try:
        path = Path(text)
        if text not in known and path.is_dir():
            return Folder(path)
        if text not in known and path.exists() and path.suffix != ".py":
            return _read(path)
    except (OSError, ValueError) as error:
        raise AttnshapeError(f"can't read {text[:80]!r}: {error}", _SAVE) from None
    if ":" not in text and text not in known and path.suffix != ".py":
        is_path = "/" in text or path.suffix in _SUFFIXES
        what = "no such file" if is_path else "neither a file, nor a target"
        hint = _SAVE if is_path else nearest(text, known, "the targets by name are")
        raise AttnshapeError(f"{name} is {text[:80]!r}: {what}", hint)
    return Target(*combine(text, flags, command))


def compared(old: Side, new: Side) -> Difference | Differences:
    """Return what differs; targets are run. Raises AttnshapeError where only one side is a folder."""
    if isinstance(old, Folder) and isinstance(new, Folder):
        return _folders(old.path, new.path)
    if isinstance(old, Folder) or isinstance(new, Folder):
        folder = old if isinstance(old, Folder) else new
        raise AttnshapeError(
            f"{getattr(folder, 'path', '')} is a folder, the other side isn't", "name two folders, or a file in it"
        )
    traces = _run(old, new)
    return _compared(*traces)


def _compared(old: Trace | Outline, new: Trace | Outline) -> Difference:
    # a snapshot has nothing of what lies inside of libraries
    within = isinstance(old, Trace) and isinstance(new, Trace)
    return compare(*(outline(one, within) if isinstance(one, Trace) else one for one in (old, new)))


def _run(old: Trace | Outline | Target, new: Trace | Outline | Target) -> tuple[Trace | Outline, Trace | Outline]:
    if not isinstance(old, Target) and not isinstance(new, Target):
        return old, new
    # torch is imported only here, once everything that can be wrong without it has been looked at
    import contextlib

    from attnshape.pipeline import trace_request
    from attnshape.target.afresh import imports_forgotten
    from attnshape.target.device import require_device

    gc.freeze()
    gc.enable()
    made: list[Trace | Outline] = []
    files = [one.request.target.partition(":")[0] for one in (old, new) if isinstance(one, Target)]
    with Progress() as progress:
        for one in (old, new):
            if not isinstance(one, Target):
                made.append(one)
                continue
            require_device(one.settings.device)
            with imports_forgotten() if len(set(files)) > 1 else contextlib.nullcontext():
                made.append(trace_request(one.request, one.settings, doing=progress))
    return made[0], made[1]


def _read(path: Path) -> Trace | Outline:
    if path.stat().st_size == 0:
        raise AttnshapeError(f"{path} is empty, expected a saved trace", _SAVE)
    content = path.read_bytes()
    text = content.decode(errors="replace")
    return read_snapshot(text, str(path)) if is_snapshot(text) else from_json(content, str(path))


def _folders(old: Path, new: Path) -> Differences:
    before, after = _names(old), _names(new)
    ours = {name for folder, names in ((old, before), (new, after)) for name in names if _is_ours(folder / name)}
    if not ours:
        raise AttnshapeError(f"there is no saved trace in {old} nor in {new}", _SAVE)
    files: list[FileDifference] = []
    not_compared: list[NotCompared] = []
    for name in (name for name in before if name in after and name in ours):
        try:
            files.append(FileDifference(name, _compared(_read(old / name), _read(new / name))))
        except AttnshapeError as error:
            not_compared.append(NotCompared(name, error.message))
        except OSError as error:
            not_compared.append(NotCompared(name, f"can't be read: {error.strerror or error}"))
    return Differences(
        old=str(old),
        new=str(new),
        files=tuple(files),
        only_old=tuple(name for name in before if name not in after and name in ours),
        only_new=tuple(name for name in after if name not in before and name in ours),
        not_compared=tuple(not_compared),
    )


def _is_ours(path: Path) -> bool:
    """Say whether a file is a snapshot or a saved trace, or one that is broken; other data that is whole is neither."""
    try:
        content = path.read_bytes()
        if path.suffix == ".txt":
            return is_snapshot(content.decode(errors="replace"))
        made = json.loads(content)
    except (OSError, ValueError, RecursionError):
        return True
    return isinstance(made, dict) and str(made.get("schema")).startswith(SCHEMA.rpartition("/")[0])


def _names(folder: Path) -> list[str]:
    files = (path for path in folder.rglob("*") if path.suffix in _SUFFIXES and path.is_file())
    return sorted(path.relative_to(folder).as_posix() for path in files if not path.name.startswith("."))

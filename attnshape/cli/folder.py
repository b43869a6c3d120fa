"""A folder that gets a file for each of several traces, under names by which two such folders can be compared."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import quote

from attnshape.cli.jobs import Job, Refused
from attnshape.cli.several import outcomes_of
from attnshape.cli.writing import resolve_format, use_color, width, write
from attnshape.errors import AttnshapeError, ExitStatus
from attnshape.model import Trace
from attnshape.render.formats import Screen
from attnshape.render.several_formats import TRACES
from attnshape.schema import to_json
from attnshape.several import Outcome
from attnshape.target.size_sets import SizeSet

_LONGEST = 120
_DIGITS = 12


def folder_meant(output: str, format_: str) -> Path | None:
    """Return the folder that `--output` means, made where it isn't there; None where it means a file.

    It means a folder that is there, or ends as one does. Raises AttnshapeError where there can't be one, and where
    another format than JSON is asked for.
    """
    folder = Path(output)
    try:
        if not (output.endswith(("/", os.sep)) or folder.is_dir()):
            return None
        if format_ != "json":
            raise AttnshapeError(
                f"--output {output} is a folder, which gets a file for each trace as JSON alone",
                f"add --format json, or write to a file in it: {folder / 'traces.md'}",
            )
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(13, "Permission denied")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise AttnshapeError(
            f"--output {output[:80]!r}: no folder can be written there: {reason}", "choose another path"
        ) from None
    return folder


def file_names(jobs: Sequence[Job | Refused]) -> list[str]:
    r"""Return a file's name for each job: the target's with its sizes, whatever it is made of, as `cross,B=1,L=1.json`.

    It depends on nothing else, but where two names differ in upper and lower case alone, which some systems take for
    the same: there each has digits of its own.
    """
    plain = [_plain(job.name, job.sizes if isinstance(job, Job) else {}) for job in jobs]
    alike = Counter(name.casefold() for name in plain)
    return [f"{_short(name, alike[name.casefold()] > 1)}.json" for name in plain]


def write_files(outcomes: Iterable[Outcome[Trace]], names: Sequence[str], folder: Path) -> ExitStatus:
    """Write each trace into its file, and on standard output how all came out; return the status of all.

    Where there is no trace, an earlier file of that name is removed: it would be taken for what came out now.
    """
    seen = []
    for outcome, name in zip(outcomes, names, strict=True):
        seen.append(outcome)
        if outcome.made is not None:
            write(to_json(outcome.made) + "\n", folder / name)
        else:
            (folder / name).unlink(missing_ok=True)
    every = outcomes_of(seen)
    screen = Screen(width(), use_color(None))
    write(TRACES[resolve_format("auto", None)].end(every, screen), None)
    return every.status


def _plain(name: str, sizes: SizeSet) -> str:
    # what is quoted has neither a comma nor an equals sign, nor a lone %, so that no two are alike
    parts = [
        quote(name, safe="", errors="backslashreplace") or "%",
        *(f"{quote(one)}={size}" for one, size in sizes.items()),
    ]
    return ",".join(parts)


def _short(name: str, ambiguous: bool) -> str:
    visible_start = f"%2E{name[1:]}" if name.startswith(".") else name
    if len(visible_start) <= _LONGEST and not ambiguous:
        return visible_start
    digits = hashlib.sha256(name.encode()).hexdigest()[:_DIGITS]
    return f"{visible_start[:_LONGEST]}-{digits}"

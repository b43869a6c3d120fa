"""A cache of reports: a target that is unchanged, and what it depends on too, isn't checked again.

It is a folder in the current one, as those of ruff and pytest are. What can't be read, or doesn't fit, counts as
absent: then the target is checked.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from attnshape import __version__
from attnshape.cli.jobs import Job
from attnshape.errors import AttnshapeError
from attnshape.model.report import Report
from attnshape.options.flags import flag_syntax
from attnshape.runtime.dependencies import Dependencies, dependencies_of, environment, forget_files, is_unchanged
from attnshape.runtime.files import write_atomically
from attnshape.targets.builtin.registry import CATALOG, DEFAULT

FOLDER = ".attnshape_cache"
_SURE_SECONDS = 4.0
"""Any error that comes sooner doesn't come from a limit on time, and would come again."""
_NOTE = "Signature: 8a477f597d28d172789f06886806bc55\n# This folder was made by attnshape, and can be removed.\n"


class _Entry(Struct, frozen=True, forbid_unknown_fields=True):
    """A result, and all that has to be the same for it to hold."""

    environment: str
    dependencies: Dependencies
    report: Report | None = None
    error: tuple[str, str | None] | None = None
    """The message and the hint, where the target can't be checked."""


class ReportCache:
    """The reports of earlier commands in a folder."""

    def __init__(self, folder: Path, mode: object) -> None:
        """`mode` is what a report depends on besides its job: anything that JSON can have."""
        self._folder = folder / FOLDER
        self._mode = mode
        forget_files()
        self._environment = environment(__version__)
        self._since = time.time()

    def find(self, job: Job) -> Report | AttnshapeError | None:
        """Return the result of a job if nothing that it depends on has changed, None otherwise."""
        try:
            digest, _, data = self._file(job).read_bytes().partition(b"\n")
            if digest != _checksum(data):
                return None
            entry = msgspec.json.decode(data, type=_Entry)
            if entry.environment != self._environment or not is_unchanged(entry.dependencies):
                return None
        except (OSError, ValueError, msgspec.MsgspecError, RecursionError):
            return None
        if entry.error is not None:
            return AttnshapeError(*entry.error)
        return replace(entry.report, command=job.options.command) if entry.report is not None else None

    def checked(self, job: Job, check: Callable[[], Report], is_whole: Callable[[Report], bool]) -> Report:
        """Return the result of a check, and keep it for later, unless it might be another at another time.

        Raises AttnshapeError if the target can't be checked.
        """
        started = time.monotonic()
        try:
            report = check()
        except AttnshapeError as error:
            if error.is_settled or time.monotonic() - started < _SURE_SECONDS:
                written = error.written_in(flag_syntax)
                self._keep(job, None, (written.message, written.hint))
            raise
        if is_whole(report):
            self._keep(job, report, None)
        return report

    def _keep(self, job: Job, report: Report | None, error: tuple[str, str | None] | None) -> None:
        where = job.spec.target.partition(":")[0].strip() or DEFAULT
        dependencies = dependencies_of(None if where in CATALOG else where, self._since)
        if dependencies is None:
            return
        data = msgspec.json.encode(_Entry(self._environment, dependencies, report, error))
        with contextlib.suppress(OSError):  # where nothing can be written, there is no cache
            _make_folder(self._folder)
            write_atomically(self._file(job), _checksum(data) + b"\n" + data)

    def _file(self, job: Job) -> Path:
        """Return where the result of a job is kept: a later version of it takes the same place."""
        spec = {name: value for name, value in asdict(job.spec).items() if name not in ("callable", "values")}
        options = {name: value for name, value in asdict(job.options).items() if name != "command"}
        request = msgspec.json.encode([self._mode, spec, options], order="sorted")
        return self._folder / f"{hashlib.sha256(request).hexdigest()[:32]}.json"


def _checksum(data: bytes) -> bytes:
    return hashlib.sha256(data).hexdigest().encode()


def _make_folder(folder: Path) -> None:
    """Make the folder of the cache; git and backup programs leave it out."""
    if not folder.is_dir():
        folder.mkdir(exist_ok=True)
        (folder / ".gitignore").write_text("# made by attnshape\n*\n", encoding="utf-8")
        (folder / "CACHEDIR.TAG").write_text(_NOTE, encoding="utf-8")

"""Verify annotations in the sandbox: leave out those that don't hold, and compare all results with the original's."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FunctionType, ModuleType

from attnshape.annotate.changes import AnnotateContext, Omission, Place
from attnshape.annotate.enforcing import find_hook
from attnshape.annotate.exclusions import parameters_refusing_none
from attnshape.annotate.sandbox.attempt import AttemptFailure, AttemptResult, SandboxJob, TargetCall, serve_attempt
from attnshape.annotate.source import PythonSource
from attnshape.annotate.styles import AnnotatedFile, Rewrite, rewrite_enforced, rewrite_jaxtyping
from attnshape.annotate.syntax import parse
from attnshape.errors import AttnshapeError
from attnshape.inference.small_runs import ProgressCallback
from attnshape.observation.forms import FunctionForms
from attnshape.options.spec import AnnotateOptions, RunOptions
from attnshape.runtime.files import display_path, installed_package

TIME_LIMIT = 120.0
"""Seconds that one attempt may take."""

_METHOD = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
_ENVIRONMENT = {
    # a library that has started threads while it was imported could leave a forked process waiting for ever
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # else the server would import a `types.py` of the current folder in the place of Python's
    "PYTHONSAFEPATH": "1",
    "PYTHONPATH": str(Path(__file__).resolve().parents[3]),
}


def run_in_sandbox(job: SandboxJob, libraries: Iterable[str] = (), time_limit: float = TIME_LIMIT) -> AttemptResult:
    """Run a job in a process of its own, which is gone when this returns, with all processes that it started.

    The fork server imports the `libraries` when it starts, with the first job of this process. Raises AttnshapeError
    where Python runs with -O, under which beartype checks nothing.
    """
    if sys.flags.optimize or os.environ.get("PYTHONOPTIMIZE"):
        raise AttnshapeError(
            "annotations can't be verified with -O or PYTHONOPTIMIZE, under which beartype checks nothing",
            "run it without, or write comments: --style comment",
        )
    context = multiprocessing.get_context(_METHOD)
    if _METHOD == "forkserver":
        context.set_forkserver_preload(["__main__", "attnshape.annotate.sandbox.attempt", *libraries])
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=serve_attempt, args=(job, sender))  # type: ignore[attr-defined]  # every context has one
    with receiver:
        with _environment(), sender:
            process.start()
        try:
            why = "it took too long"
            if multiprocessing.connection.wait([receiver, process.sentinel], time_limit):
                with contextlib.suppress(EOFError):
                    if receiver.poll():
                        result: AttemptResult = receiver.recv()
                        return result
                process.join()
                why = f"the process ended with status {process.exitcode}"
        finally:
            _end(process)
    return AttemptResult(failure=AttemptFailure("other", why))


@contextlib.contextmanager
def _environment() -> Iterator[None]:
    before = {name: os.environ.pop(name) for name in _ENVIRONMENT if name in os.environ}
    os.environ.update(_ENVIRONMENT)
    try:
        yield
    finally:
        for name in _ENVIRONMENT:
            del os.environ[name]
        os.environ.update(before)


def _end(process: BaseProcess) -> None:
    """Kill an attempt, with what it has started: it leads a process group of its own."""
    if hasattr(os, "killpg") and process.pid is not None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.join()


def libraries_used_by(files: Iterable[str]) -> tuple[str, ...]:
    """Return the modules of installed packages that the modules of some files use, directly or through other modules.

    `files` are absolute paths. Files that this process hasn't imported are skipped, and so are imports in functions.
    """
    by_file = {file: module for module in list(sys.modules.values()) if (file := _file(module)) is not None}
    waiting = [by_file[file] for file in files if file in by_file]
    visited = set(waiting)
    libraries: dict[str, None] = {}
    while waiting:
        for used in _modules_used_by(waiting.pop()):
            file = _file(used)
            if used in visited or file is None:
                continue
            visited.add(used)
            if installed_package(file) is not None:
                libraries[used.__name__] = None
            else:
                waiting.append(used)
    return tuple(libraries)


def _modules_used_by(module: ModuleType) -> Iterator[ModuleType]:
    """Yield the modules in which a module's values are defined."""
    for value in list(vars(module).values()):
        name = value.__name__ if isinstance(value, ModuleType) else None
        if isinstance(value, type | FunctionType):
            name = value.__module__
        used = sys.modules.get(name) if isinstance(name, str) else None
        if isinstance(used, ModuleType):
            yield used


def _file(module: object) -> str | None:
    file = vars(module).get("__file__") if isinstance(module, ModuleType) else None
    return file if isinstance(file, str) else None


_MOST_ATTEMPTS = 40
_NOTHING_WRITTEN = "nothing was written; leave --enforce out, or write comments: --style comment"


class SandboxVerification:
    """Attempts to run the annotated source, each time without the annotations that the previous attempt refuted."""

    def __init__(
        self,
        source: PythonSource,
        forms: Sequence[FunctionForms],
        context: AnnotateContext,
        calls: tuple[TargetCall, ...],
        settings: RunOptions,
    ) -> None:
        self._source, self._forms, self._context = source, forms, context
        self._calls, self._settings = calls, settings
        self._file = display_path(str(source.path))
        self._definitions = parse(source).definitions
        targets = [Path(call.spec.target.rpartition(":")[0]) for call in calls]
        self._libraries = libraries_used_by([str(path.resolve()) for path in (source.path, *targets)])
        self._omitted: list[Omission] = []
        if not context.hook:
            self._omit("no check of local variables", f"{self._file} can't be imported by its name")

    def verify(self, options: AnnotateOptions, progress: ProgressCallback) -> AnnotatedFile:
        """Return the annotations that hold. Raises AttnshapeError if none can be verified."""
        rewrite_source = rewrite_enforced if options.enforce else rewrite_jaxtyping
        for attempt in itertools.count(1):
            if options.enforce:
                self._uncheck_none_defaults()
            rewrite = rewrite_source(self._source, self._forms, self._context)
            if not rewrite.files:
                return AnnotatedFile(self._source, options.style, rewrite, tuple(self._omitted))
            progress("verifying the annotations")
            checked = rewrite_enforced(self._source, self._forms, self._context)
            result = self._run(self._job(checked))
            if result.failure is None:
                break
            if attempt > _MOST_ATTEMPTS:
                raise self._cannot_run(result.failure)
            self._leave_out(result.failure, checked)
        same = self._gives_same_results(result)
        every = (numbers for call in self._calls for numbers in call.numbers)
        sizes = dict.fromkeys(" ".join(f"{symbol}={size}" for symbol, size in numbers.items()) for numbers in every)
        return AnnotatedFile(self._source, options.style, rewrite, tuple(self._omitted), tuple(sizes), same)

    def _run(self, job: SandboxJob) -> AttemptResult:
        return run_in_sandbox(job, self._libraries)

    def _omit(self, what: str, why: str) -> None:
        self._omitted.append(Omission(what, why))

    def _uncheck(self, function: str, why: str) -> None:
        self._context = replace(self._context, unchecked=self._context.unchecked | {function})
        self._omit(f"no check of the arguments and the result of {function}", why)

    def _uncheck_none_defaults(self) -> None:
        """Don't check functions that would refuse their own default of None, though no run passed it."""
        tree = parse(self._source)
        annotations = rewrite_enforced(self._source, self._forms, self._context).annotations
        places = [change.place for change in annotations.changes if change.place.kind == "argument"]
        changed = {(place.line, place.name) for place in places}
        for function in annotations.functions:
            refusing = [n for n in parameters_refusing_none(function, tree) if (function.line, n) not in changed]
            if refusing and function.name not in self._context.unchecked:
                why = f"{refusing[0]} is None by default, which its own annotation doesn't allow"
                self._uncheck(function.name, why)

    def _job(self, checked: Rewrite | None) -> SandboxJob:
        files = {str(s.path): s.apply(edits) for s, edits in checked.files} if checked is not None else {}
        job = SandboxJob(files, self._calls, self._settings.seed, self._settings.train)
        if checked is None or not self._context.hook:
            return job
        hook = find_hook(self._source.path)
        standalone = str(self._source.path) if hook.package is None else ""
        return replace(job, module=hook.module, standalone_file=standalone)

    def _leave_out(self, failure: AttemptFailure, checked: Rewrite) -> None:
        """Leave out what failed. Raises AttnshapeError if the failure isn't one of the annotations'."""
        context, place = self._context, self._place(failure, checked)
        function = self._name(failure)
        if place is not None:
            self._context = replace(context, without=context.without | {place})
            self._omit(f"no annotation for {place}", failure.message)
        elif failure.kind == "local" and context.hook:
            self._context = replace(context, hook=False)
            where = f"line {self._original_line(failure, checked)} of {display_path(failure.file)}"
            self._omit(f"no hook, since the annotation in {where} doesn't hold", failure.message)
        elif function and function not in context.unchecked:
            self._uncheck(function, failure.message)
        elif function and function not in context.untouched:
            self._context = replace(context, untouched=context.untouched | {function})
            del self._omitted[-1:]  # the function's missing check
            self._omit(f"no annotation in {function}", failure.message)
        else:
            raise self._cannot_run(failure)

    def _name(self, failure: AttemptFailure) -> str:
        """Return the name that the file has for the function that failed."""
        names = (definition.name for definition in self._definitions)
        return next((name for name in names if f".{failure.function}".endswith(f".{name}")), failure.function)

    def _place(self, failure: AttemptFailure, checked: Rewrite) -> Place | None:
        """Return the new annotation that failed, None if it is one of the author's own."""
        for place in (change.place for change in checked.annotations.changes):
            if failure.kind == "local" and place.kind == "local":
                line = self._source.line(place.offset) + self._lines_added_above(place.offset, checked)
                if line == failure.line and failure.file == str(self._source.path):
                    return place
            elif failure.kind == place.kind and place.function == self._name(failure) and place.name == failure.name:
                return place
        return None

    def _original_line(self, failure: AttemptFailure, checked: Rewrite) -> int:
        added = ((n, self._lines_added_above(self._source.offset(n, 0), checked)) for n in range(1, failure.line + 1))
        return next((line for line, above in added if line + above == failure.line), 0)

    def _lines_added_above(self, offset: int, checked: Rewrite) -> int:
        edits = [edit for source, edits in checked.files if source is self._source for edit in edits]
        return sum(edit.text.count("\n") or edit.text.count("\r") for edit in edits if edit.start <= offset)

    def _gives_same_results(self, annotated: AttemptResult) -> bool:
        """Return whether the results are bit for bit the original's; False if the original's own results vary.

        Raises AttnshapeError if they differ.
        """
        job = self._job(None)
        original = self._run(job)
        if original.failure is not None:  # as when a wrong signature that is replaced was enforced
            job = replace(job, checked=False)
            original = self._run(job)
        if original.failure is not None:
            raise AttnshapeError(
                f"{self._file} as it is doesn't run in a process of its own: {original.failure.message}",
                "nothing was written; a target must not depend on what ran before it",
            )
        if original.results == annotated.results:
            return True
        if self._run(job).results != original.results:
            self._omit("no comparison of the results", "two runs of the original differ from each other")
            return False
        raise AttnshapeError(f"the annotated {self._file} gives other results", _NOTHING_WRITTEN)

    def _cannot_run(self, failure: AttemptFailure) -> AttnshapeError:
        return AttnshapeError(f"the annotated {self._file} doesn't run: {failure.message}", _NOTHING_WRITTEN)

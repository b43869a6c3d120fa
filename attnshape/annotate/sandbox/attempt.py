"""One attempt, in the sandbox's process: import the attempted source, run the target, and report the outcome."""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import inspect
import itertools
import linecache
import multiprocessing
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import jaxtyping
import torch
from beartype.roar import BeartypeException
from jaxtyping import AnnotationError, TypeCheckError

from attnshape.errors import AttnshapeError, exception_text
from attnshape.options.spec import RunOptions, TargetSpec
from attnshape.runtime.isolation import isolated, seed_all
from attnshape.runtime.signals import reraise_interruption
from attnshape.targets.find import find_target
from attnshape.tracing.containers import tensor_paths
from attnshape.tracing.runner import run_to_completion
from attnshape.tracing.tensor_access import NoNumbersError, describe_kind, numbers_of, shape_of

Cause = Literal["local", "argument", "result", "function", "other"]


@dataclass(frozen=True)
class TargetCall:
    """A target, and the sizes to run it at."""

    spec: TargetSpec
    numbers: tuple[Mapping[str, int], ...]


@dataclass(frozen=True)
class SandboxJob:
    """One attempt: the files whose contents differ from those on disk, and what to run."""

    files: Mapping[str, bytes]
    calls: tuple[TargetCall, ...]
    seed: int
    train: bool
    module: str = ""
    """The module whose local annotations beartype's import hook checks; empty for none."""
    standalone_file: str = ""
    """The module's file, where it isn't part of a package."""
    checked: bool = True
    """Whether jaxtyping's decorators check."""


@dataclass(frozen=True)
class ResultTensor:
    """One tensor that a call returned: its path within the result, and its bytes."""

    path: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes


@dataclass(frozen=True)
class AttemptFailure:
    """Why an attempt failed, and which part of the source caused it."""

    kind: Cause
    message: str
    file: str = ""
    line: int = 0
    """The line of a local variable's annotation, in the file as it was attempted."""
    function: str = ""
    """The qualified name of the function, where an argument, a result or the function as a whole is the cause."""
    name: str = ""
    """The argument's name, where it is known."""


@dataclass(frozen=True)
class AttemptResult:
    """The outcome of an attempt."""

    results: tuple[tuple[ResultTensor, ...], ...] = ()
    """The tensors that each call returned at each of its sizes."""
    failure: AttemptFailure | None = None


_PARAMETER = re.compile(r"typechecking parameter '(\w+)'")
_BEARTYPE_WRAPPER = re.compile(r"<@beartype\((?P<name>[\w.<>]+)\)")
_JAXTYPING = (jaxtyping.__file__ or "").removesuffix("__init__.py")
_SourceLoader = importlib.machinery.SourceFileLoader


def serve_attempt(job: SandboxJob, sender: Connection) -> None:
    """Run a job and send its result. Whatever the attempted code prints is discarded."""
    if hasattr(os, "setsid"):
        os.setsid()
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    torch.set_num_threads(1)
    try:
        result = run_attempt(job)
    except BaseException as error:  # noqa: BLE001 - the attempted code may raise anything
        with contextlib.suppress(BaseException):
            reraise_interruption(error)
        result = AttemptResult(failure=explain_failure(error, job.files))
    sender.send(result)


def _end_with_the_parent() -> None:
    """Leave nothing behind if the tool itself is killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        if hasattr(os, "killpg"):
            os.killpg(0, signal.SIGKILL)
        os._exit(1)


def run_attempt(job: SandboxJob) -> AttemptResult:
    """Run a job's calls in this process, with the job's files in place of those on disk."""
    overlay_files(job.files)
    jaxtyping.config.update("jaxtyping_disable", not job.checked)
    if job.module:
        from beartype.claw import beartype_package

        beartype_package(job.module)
        if job.standalone_file:
            _import_by_name(Path(job.standalone_file))
    options = RunOptions(seed=job.seed, train=job.train)
    results = []
    for target, sizes in ((find_target(call.spec), call.numbers) for call in job.calls):
        for numbers in sizes:
            with isolated(), torch.no_grad():
                runnable = target.build(numbers, options)
                seed_all(options.seed)
                value, _ = run_to_completion(runnable.call())
                results.append(tuple(_result(path, tensor) for path, tensor in tensor_paths("output", value)))
    return AttemptResult(tuple(results))


def _result(path: str, tensor: torch.Tensor) -> ResultTensor:
    try:
        numbers = numbers_of(tensor).resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
        data = bytes(numbers.numpy().tobytes())
    except NoNumbersError:  # its kind, dtype and shape are compared
        data = describe_kind(tensor).encode()
    return ResultTensor(path, str(tensor.dtype), shape_of(tensor), data)


def overlay_files(files: Mapping[str, bytes]) -> None:
    """Import these files with these contents from now on, and write no bytecode. This can't be undone."""
    sys.dont_write_bytecode = True
    read, stats = _SourceLoader.get_data, _SourceLoader.path_stats

    def get_data(self: importlib.machinery.SourceFileLoader, path: str) -> bytes:
        return files[path] if path in files else read(self, path)

    def path_stats(self: importlib.machinery.SourceFileLoader, path: str) -> Any:
        if path in files:
            raise OSError("the bytecode on disk belongs to other source")
        return stats(self, path)

    _SourceLoader.get_data = get_data  # type: ignore[assignment, method-assign]  # the same signature
    _SourceLoader.path_stats = path_stats  # type: ignore[method-assign]  # likewise
    for file, data in files.items():
        lines = importlib.util.decode_source(data).splitlines(keepends=True)
        linecache.cache[file] = (len(data), None, lines, file)


def _import_by_name(path: Path) -> None:
    """Import a file outside of any package so that import hooks see it, as `import NAME` would."""
    spec = importlib.machinery.PathFinder.find_spec(path.stem, [str(path.parent)])
    if spec is None or spec.loader is None or path.stem in sys.stdlib_module_names or path.stem in sys.modules:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        raise


def explain_failure(error: BaseException, files: Collection[str]) -> AttemptFailure:
    """Return which annotation an exception of jaxtyping or beartype refutes; `files` are the overlaid ones."""
    while isinstance(error, AttnshapeError) and error.__cause__ is not None:  # as when the target can't be built
        error = error.__cause__
    message = _message(error)
    frames = list(traceback.walk_tb(error.__traceback__))
    for (frame, _), (inner, _) in itertools.pairwise(frames):
        if _is_jaxtyping(frame) and inner.f_code.co_filename == inspect.__file__ and isinstance(error, TypeError):
            return AttemptFailure("function", message, function=_checked_function(frame))
    if not isinstance(error, (BeartypeException, TypeCheckError, AnnotationError)):
        return AttemptFailure("other", message)
    wrapped = ""
    for frame, line in reversed(frames):
        code = frame.f_code
        if code.co_filename in files and not wrapped:
            return AttemptFailure("local", message, file=code.co_filename, line=line)
        if _is_jaxtyping(frame):
            function, parameter = _checked_function(frame), _PARAMETER.search(exception_text(error))
            if "out" in frame.f_locals:
                return AttemptFailure("result", message, function=function)
            kind: Cause = "argument" if parameter is not None else "function"
            return AttemptFailure(kind, message, function=function, name=parameter[1] if parameter is not None else "")
        if wrapped:
            break
        if (match := _BEARTYPE_WRAPPER.match(code.co_filename)) and not match["name"].startswith("__beartype"):
            wrapped = match["name"].replace("<locals>.", "")
    return AttemptFailure("function", message, function=wrapped) if wrapped else AttemptFailure("other", message)


def _is_jaxtyping(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_JAXTYPING) and "fn" in frame.f_locals


def _checked_function(frame: FrameType) -> str:
    """Return the qualified name of the function that jaxtyping checks in one of its frames."""
    function: Any = frame.f_locals["fn"]
    return str(getattr(function, "__qualname__", "")).replace("<locals>.", "")


_LONGEST_MESSAGE = 600


def _message(error: BaseException) -> str:
    """Return an exception's first line and the details that fit; a longer line ends between two words, with `…`."""
    lines = exception_text(error).strip().splitlines() or ["no message"]
    details = [line for line in lines if line.startswith(("The problem arose", "Actual value:", "Expected type:"))]
    text = f"{type(error).__name__}: {lines[0]}"
    if len(text) > _LONGEST_MESSAGE:
        return f"{text[:_LONGEST_MESSAGE].rpartition(' ')[0]} …"
    for detail in details:
        text += f" {detail}" if len(text) + len(detail) < _LONGEST_MESSAGE else ""
    return text

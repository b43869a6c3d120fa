"""From an exception of jaxtyping or beartype to the annotation that doesn't hold."""

from __future__ import annotations

import inspect
import itertools
import re
import traceback
from collections.abc import Collection
from types import FrameType
from typing import Any

import jaxtyping
from beartype.roar import BeartypeException
from jaxtyping import AnnotationError, TypeCheckError

from attnshape.errors import AttnshapeError
from attnshape.proving.job import Blame

_PARAMETER = re.compile(r"typechecking parameter '(\w+)'")
_CHECKED = re.compile(r"<@beartype\((?P<name>[\w.<>]+)\)")
_JAXTYPING = (jaxtyping.__file__ or "").removesuffix("__init__.py")


def blame(error: BaseException, files: Collection[str]) -> Blame:
    """Return what an exception of an attempt blames; `files` are those with other contents than on the disk."""
    while isinstance(error, AttnshapeError) and error.__cause__ is not None:  # as where the target can't be built
        error = error.__cause__
    message = _message(error)
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    for frame, inner in itertools.pairwise(frames):
        if _in_jaxtyping(frame) and inner.f_code.co_filename == inspect.__file__ and isinstance(error, TypeError):
            return Blame("function", message, function=_name(frame))
    if not isinstance(error, (BeartypeException, TypeCheckError, AnnotationError)):
        return Blame("other", message)
    checked = ""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        code = frame.f_code
        if code.co_filename in files and not checked:
            return Blame("local", message, file=code.co_filename, line=line)
        if _in_jaxtyping(frame):
            return _of_function(error, frame, message)
        if checked:
            return Blame("function", message, function=checked)
        if (match := _CHECKED.match(code.co_filename)) and not match["name"].startswith("__beartype"):
            checked = match["name"].replace("<locals>.", "")
    return Blame("function", message, function=checked) if checked else Blame("other", message)


def _in_jaxtyping(frame: FrameType) -> bool:
    """Say whether a frame is one in which jaxtyping treats a function."""
    return frame.f_code.co_filename.startswith(_JAXTYPING) and "fn" in frame.f_locals


def _of_function(error: BaseException, frame: FrameType, message: str) -> Blame:
    name = _name(frame)
    if "out" in frame.f_locals:
        return Blame("result", message, function=name)
    parameter = _PARAMETER.search(str(error))
    if parameter is not None:
        return Blame("argument", message, function=name, name=parameter[1])
    return Blame("function", message, function=name)


def _name(frame: FrameType) -> str:
    """Return the function that jaxtyping treats in one of its frames."""
    function: Any = frame.f_locals["fn"]
    return str(getattr(function, "__qualname__", "")).replace("<locals>.", "")


def _message(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or ["no message"]
    said = [line for line in lines if line.startswith(("The problem arose", "Actual value:", "Expected type:"))]
    return f"{type(error).__name__}: {' '.join([lines[0], *said])}"[:300]

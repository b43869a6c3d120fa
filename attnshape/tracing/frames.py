"""Tells frames of the traced code from those of the libraries that it calls."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any, Literal

import torch
import torch.overrides

_HERE = Path(__file__).resolve().parent.parent
_CONSOLES = ("<stdin>", "<console>", "<python-input-", "<ipython-input-", "<doctest ")
_LIBRARIES = ("torch", "einops")
_PLUMBING = (
    *("jaxtyping", "beartype", "functools", "contextlib", "typing"),
    *("torch.overrides", "torch.utils._contextlib", "torch._dynamo"),
)
_CALL = sys.modules[torch.nn.Module.__module__].__file__

CodeOwner = Literal["own", "library", "plumbing"]


@dataclass(frozen=True, slots=True)
class Site:
    """Where a call comes from."""

    frame: FrameType
    """The nearest frame of the traced code, or of a library within a composite that has none."""
    own: bool
    """Whether the frame is the traced code's own."""
    library: FrameType | None = None
    """The frame of the library function that the traced code called, if the call comes from inside one."""
    within: FrameType | None = None
    """The nearest frame inside that library function."""

    @property
    def nearest(self) -> FrameType:
        """The frame that makes the call, in the traced code or in a library."""
        return self.within or self.frame


def calling_frame(func: Callable[..., Any], frame: FrameType) -> FrameType:
    """Return the frame that calls a function, given the frame from which torch handed the call over.

    Torch hands over from the called function itself if this is written in Python.
    """
    if isinstance(func, FunctionType) and frame.f_code.co_filename == torch.overrides.__file__:
        outer = frame.f_back
        if outer is not None and outer.f_code is func.__code__ and outer.f_back is not None:
            return outer.f_back
    return frame


class Frames:
    """Finds the frame, outside the libraries, that a call comes from."""

    def __init__(self, own_files: frozenset[str] = frozenset()) -> None:
        """`own_files` are the target's; they count as its own even where a library contains them."""
        self._own_files = own_files
        self._kinds: dict[int, tuple[CodeOwner, CodeType]] = {}
        """By the code's id, since hashing code is slow; the code is held so that its id stays its own."""

    def site(self, start: FrameType | None, stop: FrameType | None, barrier: int | None) -> Site | None:
        """Return where the call of a frame comes from; None where neither the traced code nor a composite makes it.

        `stop` is the frame that started the run. `barrier` is the id of the frame under which the innermost composite
        runs: if no frame of the traced code lies between it and the call, the site is the nearest library frame.
        """
        nearest: FrameType | None = None
        outermost: FrameType | None = None
        frame = start
        while frame is not None and frame is not stop:
            if id(frame) == barrier:
                return Site(nearest, False) if nearest is not None else None
            kind = self.kind(frame.f_code)
            if kind == "own":
                return Site(frame, True, outermost, nearest)
            if kind == "library":
                nearest = nearest or frame
                outermost = frame
            frame = frame.f_back
        return None

    def kind(self, code: CodeType) -> CodeOwner:
        """Return whose code it is: the traced code's own, a library's, or plumbing that only forwards calls."""
        if id(code) not in self._kinds:
            self._kinds[id(code)] = (self._kind(code.co_filename), code)
        return self._kinds[id(code)][0]

    def belongs_to_library(self, code: CodeType) -> bool:
        """Return whether code is in a library, even where it is in the target's own file."""
        return _is_in(code.co_filename, _LIBRARIES)

    def _kind(self, file: str) -> CodeOwner:
        if file in self._own_files or file.startswith(_CONSOLES):
            return "own"
        if file.startswith(f"{_HERE}/targets/builtin/mechanisms/"):
            return "own"
        # beartype and dataclasses run generated code, which has no file
        if file.startswith(("<", f"{_HERE}/")) or file == _CALL or _is_in(file, _PLUMBING):
            return "plumbing"
        return "library" if _is_in(file, _LIBRARIES) else "own"


def _is_in(file: str, modules: tuple[str, ...]) -> bool:
    """Return whether a file is that of a module, or in a package.

    The modules are looked up each time, since the traced code itself may import a library.
    """
    files = [path for name in modules if (path := getattr(sys.modules.get(name), "__file__", None))]
    return any(file == path or file.startswith(f"{path.removesuffix('/__init__.py')}/") for path in files)

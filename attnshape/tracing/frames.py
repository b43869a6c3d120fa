"""Which frames are the traced code's own, and which belong to the libraries that it calls."""

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

Kind = Literal["own", "library", "plumbing"]


@dataclass(frozen=True, slots=True)
class Site:
    """Where a call comes from."""

    frame: FrameType
    """The nearest frame of the traced code; within a composite that has none, the nearest of a library."""
    own: bool
    """Whether the frame is the traced code's own."""
    library: FrameType | None = None
    """The frame of the library's function that the traced code called, where the call comes from inside of one."""
    within: FrameType | None = None
    """The nearest frame there."""

    @property
    def nearest(self) -> FrameType:
        """The frame that the call itself stands in, the traced code's or a library's."""
        return self.within or self.frame


def calling(func: Callable[..., Any], frame: FrameType) -> FrameType:
    """Return the frame that calls a function which torch has handed over from there, or from the function itself."""
    if isinstance(func, FunctionType) and frame.f_code.co_filename == torch.overrides.__file__:
        outer = frame.f_back
        if outer is not None and outer.f_code is func.__code__ and outer.f_back is not None:
            return outer.f_back
    return frame


class Frames:
    """Finds the frame, outside the libraries, that a call comes from."""

    def __init__(self, own_files: frozenset[str] = frozenset()) -> None:
        """`own_files` are the target's, never passed over, even where a library holds them."""
        self._own_files = own_files
        self._kinds: dict[int, tuple[Kind, CodeType]] = {}
        """By the code's id, since its hash takes long; the code is held so that its id stays its own."""

    def site(self, start: FrameType | None, stop: FrameType | None, barrier: int | None) -> Site | None:
        """Return where a call comes from: the nearest frame of the traced code.

        `stop` is the frame that the run was started from, outside the traced code. `barrier` is the id of the frame
        under which the innermost composite runs: where no frame of the traced code lies within, the nearest of the
        library's does.
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

    def is_library(self, code: CodeType) -> bool:
        """Say whether frames of this code are passed over."""
        return self.kind(code) != "own"

    def kind(self, code: CodeType) -> Kind:
        """Return whose code it is: the traced code's own, a library's, or what only passes calls on."""
        known = self._kinds.get(id(code))
        if known is None:
            known = self._kinds[id(code)] = (self._kind(code.co_filename), code)
        return known[0]

    def belongs_to_library(self, code: CodeType) -> bool:
        """Say whether the code is a library's, even where it is the target's own file."""
        return code.co_filename.startswith(tuple(f"{folder}/" for folder in _folders(_LIBRARIES)))

    def _kind(self, file: str) -> Kind:
        if file in self._own_files or file.startswith(_CONSOLES):
            return "own"
        # beartype and dataclasses run code that they made themselves, from no file
        if file.startswith("<") or file == _CALL or _of_the_tool(file):
            return "plumbing"
        # looked up anew, since the traced code itself may import a library
        if any(file == place or file.startswith(f"{place}/") for place in _folders(_PLUMBING)):
            return "plumbing"
        return "library" if any(file.startswith(f"{place}/") for place in _folders(_LIBRARIES)) else "own"


def _of_the_tool(file: str) -> bool:
    """The tool's own frames aren't the traced code's, those of its catalog are."""
    return file.startswith(f"{_HERE}/") and not file.startswith(f"{_HERE}/catalog/mechanisms/")


def _folders(names: tuple[str, ...]) -> list[str]:
    return [folder for name in names if (folder := _folder(name))]


def _folder(name: str) -> str | None:
    file = getattr(sys.modules.get(name), "__file__", None)
    return file.removesuffix("/__init__.py") if file else None

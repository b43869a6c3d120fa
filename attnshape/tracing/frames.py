"""Which frames are the traced code's own, and which belong to the libraries that it calls."""

from __future__ import annotations

import sys
from pathlib import Path
from types import CodeType, FrameType

import torch

_HERE = Path(__file__).resolve().parent.parent
_PLUMBING = ("torch", "jaxtyping", "beartype", "einops", "functools", "contextlib", "typing")
_MODULE_CALL = torch.nn.Module._call_impl.__code__


class Frames:
    """Finds the frame, outside the libraries, that a call comes from."""

    def __init__(self, own_files: frozenset[str] = frozenset()) -> None:
        """`own_files` are the target's, never passed over, even where a library holds them."""
        self._own_files = own_files
        self._passed_over: dict[CodeType, bool] = {}

    def caller(self, start: FrameType | None, stop: FrameType | None) -> tuple[FrameType | None, int]:
        """Return the nearest frame of the traced code, and how many modules' calls lie between.

        `stop` is the frame that the run was started from, outside the traced code.
        """
        calls = 0
        frame = start
        while frame is not None and frame is not stop:
            if not self.is_library(frame.f_code):
                return frame, calls
            calls += frame.f_code is _MODULE_CALL
            frame = frame.f_back
        return None, calls

    def is_einops(self, code: CodeType) -> bool:
        """Say whether the code is a part of einops."""
        folder = _folder("einops")
        return folder is not None and code.co_filename.startswith(f"{folder}/")

    def is_library(self, code: CodeType) -> bool:
        """Say whether frames of this code are passed over."""
        known = self._passed_over.get(code)
        if known is None:
            known = self._passed_over[code] = self._belongs_to_library(code)
        return known

    def _belongs_to_library(self, code: CodeType) -> bool:
        file = code.co_filename
        if file in self._own_files:
            return False
        # looked up anew, since the traced code itself may import a library
        roots = [f"{folder}/" for name in _PLUMBING if (folder := _folder(name))]
        # beartype and dataclasses run code that they made themselves, from no file
        return file.startswith(("<", *roots)) or _of_the_tool(file)


def _of_the_tool(file: str) -> bool:
    """The tool's own frames aren't the traced code's, those of its catalog are."""
    return file.startswith(f"{_HERE}/") and not file.startswith(f"{_HERE}/catalog/mechanisms/")


def _folder(name: str) -> str | None:
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    if not file:
        return None
    path = Path(file)
    return str(path.parent) if path.name == "__init__.py" else str(path)

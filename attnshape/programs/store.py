"""The folder in which the processes of a program leave what they captured."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec

from attnshape.model.program import ProcessCaptures

_SUFFIX = ".captures"


def save(folder: str, captures: ProcessCaptures) -> None:
    """Write what this process captured; the program doesn't notice if that fails."""
    with contextlib.suppress(OSError):
        path = Path(folder) / f"{captures.process}{_SUFFIX}"
        temporary = path.with_suffix(".tmp")
        temporary.write_bytes(msgspec.json.encode(captures))
        os.replace(temporary, path)  # noqa: PTH105 - the same


def load(folder: str) -> list[ProcessCaptures]:
    """Return what the processes captured, in the order of their numbers."""
    found: list[ProcessCaptures] = []
    for path in sorted(Path(folder).glob(f"*{_SUFFIX}"), key=lambda path: int(path.stem)):
        with contextlib.suppress(OSError, msgspec.DecodeError):
            found.append(msgspec.json.decode(path.read_bytes(), type=ProcessCaptures))
    return found

"""Which function a variable is of. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Function:
    """A function: its file, its name with those around it, and its first line, a decorator's where it has one."""

    file: str
    name: str
    line: int

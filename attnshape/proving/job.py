"""What the proving process is asked, and what it answers. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from attnshape.target.request import Request

Blamed = Literal["local", "argument", "result", "function", "other"]


@dataclass(frozen=True)
class Call:
    """A target, and the sizes to run it at."""

    request: Request
    numbers: tuple[Mapping[str, int], ...]


@dataclass(frozen=True)
class Job:
    """One attempt: which files are other than on the disk, and what to run."""

    files: Mapping[str, bytes]
    calls: tuple[Call, ...]
    seed: int
    train: bool
    module: str = ""
    """The module whose local annotations are checked by beartype's import hook; nothing for none."""
    alone: str = ""
    """Its file, where it is part of no package."""
    checked: bool = True
    """Whether jaxtyping's decorators check."""
    libraries: tuple[str, ...] = ()
    """Modules that the code needs: imported once, for this attempt and those after it."""


@dataclass(frozen=True)
class Result:
    """One tensor that a call returned: where it stands in the result, and its bytes."""

    path: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes


@dataclass(frozen=True)
class Blame:
    """Why an attempt failed, and what of the source is to blame."""

    kind: Blamed
    message: str
    file: str = ""
    line: int = 0
    """Of a local variable's annotation, in the file as it was attempted."""
    function: str = ""
    """With those around it, where an argument, a result or the function as a whole is to blame."""
    name: str = ""
    """The argument's, where it is known."""


@dataclass(frozen=True)
class Answer:
    """What an attempt came to."""

    results: tuple[tuple[Result, ...], ...] = ()
    """Those of each call at each of its sizes."""
    blame: Blame | None = field(default=None)

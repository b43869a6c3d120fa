"""The attention that was found in source code: the value that `attnshape targets` lists."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from attnshape.model.trace import Saved

Kind = Literal["function", "module", "helper", "container"]
"""A function or a module that computes attention, a function that such a module calls for it, or a module that has
another one with attention."""


class FoundTarget(Struct, frozen=True, kw_only=True):
    """A function or class with attention in it."""

    target: str
    """As the command line takes it: `model.py:Attention`."""
    file: str
    name: str
    line: int
    kind: Kind
    why: str
    """The call that shows it, with its line: `softmax() at line 42`."""


class UnreadFile(Struct, frozen=True, kw_only=True):
    """A file that can't be read as Python, and why."""

    file: str
    why: str


class FoundTargets(Saved, frozen=True, kw_only=True):
    """The attention in some files."""

    schema: Literal["attnshape/targets/1"] = "attnshape/targets/1"
    attnshape: str
    command: str
    files: int
    """How many files were read."""
    tests: int
    """How many files of tests were left out."""
    targets: tuple[FoundTarget, ...] = ()
    unread: tuple[UnreadFile, ...] = ()

    @property
    def to_run(self) -> tuple[FoundTarget, ...]:
        """The modules and functions that compute attention; where there are none, containers that contain no others."""
        own = tuple(one for one in self.targets if one.kind in ("module", "function"))
        names = {one.name for one in self.targets}
        containers = (one for one in self.targets if one.kind == "container")
        return own or tuple(one for one in containers if one.why.partition("(")[0] not in names)

"""The differences between two folders of saved traces."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct

from attnshape.comparing.difference import Difference
from attnshape.comparing.kinds import KINDS, Kind

SCHEMA: Literal["attnshape/diffs/1"] = "attnshape/diffs/1"


class FileDifference(Struct, frozen=True):
    """What differs between the files of one name."""

    name: str
    difference: Difference


class NotCompared(Struct, frozen=True):
    """The files of one name that can't be compared, and why."""

    name: str
    reason: str


class Differences(Struct, frozen=True, kw_only=True):
    """What differs between two folders, file by file."""

    schema: Literal["attnshape/diffs/1"] = SCHEMA
    old: str
    new: str
    files: tuple[FileDifference, ...] = ()
    only_old: tuple[str, ...] = ()
    only_new: tuple[str, ...] = ()
    not_compared: tuple[NotCompared, ...] = ()

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Every kind that differs in some file; a file that only one folder has is steps that came or went."""
        found: set[Kind] = {kind for file in self.files for kind in file.difference.kinds}
        if self.only_old or self.only_new:
            found.add("steps")
        return tuple(kind for kind in KINDS if kind in found)

    def to_json(self) -> str:
        """Return the differences as indented JSON, schema `attnshape/diffs/1`."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1).decode()

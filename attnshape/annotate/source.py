"""A source file as bytes and as text, and edits of it that leave everything else as it is."""

from __future__ import annotations

import codecs
import io
import itertools
import re
import tokenize
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from attnshape.errors import AttnshapeError
from attnshape.paths import display_path

_NEWLINE = re.compile(rb"\r\n|\r|\n")
_REST_OF_LINE = re.compile(rb"[ \t\f;,]*(?P<comment>#[^\r\n]*)?(?=[\r\n]|\Z)")


@dataclass(frozen=True)
class Edit:
    """Text in the place of a file's bytes from `start` to `end`, which are those of its text in UTF-8."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Comment:
    """Where a line may get a comment at its end, and the one that it has."""

    at: int
    """Behind the code, or behind the comment that is there."""
    start: int
    """Where the comment that is there begins."""
    text: str
    """The comment that is there, from its `#`; nothing where there is none."""


@dataclass(frozen=True)
class Source:
    """A Python file, whose text is decoded as Python does it, with its line ends kept."""

    path: Path
    data: bytes
    encoding: str

    @cached_property
    def text(self) -> str:
        """The text, without a byte order mark."""
        return self.data[len(self._mark) :].decode(self.encoding)

    @cached_property
    def utf8(self) -> bytes:
        """The text in UTF-8, whose offsets are those of edits."""
        return self.text.encode("utf-8")

    @property
    def _mark(self) -> bytes:
        return codecs.BOM_UTF8 if self.data.startswith(codecs.BOM_UTF8) else b""

    @cached_property
    def newline(self) -> str:
        """The line end that is used the most."""
        counts = {"\n": 0, "\r\n": 0, "\r": 0}
        for match in _NEWLINE.finditer(self.utf8):
            counts[match.group().decode()] += 1
        return max(counts, key=counts.__getitem__)

    @cached_property
    def _lines(self) -> list[int]:
        return [0, *(match.end() for match in _NEWLINE.finditer(self.utf8))]

    def offset(self, line: int, column: int) -> int:
        """Return the offset of a place, by line from 1 and column in UTF-8 bytes from 0."""
        return self._lines[line - 1] + column if 0 < line <= len(self._lines) else -1

    def line(self, offset: int) -> int:
        """Return the line of an offset, from 1."""
        low, high = 0, len(self._lines)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._lines[middle] <= offset else (low, middle)
        return low + 1

    def line_start(self, offset: int) -> int:
        """Return where the line of an offset begins."""
        return self._lines[self.line(offset) - 1]

    def end_of_line(self, offset: int) -> Comment | None:
        """Return where the line of an offset may get a comment; None where more code follows the offset in it."""
        rest = _REST_OF_LINE.match(self.utf8, offset)
        if rest is None:
            return None
        if rest["comment"] is None:
            blank = rest.group()
            at = offset + len(blank.rstrip(b" \t\f"))
            return Comment(at, at, "")
        text = rest["comment"].rstrip(b" \t\f")
        start = rest.start("comment")
        return Comment(start + len(text), start, text.decode())

    def edited(self, edits: Iterable[Edit]) -> bytes:
        """Return the file's bytes with edits, which don't overlap; those at one place in the order given.

        Raises AttnshapeError where the file's encoding lacks a character.
        """
        pieces, done = [], 0
        for edit in sorted(edits, key=lambda one: (one.start, one.end)):
            pieces += [self.utf8[done : edit.start].decode(), edit.text]
            done = edit.end
        text = "".join([*pieces, self.utf8[done:].decode()])
        try:
            return self._mark + text.encode(self.encoding)
        except UnicodeEncodeError as error:
            raise AttnshapeError(
                f"{display_path(str(self.path))} is in {self.encoding}, which lacks {error.object[error.start]!r}",
                "name your sizes with other letters, or save the file as UTF-8",
            ) from None


def decoded(path: Path, data: bytes) -> Source:
    """Return a file's bytes as source. Raises AttnshapeError where they aren't text in the encoding that it names."""
    name = display_path(str(path))
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        source = Source(path, data, "utf-8" if encoding == "utf-8-sig" else encoding)
        again = source.edited(())
    except (SyntaxError, LookupError, UnicodeDecodeError) as error:
        raise AttnshapeError(
            f"{name} can't be read as text: {error}", "save it in the encoding that it names"
        ) from None
    if again != data:
        raise AttnshapeError(
            f"{name} is in {source.encoding}, from which it can't be written again byte for byte", "save it as UTF-8"
        )
    return source


def inserted(edits: Iterable[Edit]) -> bool:
    """Say whether edits only add text."""
    return all(edit.start == edit.end for edit in edits)


def overlapping(edits: Iterable[Edit]) -> bool:
    """Say whether two edits are in each other's way."""
    ordered = sorted(edits, key=lambda one: (one.start, one.end))
    return any(one.end > other.start for one, other in itertools.pairwise(ordered))

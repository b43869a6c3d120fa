"""A source file as bytes and as text, and edits that change only the bytes they replace."""

from __future__ import annotations

import bisect
import codecs
import io
import re
import tokenize
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from attnshape.errors import AttnshapeError
from attnshape.runtime.files import display_path

_NEWLINE = re.compile(rb"\r\n|\r|\n")
_REST_OF_LINE = re.compile(rb"[ \t\f;,]*(?P<comment>#[^\r\n]*)?(?=[\r\n]|\Z)")


@dataclass(frozen=True)
class Edit:
    """A replacement of the bytes from `start` to `end` of a file's text in UTF-8."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class LineEnd:
    """The end of a line of code: where a comment can go, and the comment that it has."""

    at: int
    """The offset after the code, or after the existing comment."""
    start: int
    """The offset of the existing comment."""
    text: str
    """The existing comment with its `#`; empty if there is none."""


@dataclass(frozen=True)
class PythonSource:
    """A Python file. Its text is decoded as Python decodes it, and keeps its line endings."""

    path: Path
    data: bytes
    encoding: str

    @cached_property
    def text(self) -> str:
        """The text, without a byte order mark."""
        return self.data[len(self._bom) :].decode(self.encoding)

    @cached_property
    def utf8(self) -> bytes:
        """The text in UTF-8, to which the offsets of edits refer."""
        return self.text.encode("utf-8")

    @property
    def _bom(self) -> bytes:
        return codecs.BOM_UTF8 if self.data.startswith(codecs.BOM_UTF8) else b""

    @cached_property
    def newline(self) -> str:
        """The most frequent line ending."""
        return max(b"\n", b"\r\n", b"\r", key=_NEWLINE.findall(self.utf8).count).decode()

    @cached_property
    def _lines(self) -> list[int]:
        return [0, *(match.end() for match in _NEWLINE.finditer(self.utf8))]

    def offset(self, line: int, column: int) -> int:
        """Return the offset of a position: lines count from 1, columns in UTF-8 bytes from 0."""
        return self._lines[line - 1] + column if 0 < line <= len(self._lines) else -1

    def line(self, offset: int) -> int:
        """Return the line of an offset, from 1."""
        return bisect.bisect_right(self._lines, offset)

    def line_start(self, offset: int) -> int:
        """Return where the line of an offset begins."""
        return self._lines[self.line(offset) - 1]

    def end_of_line(self, offset: int) -> LineEnd | None:
        """Return the position for a comment on the line of an offset; None if code follows the offset on that line."""
        rest = _REST_OF_LINE.match(self.utf8, offset)
        if rest is None:
            return None
        text = (rest["comment"] or b"").rstrip(b" \t\f")
        start = rest.start("comment") if text else offset + len(rest.group().rstrip(b" \t\f"))
        return LineEnd(start + len(text), start, text.decode())

    def apply(self, edits: Iterable[Edit]) -> bytes:
        """Return the file's bytes after edits that don't overlap. Edits at the same offset keep their order.

        Raises AttnshapeError if the file's encoding lacks a character.
        """
        pieces, end = [], 0
        for edit in sorted(edits, key=lambda edit: (edit.start, edit.end)):
            pieces += [self.utf8[end : edit.start].decode(), edit.text]
            end = edit.end
        text = "".join([*pieces, self.utf8[end:].decode()])
        try:
            return self._bom + text.encode(self.encoding)
        except UnicodeEncodeError as error:
            raise AttnshapeError(
                f"{display_path(str(self.path))} is in {self.encoding}, which lacks {error.object[error.start]!r}",
                "give your sizes other names, or save the file as UTF-8",
            ) from None


def decode_source(path: Path, data: bytes) -> PythonSource:
    """Decode a file's bytes. Raises AttnshapeError if they aren't text in the encoding that the file declares."""
    name = display_path(str(path))
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        source = PythonSource(path, data, "utf-8" if encoding == "utf-8-sig" else encoding)
        reproduced = source.apply(())
    except (SyntaxError, LookupError, UnicodeDecodeError) as error:
        raise AttnshapeError(
            f"{name} can't be read as text: {error}", "save it in the encoding that it names"
        ) from None
    if reproduced != data:
        raise AttnshapeError(
            f"{name} is in {source.encoding}, in which its text can't be reproduced byte for byte", "save it as UTF-8"
        )
    return source

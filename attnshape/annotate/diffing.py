"""A unified diff of files, as `git apply` takes it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from attnshape.annotate.source import Source

_LINE = re.compile(rb"[^\n]*\n|[^\n]+\Z")
_COLORS = {b"---": b"\x1b[1m", b"+++": b"\x1b[1m", b"@@": b"\x1b[36m", b"+": b"\x1b[32m", b"-": b"\x1b[31m"}
_END = b"\x1b[0m"
_ESCAPES = {b"\\": rb"\\", b'"': rb"\"", b"\n": rb"\n", b"\t": rb"\t", b"\r": rb"\r"}


def unified(files: Iterable[tuple[Source, bytes]], folder: Path) -> bytes:
    """Return the diff of files to their new contents, with paths relative to a folder."""
    return b"".join(line for source, new in files for line in _file(source, new, folder))


def _file(source: Source, new: bytes, folder: Path) -> Iterator[bytes]:
    name = _name(source.path, folder)
    old_lines, new_lines = _LINE.findall(source.data), _LINE.findall(new)
    lines = difflib.diff_bytes(difflib.unified_diff, old_lines, new_lines, b"old", b"new")
    for place, line in enumerate(lines):
        if place == 0:
            yield b"--- " + _quoted(b"a/" + name) + b"\n"
        elif place == 1:
            yield b"+++ " + _quoted(b"b/" + name) + b"\n"
        elif line.endswith(b"\n"):
            yield line
        else:
            yield line + b"\n\\ No newline at end of file\n"


def _name(path: Path, folder: Path) -> bytes:
    """Return a path from a folder, as git has it."""
    try:
        return bytes(path.relative_to(folder))
    except ValueError:
        ups = 0
        while not path.is_relative_to(folder):
            folder, ups = folder.parent, ups + 1
        return b"../" * ups + bytes(path.relative_to(folder))


def _quoted(name: bytes) -> bytes:
    """Return a file's name as git quotes it, where it has characters that would break the line."""
    if re.fullmatch(rb"[\x21\x23-\x5b\x5d-\x7e]+", name):
        return name
    if re.fullmatch(rb"[\x20\x21\x23-\x5b\x5d-\x7e]+", name):
        return name + b"\t"
    parts: Sequence[bytes] = [
        _ESCAPES.get(char, char if 0x20 <= char[0] < 0x7F else b"\\%03o" % char[0])
        for char in (name[place : place + 1] for place in range(len(name)))
    ]
    return b'"' + b"".join(parts) + b'"'


def colored(diff: bytes) -> bytes:
    """Return a diff in the colours that git gives it."""
    return b"".join(_colored(line) for line in _LINE.findall(diff))


def _colored(line: bytes) -> bytes:
    color = next((color for start, color in _COLORS.items() if line.startswith(start)), None)
    text = line.rstrip(b"\r\n")
    return color + text + _END + line[len(text) :] if color is not None else line

"""Runs command lines in this process, and validates their output with independent parsers."""

from __future__ import annotations

import io
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
from markdown_it import MarkdownIt
from rich.cells import cell_len

from attnshape.cli.app import run
from attnshape.model.trace import json_schema
from attnshape.runtime.files import display_path

ROOT = Path(__file__).parents[2]
FORMATS = ("table", "markdown", "json")
# lines that are not rows of the table
_HEADINGS = ("project and split", "position", "attend", "merge", "before the attention", "after the attention")
_RENDERED = {"html_inline", "link_open", "image", "em_open", "s_open", "fence", "code_block", "heading_open", "hr"}
_MARKDOWN = MarkdownIt("commonmark").enable(["table", "strikethrough"])
_SCHEMA = jsonschema.Draft202012Validator(json_schema())


@dataclass(frozen=True)
class Outcome:
    """The exit status and the output of a command."""

    status: int
    out: str
    err: str


def attnshape(*words: str) -> Outcome:
    """Run a command line with its own text streams, independent of pytest's capturing."""
    saved_streams = sys.stdout, sys.stderr, sys.argv, list(sys.path)
    out, err = (
        io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace", write_through=True)
        for _ in range(2)
    )
    sys.stdout, sys.stderr = out, err
    sys.argv = ["attnshape", *words]
    display_path.cache_clear()
    try:
        status = run(list(words))
    finally:
        sys.stdout, sys.stderr, sys.argv, sys.path[:] = saved_streams
        display_path.cache_clear()
    outputs = [stream.buffer.getvalue().decode() for stream in (out, err)]  # type: ignore[attr-defined]
    return Outcome(status, *outputs)


def assert_refused(done: Outcome) -> None:
    """Assert that there is one error line, at most one hint line, and nothing on stdout."""
    assert done.status == 2, done
    assert done.out == ""
    lines = done.err.splitlines()
    assert re.match(r"error: \S", lines[0]), done.err
    assert all(line.startswith("hint: ") for line in lines[1:]), done.err
    assert len(lines) <= 2, done.err
    assert all(line.isprintable() for line in lines), done.err


def assert_drawn(format_: str, text: str, width: int, explained: bool = False) -> None:
    """Assert that the output is valid in its format, without injected markup or control characters.

    With `explained`, there are sentences between the rows of a table.
    """
    if format_ == "json":
        _SCHEMA.validate(json.loads(text, parse_constant=_no_constant))
        return
    assert all(line.isprintable() for line in text.split("\n")), text
    if format_ == "markdown":
        _assert_markdown(text)
    else:
        _assert_table(text, width, explained)


def _no_constant(name: str) -> Any:
    raise AssertionError(f"{name} isn't JSON")


def _assert_markdown(text: str) -> None:
    tokens = _MARKDOWN.parse(text)
    kinds = {child.type for token in tokens for child in [token, *(token.children or [])]}
    assert not kinds & _RENDERED, (kinds & _RENDERED, text)
    widths, inside = [], 0
    for token in tokens:
        inside += {"table_open": 1, "table_close": -1}.get(token.type, 0)
        if token.type == "tr_open":
            widths.append(0)
        elif token.type in ("th_open", "td_open"):
            widths[-1] += 1
    rows = [line for line in text.split("\n") if line.startswith("|")]
    assert len(set(widths)) <= 1, text
    # the parser drops excess cells, so the source rows are counted too
    assert len(widths) == max(len(rows) - 1, 0), text
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in rows} <= {widths[0] + 1 if widths else 0}, text


def _assert_table(text: str, width: int, explained: bool) -> None:
    lines = text.split("\n")
    assert all(cell_len(line) <= width for line in lines), text
    header = next((place for place, line in enumerate(lines) if re.match(r" *#  \S", line)), None)
    if header is None or explained:
        return
    starts = [found.start() for found in re.finditer(r"(?<=  )[^\s#]", lines[header])]
    for line in lines[header + 1 :]:
        if not line:
            break
        if line not in _HEADINGS:
            for start in starts:
                assert _cells_at(line, start) == "  ", (line, start, text)


def _cells_at(line: str, start: int) -> str:
    """Return the two cells before a column."""
    found, place = "", 0
    for character in line + " " * (start + 1):
        if place in (start - 2, start - 1):
            found += character
        place += cell_len(character)
        if place >= start:
            break
    return found

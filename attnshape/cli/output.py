"""Output of the command line: data to standard output or a file, errors to standard error."""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from attnshape.errors import AttnshapeError
from attnshape.reporters.escaping import visible
from attnshape.reporters.registry import find_renderer
from attnshape.reporters.reporter import Screen, TraceRenderer
from attnshape.runtime.capture import data_stream
from attnshape.runtime.files import write_atomically

if TYPE_CHECKING:
    from attnshape.model.trace import Trace
    from attnshape.reporters.trace_view import ViewOptions

_NARROWEST, _DEFAULT_WIDTH = 40, 100
_STANDARD_OUTPUT = ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")


@dataclass(frozen=True)
class TraceOutput:
    """How to render a trace, what to show of it, and the file to write; None for standard output."""

    renderer: TraceRenderer
    options: ViewOptions
    file: Path | None

    @staticmethod
    def parse(
        format_: str, file: Path | None, columns: str | None, match: str | None, depth: int | None, explain: bool
    ) -> TraceOutput:
        """Return the output that the flags describe, checked before any work is done for it.

        Raises AttnshapeError if a name is unknown, the format can't select, or the file can't be written.
        """
        from attnshape.reporters.columns import DEFAULT, parse_columns
        from attnshape.reporters.trace_view import ViewOptions

        check_writable(file)
        if depth is not None and depth < 0:
            raise AttnshapeError(f"--depth is {depth}, expected 0 or more", "for example --depth 1")
        options = ViewOptions(parse_columns(columns) if columns is not None else DEFAULT, match, depth, explain)
        renderer = find_renderer(resolve_format(format_, file), "trace", selects=options != ViewOptions())
        return TraceOutput(renderer, options, file)

    def render(self, trace: Trace) -> str:
        """Return the trace as text."""
        return self.renderer(trace, self.options, screen_for(self.file))


def resolve_format(name: str, output: Path | None, on_terminal: str = "table") -> str:
    """Return the name of a format; `auto` is `on_terminal` on a terminal, Markdown in a pipe or a file."""
    if name != "auto":
        return name
    return on_terminal if output is None and data_stream().isatty() else "markdown"


def screen_for(output: Path | None) -> Screen:
    """Return the width of the terminal, and whether text for that output should have colours."""
    return Screen(terminal_width(), use_color(output))


def terminal_width() -> int:
    """Return the number of columns of the terminal."""
    typed = os.environ.get("COLUMNS", "")
    columns = int(typed) if typed.isdecimal() else 0
    if not columns:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            columns = os.get_terminal_size(data_stream().fileno()).columns
    return max(columns or _DEFAULT_WIDTH, _NARROWEST)


def use_color(output: Path | None) -> bool:
    """Return whether text for that output should have colours."""
    return output is None and data_stream().isatty() and not os.environ.get("NO_COLOR")


def check_writable(output: Path | None) -> None:
    """Raise AttnshapeError if the file can't be written, before any work is done for it."""
    if output is None:
        return
    try:
        if output.is_dir():
            raise AttnshapeError(
                f"--output {output} is a folder, expected a file", f"write to a file in it: {output}/trace.json"
            )
        parent = output.parent
        if not parent.is_dir():
            raise AttnshapeError(f"--output {output}: there is no folder {parent}", f"make it first: mkdir -p {parent}")
        if not os.access(output if output.exists() else parent, os.W_OK):
            raise AttnshapeError(f"--output {output} can't be written: permission denied", "choose another path")
    except (OSError, ValueError) as error:
        raise AttnshapeError(
            f"--output {str(output)[:80]!r} can't be written: {error}", "choose another path"
        ) from None


def write(text: str, output: Path | None) -> None:
    """Write text to a file, or to standard output for None; a file is replaced atomically."""
    write_bytes(text.encode(errors="backslashreplace"), output)


def write_bytes(data: bytes, output: Path | None) -> None:
    """Write data as `write` does text."""
    if output is None or str(output) in _STANDARD_OUTPUT:
        _write_standard_output(data)
        return
    try:
        # a device or a pipe can't be replaced; whatever is in /dev counts as one
        if output.absolute().is_relative_to("/dev") or (output.exists() and not output.is_file()):
            output.write_bytes(data)
        else:
            write_atomically(output, data)
    except OSError as error:
        raise AttnshapeError(f"--output {output} can't be written: {error.strerror}", "choose another path") from None


def _write_standard_output(data: bytes) -> None:
    stream = data_stream()
    try:
        stream.buffer.write(data)
        stream.flush()
    except OSError as error:
        # the interpreter flushes once more when it exits, and must not complain then
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        stream.flush()
        if not isinstance(error, BrokenPipeError):  # a reader that has gone, as in `attnshape … | head`, is no error
            raise AttnshapeError(
                f"standard output can't be written: {error.strerror}", "write to a file: --output FILE"
            ) from None


def print_error(error: AttnshapeError) -> None:
    """Print an error on standard error, with its hint on the next line."""
    print(f"error: {visible(error.message)}", file=sys.stderr)  # noqa: T201 - the one place that prints errors
    if error.hint:
        print(f"hint: {visible(error.hint)}", file=sys.stderr)  # noqa: T201

"""Output of the command line: data to standard output or a file, errors to standard error."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from attnshape.errors import AttnshapeError, format_exception
from attnshape.options.pyproject import FILE
from attnshape.reporters.escaping import visible
from attnshape.reporters.registry import find_renderer
from attnshape.reporters.reporter import Screen, TraceRenderer
from attnshape.runtime.capture import data_stream
from attnshape.runtime.files import check_replaceable, files_read, is_same_as_any, watch_files_read, write_atomically
from attnshape.runtime.worker import ERRORS, is_supervised, send

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
        format_: str,
        file: Path | None,
        columns: str | None,
        match: str | None,
        depth: int | None,
        explain: bool,
        picture: bool,
    ) -> TraceOutput:
        """Return the output that the flags describe, checked before any work is done for it.

        Raises AttnshapeError if a name is unknown, the format can't select, or the file can't be written.
        """
        from attnshape.reporters.columns import parse_columns
        from attnshape.reporters.trace_view import ViewOptions

        check_writable(file)
        if depth is not None and depth < 0:
            raise AttnshapeError(f"--depth is {depth}, expected 0 or more", "for example --depth 1")
        options = ViewOptions(parse_columns(columns) if columns is not None else None, match, depth, explain)
        selects = options != ViewOptions()
        renderer = find_renderer(resolve_format(format_, file), "trace", selects=selects, picture=picture)
        return TraceOutput(renderer, replace(options, picture=picture), file)

    @property
    def selects(self) -> bool:
        """Whether a part of a trace was chosen."""
        return replace(self.options, picture=False) != type(self.options)()

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


def check_writable(output: Path | None, sources: Iterable[Path] = ()) -> None:
    """Raise AttnshapeError if the file can't or mustn't be written, before any work is done for it.

    Args:
        output: The file of `--output`.
        sources: Files that the command will read.
    """
    if output is None:
        return
    try:
        if output.is_dir():
            raise AttnshapeError(
                f"--output {output} is a folder, expected a file", f"write to a file in it: {output}/trace.json"
            )
        destination = Path(os.path.realpath(output))
        if destination.is_symlink():
            raise AttnshapeError(
                f"--output {output} is a link that leads back to itself", f"remove it: rm {shlex.quote(str(output))}"
            )
        parent = destination.parent if output.is_symlink() else output.parent
        if not parent.is_dir():
            raise AttnshapeError(f"--output {output}: there is no folder {parent}", f"make it first: mkdir -p {parent}")
        if not _is_device(destination):
            check_replaceable(destination)
        elif not os.access(destination, os.W_OK):
            raise PermissionError("permission denied")
    except (OSError, ValueError) as error:
        raise AttnshapeError(
            f"--output {str(output)[:80]!r} can't be written: {error}", "choose another path"
        ) from None
    watch_files_read()
    refuse_input(output, [*sources, Path(FILE)])


def refuse_input(output: Path, sources: Iterable[Path] = ()) -> None:
    """Raise AttnshapeError if writing a file would overwrite Python source, or something that was or will be read."""
    with contextlib.suppress(OSError, ValueError):
        if not output.is_file():
            return
        is_source = output.suffix in _PYTHON
        if is_source or is_same_as_any(output, [*sources, *files_read()]):
            what = "Python source" if is_source else "an input of this command"
            raise AttnshapeError(f"--output {output} is {what}, and would be overwritten", "choose another path")


_PYTHON = (".py", ".pyi", ".pyx", ".ipynb")


def remove_output(output: Path) -> None:
    """Remove a file that an earlier command wrote. Raises AttnshapeError if it can't or mustn't be removed."""
    refuse_input(output)
    try:
        output.unlink(missing_ok=True)
    except OSError as error:
        raise AttnshapeError(f"{output} can't be removed: {error.strerror}", "remove it yourself") from None


def write(text: str, output: Path | None) -> None:
    """Write text to a file, or to standard output for None; a file is replaced atomically."""
    write_bytes(text.encode(errors="backslashreplace"), output)


def write_bytes(data: bytes, output: Path | None) -> None:
    """Write data as `write` does text."""
    if output is None or str(output) in _STANDARD_OUTPUT:
        _write_standard_output(data)
        return
    refuse_input(output)
    try:
        if _is_device(output):
            output.write_bytes(data)
        else:
            write_atomically(output, data)
    except OSError as error:
        raise AttnshapeError(f"--output {output} can't be written: {error.strerror}", "choose another path") from None


def _is_device(output: Path) -> bool:
    """Return whether a file is a device or a pipe, which can't be replaced; whatever is in /dev counts as one."""
    return output.absolute().is_relative_to("/dev") or (output.exists() and not output.is_file())


def _write_standard_output(data: bytes) -> None:
    stream = data_stream()
    stream.flush()
    stream.buffer.write(data)
    stream.flush()


def print_error(error: AttnshapeError) -> None:
    """Print an error on standard error, with its hint on the next line."""
    print_message(f"error: {error.message}")
    if error.hint:
        print_message(f"hint: {error.hint}")


def print_message(text: str) -> None:
    """Print a line on standard error, in its place among what is written to standard output."""
    line = f"{visible(text)}\n".encode(errors="backslashreplace")
    if is_supervised():
        send(ERRORS, line)
    elif sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):  # nobody can be told that nothing can be told
            sys.stderr.write(line.decode())
            sys.stderr.flush()


def internal_error(error: BaseException) -> AttnshapeError:
    """Return the error to report for an exception that this package doesn't expect.

    With ATTNSHAPE_DEBUG=1 in the environment, print its traceback to standard error too.
    """
    if os.environ.get("ATTNSHAPE_DEBUG", "0") != "0":
        import traceback

        traceback.print_exception(error)
    if isinstance(error, MemoryError):
        return AttnshapeError("there is not enough memory", "choose smaller sizes, or --device meta")
    place, package = "", __name__.partition(".")[0]
    level, codes = error.__traceback__, set()
    while level is not None:
        codes.add(level.tb_frame.f_code)
        name, inside, module = level.tb_frame.f_globals.get("__name__", "").partition(".")
        if inside and name == package:
            place = f" in {module}.{level.tb_frame.f_code.co_name}, line {level.tb_lineno}"
        level = level.tb_next
    if "torch" in sys.modules:
        from attnshape.runtime.isolation import replaced_functions

        # libraries replace some for good reasons: what can't be called, or raised this, is to blame
        replaced = replaced_functions().items()
        blamed = [name for name, by in replaced if not callable(by) or getattr(by, "__code__", None) in codes]
        if blamed:
            return AttnshapeError(
                f"the code has replaced {', '.join(blamed)}, which attnshape needs{place}: {format_exception(error)}",
                "replace it only where the code needs it, and put it back",
            )
    if isinstance(error, OSError):
        return AttnshapeError(f"the operating system refuses something{place}: {format_exception(error)}", _RESOURCES)
    return AttnshapeError(
        f"internal error{place}: {format_exception(error)}",
        "run it again with ATTNSHAPE_DEBUG=1 in the environment, and report what it prints",
    )


_RESOURCES = "see whether the limits of this process (ulimit -a), the disk and the permissions suffice"

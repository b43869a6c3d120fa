"""Where text goes: standard output or a file, in the format that was asked for."""

from __future__ import annotations

import os
from pathlib import Path

from attnshape.ending import removed_if_unfinished
from attnshape.errors import AttnshapeError
from attnshape.tracing.output import data_stream

_NARROWEST, _USUAL = 40, 100
_STANDARD = ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")


def resolve_format(name: str, output: Path | None, on_terminal: str = "table") -> str:
    """Return the format's name; `auto` is `on_terminal` on a terminal, Markdown in a pipe or a file."""
    if name != "auto":
        return name
    return on_terminal if output is None and data_stream().isatty() else "markdown"


def width() -> int:
    """Return the columns of the terminal."""
    return max(_columns(), _NARROWEST)


def _columns() -> int:
    told = os.environ.get("COLUMNS", "")
    if told.isdecimal() and int(told):
        return int(told)
    try:
        return os.get_terminal_size(data_stream().fileno()).columns or _USUAL
    except (OSError, ValueError, AttributeError):
        return _USUAL


def use_color(output: Path | None) -> bool:
    """Say whether colour is wanted."""
    return output is None and data_stream().isatty() and not os.environ.get("NO_COLOR")


def check_writable(output: Path | None) -> None:
    """Raise AttnshapeError where the file can't be written, before any work is done for it."""
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
    """Write the text whole; a file is replaced at once, so that it is never half written."""
    write_bytes(text.encode(errors="backslashreplace"), output)


def write_bytes(data: bytes, output: Path | None) -> None:
    """Write data as `write` does text."""
    if output is None or str(output) in _STANDARD:
        _write_standard(data)
        return
    file = Path(os.path.realpath(output))  # what a link leads to is replaced, not the link
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        if _is_device(output):
            output.write_bytes(data)
        else:
            with removed_if_unfinished(str(beside)):
                beside.write_bytes(data)
                beside.replace(file)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise AttnshapeError(f"--output {output} can't be written: {error.strerror}", "choose another path") from None
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def _is_device(output: Path) -> bool:
    """Say whether it is a device or a pipe, which can't be replaced; /dev/stdout is even where it leads to a file."""
    return output.absolute().is_relative_to("/dev") or (output.exists() and not output.is_file())


def _write_standard(data: bytes) -> None:
    stream = data_stream()
    try:
        stream.buffer.write(data)
        stream.flush()
    except OSError as error:
        # the interpreter flushes once more at its end, and must not complain then
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        stream.flush()
        if not isinstance(error, BrokenPipeError):  # where the reader has gone, as in `attnshape … | head`, all is well
            raise AttnshapeError(
                f"standard output can't be written: {error.strerror}", "write to a file: --output FILE"
            ) from None

"""Where text goes: standard output or a file, in the format that was asked for."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from attnshape.errors import AttnshapeError

_NARROWEST = 40


def resolve_format(name: str, output: Path | None) -> str:
    """Return the format's name; `auto` is a table on a terminal, Markdown in a pipe or a file."""
    if name != "auto":
        return name
    return "table" if output is None and sys.stdout.isatty() else "markdown"


def width() -> int:
    """Return the columns of the terminal."""
    return max(shutil.get_terminal_size((100, 24)).columns, _NARROWEST)


def use_color(output: Path | None) -> bool:
    """Say whether colour is wanted."""
    return output is None and sys.stdout.isatty() and not os.environ.get("NO_COLOR")


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
    if output is None:
        sys.stdout.buffer.write(text.encode(errors="backslashreplace"))
        sys.stdout.flush()
        return
    beside = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        if not output.exists() or output.is_file():
            beside.write_text(text, encoding="utf-8", errors="backslashreplace")
            beside.replace(output)
        else:  # a device or a pipe, which can't be replaced
            output.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise AttnshapeError(f"--output {output} can't be written: {error.strerror}", "choose another path") from None
    except BaseException:
        beside.unlink(missing_ok=True)
        raise

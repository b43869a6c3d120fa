"""Runs a command line and turns what goes wrong into one paragraph, a hint and an exit status."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import typer
import typer.main

from attnshape.cli.app import app
from attnshape.cli.complaining import complain
from attnshape.errors import AttnshapeError, ExitStatus

# the base of every complaint about a command line; typer exports only its subclass
_UsageError: type[Exception] = typer.BadParameter.__bases__[0]


def run(arguments: Sequence[str]) -> int:
    """Return the exit status of a command line."""
    _open_what_is_closed()
    command = typer.main.get_command(app)
    try:
        status = command.main(list(arguments), prog_name="attnshape", standalone_mode=False)
        return int(status or 0)
    except AttnshapeError as error:
        complain(error)
        return ExitStatus.CANNOT
    except _UsageError as error:
        context = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "attnshape"
        message = getattr(error, "format_message", lambda: str(error))()
        complain(AttnshapeError(message or str(error), f"{path} --help lists what it takes"))
        return ExitStatus.CANNOT
    except typer.Abort:
        return ExitStatus.INTERRUPTED


def _open_what_is_closed() -> None:
    """Where a process starts with a stream closed, as with `>&-`, Python has None for it."""
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - it stays open
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - it stays open

"""Runs a command line and turns what goes wrong into one paragraph, a hint and an exit status."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import typer
import typer.main

from attnshape.cli.app import app
from attnshape.errors import AttnshapeError, ExitStatus
from attnshape.render.text import visible

# the base of every complaint about a command line; typer exports only its subclass
_UsageError: type[Exception] = typer.BadParameter.__bases__[0]


def run(arguments: Sequence[str]) -> int:
    """Return the exit status of a command line."""
    command = typer.main.get_command(app)
    try:
        status = command.main(list(arguments), prog_name="attnshape", standalone_mode=False)
        return int(status or 0)
    except AttnshapeError as error:
        return _complain(error.message, error.hint)
    except _UsageError as error:
        context = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "attnshape"
        message = getattr(error, "format_message", lambda: str(error))()
        return _complain(message or str(error), f"{path} --help lists what it takes")
    except typer.Abort:
        return ExitStatus.INTERRUPTED
    except BrokenPipeError:
        # the reader has gone, as in `attnshape … | head`; the interpreter must not complain when it flushes
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitStatus.FINE


def _complain(message: str, hint: str | None) -> int:
    print(f"error: {visible(message)}", file=sys.stderr)  # noqa: T201 - the one place that writes errors
    if hint:
        print(f"hint: {visible(hint)}", file=sys.stderr)  # noqa: T201
    return ExitStatus.CANNOT

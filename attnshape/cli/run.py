"""`attnshape run`: runs a program, and reports the attention that it constructs and calls."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from attnshape.cli.flags import running_option
from attnshape.cli.output import print_message
from attnshape.errors import AttnshapeError
from attnshape.programs.launch import PLAN, report_command
from attnshape.runtime.processes import ROOT
from attnshape.runtime.replacement import replace_process, start_sentinel

SETTINGS = {"allow_interspersed_args": False}
"""What follows the program's name belongs to the program."""

_OWN = ("--check", "--save")


def run(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SCRIPT [ARGS]...",
            help="A Python file, or a command written in Python, such as pytest; its arguments.",
        ),
    ] = None,
    module: Annotated[
        str | None, running_option("-m", metavar="MODULE", help="Run a module, as python -m does; ARGS follow.")
    ] = None,
    check: Annotated[
        bool, running_option("--check", help="Check each attention afterwards. The exit status stays the program's.")
    ] = False,
    save: Annotated[
        bool, running_option("--save", help="Add the attentions that are verified to pyproject.toml, as targets.")
    ] = False,
) -> None:
    """Run a program as it is, and report the attention that it calls at its end."""
    arguments = words or []
    script = None
    if module is None:
        if not arguments:
            raise AttnshapeError("there is no program to run", "name one: attnshape run train.py")
        script = _script(arguments[0])
        if own := [word for word in arguments[1:] if word in _OWN]:
            print_message(f"note: {own[0]} is the program's, since it comes after {arguments[0]}; ours come before it")
    _become(
        {
            "script": script,
            "module": module,
            "argv": [script, *arguments[1:]] if script is not None else ["-m", *arguments],
            "typed": [script, *arguments[1:]] if script is not None else ["-m", module, *arguments],
            "check": check,
            "save": save,
            "root": ROOT,
        }
    )


def separated(arguments: Sequence[str]) -> list[str]:
    """Return a command line in which the arguments after `run -m MODULE` are separated from the options by `--`.

    >>> separated(["run", "--check", "-m", "train", "--epochs", "3"])
    ['run', '--check', '-m', 'train', '--', '--epochs', '3']
    """
    words = list(arguments)
    if words[:1] != ["run"]:
        return words
    for place, word in enumerate(words[1:], 1):
        if not word.startswith("-") or word == "--":
            break
        if word.startswith("-m"):
            after = place + (2 if word == "-m" else 1)
            return [*words[:after], "--", *words[after:]] if len(words) >= after else words
    return words


def _script(name: str) -> str:
    """Return the file of a program. Raises AttnshapeError if there is none that is Python."""
    path = Path(name)
    try:
        is_file = path.is_file()
    except (OSError, ValueError):
        is_file = False
    found = name if is_file else shutil.which(name)
    if found is None:
        raise AttnshapeError(
            f"there is no program {name[:80]!r}", "name a Python file, or a module: attnshape run -m MODULE"
        )
    try:
        ast.parse(Path(found).read_bytes())
    except (OSError, SyntaxError, ValueError) as error:
        if is_file and isinstance(error, SyntaxError) and path.suffix == ".py":
            return found  # Python itself says what is wrong
        raise AttnshapeError(
            f"{name[:80]} isn't a Python program", "name a Python file, or a module: attnshape run -m MODULE"
        ) from None
    return found


def _become(plan: dict[str, Any]) -> NoReturn:
    """Replace this process by a new Python that runs the program; the plan is in its environment until it starts."""
    plan["folder"] = tempfile.mkdtemp(prefix="attnshape-run-")
    pipe = start_sentinel(partial(_report_if_killed, plan))
    if pipe is not None:
        plan["pipe"] = pipe
    environment = {**os.environ, PLAN: json.dumps(plan)}
    launcher = str(Path(__file__).parents[1] / "programs" / "__main__.py")
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    replace_process([sys.executable, *flags, launcher], environment)


def _report_if_killed(plan: dict[str, Any]) -> None:
    """Report what the program left, if it ended without doing so itself."""
    if Path(plan["folder"]).is_dir():
        replace_process(*report_command(plan, os.environ))

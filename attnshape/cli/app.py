"""Assembles the commands, and reports an error as one paragraph, a hint and an exit status."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Annotated, Any

import typer
import typer.main

from attnshape import __version__
from attnshape.cli.annotate import annotate
from attnshape.cli.catalog import catalog
from attnshape.cli.check import check
from attnshape.cli.diff import diff
from attnshape.cli.explain import explain
from attnshape.cli.glossary import glossary
from attnshape.cli.help import Verb, Verbs
from attnshape.cli.output import internal_error, print_error
from attnshape.cli.rule import rule
from attnshape.cli.run import SETTINGS, separated
from attnshape.cli.run import run as run_program
from attnshape.cli.show import show
from attnshape.cli.targets import targets
from attnshape.cli.trace import trace
from attnshape.errors import AttnshapeError, ExitStatus, did_you_mean
from attnshape.options.flags import flag_syntax
from attnshape.options.spec import suggest_dtype

app = typer.Typer(
    name="attnshape",
    cls=Verbs,
    help="Show, verify and document the shapes inside attention code.",
    epilog="Exit status: 0 fine, 1 the analysis found something, 2 the request can't be carried out, or its answer is "
    "incomplete. That of run is the program's.",
    invoke_without_command=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
for verb in (trace, check, explain, annotate, diff, targets, rule, show, catalog, glossary):
    app.command(cls=Verb)(verb)
app.command("run", cls=Verb, context_settings=SETTINGS)(run_program)

UsageError: type[Exception] = typer.BadParameter.__bases__[0]
"""The base of every complaint about a command line; typer exports only its subclass."""
_EXAMPLES = {"--seed": "1", "--dropout": "0.1", "--mask-value": "-10000", "--time-limit": "60", "--depth": "1"}
_LONGEST = 160


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"attnshape {__version__}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Show, verify and document the shapes inside attention code."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(ExitStatus.CANNOT)


def run(arguments: Sequence[str]) -> int:
    """Return the exit status of a command line."""
    command = typer.main.get_command(app)
    try:
        status = command.main(separated(arguments), prog_name="attnshape", standalone_mode=False)
        return int(status or 0)
    except AttnshapeError as error:
        print_error(error.written_in(flag_syntax))
        return ExitStatus.CANNOT
    except UsageError as error:
        print_error(usage_error(error, arguments))
        return ExitStatus.CANNOT
    except typer.Abort:
        return ExitStatus.INTERRUPTED
    except BaseException as error:  # noqa: BLE001 - nothing else may end in a traceback, nor in status 1
        print_error(internal_error(error))
        return ExitStatus.CANNOT


def usage_error(error: Any, arguments: Sequence[str]) -> AttnshapeError:
    """Return typer's message with what was typed, and a hint: a choice, an example, or where to find help."""
    context, parameter = getattr(error, "ctx", None), getattr(error, "param", None)
    message = error.format_message() or str(error)
    hint = f"{context.command_path if context is not None else 'attnshape'} --help lists what it takes"
    flag = next(iter(getattr(parameter, "opts", ())), "")
    typed = [after for word, after in itertools.pairwise(arguments) if word == flag]
    typed += [word.partition("=")[2] for word in arguments if word.startswith(f"{flag}=")]
    if isinstance(error, typer.BadParameter) and flag.startswith("--") and typed:
        choices = re.findall(r"'(\w+)'", error.message.partition(" is not one of ")[2])
        problem = f", expected {', '.join(choices)}" if choices else f": {error.message[:_LONGEST]}"
        message = f"{flag} is {typed[-1][:40]!r}{problem}"
        hint = f"for example {flag} {_EXAMPLES.get(flag, '4')}"
        if choices:
            hint = suggest_dtype(typed[-1]) if flag == "--dtype" else did_you_mean(typed[-1], choices)
    return AttnshapeError(message, hint)

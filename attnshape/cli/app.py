"""The verbs, put together."""

from __future__ import annotations

from typing import Annotated

import typer

from attnshape import __version__
from attnshape.cli.annotate import annotate
from attnshape.cli.catalog import catalog
from attnshape.cli.check import check
from attnshape.cli.diff import diff
from attnshape.cli.glossary import glossary
from attnshape.cli.rule import rule
from attnshape.cli.show import show
from attnshape.cli.trace import trace
from attnshape.errors import ExitStatus

app = typer.Typer(
    name="attnshape",
    help="Show, prove and document the shapes inside attention code.",
    epilog="Exit status: 0 fine, 1 the analysis found something, 2 the request can't be carried out.",
    invoke_without_command=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
for verb in (trace, check, annotate, diff, rule, show, catalog, glossary):
    app.command()(verb)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"attnshape {__version__}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Show, prove and document the shapes inside attention code."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(ExitStatus.CANNOT)

"""`attnshape targets`: lists the attention in files and folders, without importing them."""

from __future__ import annotations

from typing import Annotated

import typer

from attnshape.cli.flags import Output, format_option, typed_command
from attnshape.cli.output import check_writable, resolve_format, screen_for, write
from attnshape.errors import ExitStatus
from attnshape.reporters.registry import find_renderer


def targets(
    paths: Annotated[
        list[str] | None, typer.Argument(metavar="PATH", help="Python files and folders; this folder by default.")
    ] = None,
    format_: Annotated[str, format_option("targets")] = "auto",
    output: Output = None,
) -> None:
    """List the attention in files and folders, which are read and not run."""
    check_writable(output)
    render = find_renderer(resolve_format(format_, output, "text"), "targets")
    from attnshape.discovery.files import find_targets  # other verbs don't need it

    found = find_targets(paths or ["."], typed_command())
    write(render(found, screen_for(output)), output)
    if found.unread:
        raise typer.Exit(ExitStatus.CANNOT)

"""Parses command lines into target specs and run options."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

import typer
import typer.main
from msgspec.structs import replace

from attnshape.cli.flags import takes_target
from attnshape.options.pyproject import resolve_name
from attnshape.options.spec import RunOptions, TargetSpec, parse_expect


def spec_of(*words: str) -> tuple[TargetSpec, RunOptions]:
    """Return the spec and the run options of a command line; a single string is split as a shell would."""
    arguments = shlex.split(words[0]) if len(words) == 1 else list(words)
    found: list[tuple[TargetSpec, RunOptions]] = []

    @takes_target
    def verb(typed: TargetSpec, run: Mapping[str, object], expect: list[str] | None = None) -> None:
        spec = replace(typed, expect=parse_expect(expect or ()))
        found.append(resolve_name(spec, run, "attnshape trace"))

    app = typer.Typer()
    app.command()(verb)
    typer.main.get_command(app).main(arguments, standalone_mode=False)
    return found[0]

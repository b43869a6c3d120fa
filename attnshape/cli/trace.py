"""`attnshape trace`: every intermediate tensor, as a table; with `--expect`, a verdict."""

from __future__ import annotations

import gc
import shlex
import sys
from typing import Annotated

import typer

from attnshape.cli.drawing import Drawing
from attnshape.cli.options import Columns, Depth, Explain, Format, Match, Output
from attnshape.cli.progress import Progress
from attnshape.cli.request import Flags, combine
from attnshape.cli.target_options import takes_target
from attnshape.errors import ExitStatus
from attnshape.tracing.output import to_standard_error


@takes_target
def trace(
    target: str | None,
    flags: Flags,
    expect: Annotated[
        list[str] | None,
        typer.Option(metavar="SPEC", help='Verify a variable or the output: "scores: B H Lq Lk". Repeat.'),
    ] = None,
    format_: Format = "auto",
    output: Output = None,
    columns: Columns = None,
    match: Match = None,
    depth: Depth = None,
    explain: Explain = False,
) -> None:
    """Every intermediate tensor of attention code, as a table; with --expect, a verdict."""
    drawing = Drawing.prepare(format_, output, columns, match, depth, explain)
    asked_for = Flags({**flags.values, "expect": expect or []})
    request, settings = combine(target, asked_for, shlex.join(["attnshape", *sys.argv[1:]]))
    # torch is imported only here, once everything that can be wrong without it has been looked at
    from attnshape.pipeline import trace_request
    from attnshape.target.device import require_device

    gc.freeze()
    gc.enable()
    require_device(settings.device)
    # until the table is written, since threads of the traced code may print meanwhile
    with to_standard_error():
        with Progress() as progress:
            made = trace_request(request, settings, doing=progress)
        drawing.draw(made)
    if made.found_something:
        raise typer.Exit(ExitStatus.FOUND)

"""`attnshape show`: a saved trace again, in any format."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attnshape.cli.flags import Columns, Depth, Explain, Match, Output, Picture, TraceFormat
from attnshape.cli.output import TraceOutput, check_writable, write
from attnshape.model.trace import read_trace


def show(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A trace saved with --format json.")],
    format_: TraceFormat = "auto",
    output: Output = None,
    columns: Columns = None,
    match: Match = None,
    depth: Depth = None,
    explain: Explain = False,
    picture: Picture = False,
) -> None:
    """Show a saved trace again, in any format."""
    check_writable(output, [file])
    trace_output = TraceOutput.parse(format_, output, columns, match, depth, explain, picture)
    write(trace_output.render(read_trace(file)), output)

"""`attnshape show`: a saved trace again, in any format."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attnshape.cli.drawing import Drawing
from attnshape.cli.options import Columns, Depth, Explain, Format, Match, Output
from attnshape.schema import read


def show(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A trace saved with --format json.")],
    format_: Format = "auto",
    output: Output = None,
    columns: Columns = None,
    match: Match = None,
    depth: Depth = None,
    explain: Explain = False,
) -> None:
    """Show a saved trace again, in any format."""
    drawing = Drawing.prepare(format_, output, columns, match, depth, explain)
    drawing.draw(read(file))

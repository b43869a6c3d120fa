"""`attnshape trace`: every intermediate tensor, as a table; with `--expect`, a verdict."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnshape.cli.drawing import Drawing
from attnshape.cli.jobs import Job, Jobs, jobs_of
from attnshape.cli.options import All, Columns, Depth, Explain, Format, Match, OutputOrFolder
from attnshape.cli.progress import Progress
from attnshape.cli.request import Flags
from attnshape.cli.target_options import takes_target
from attnshape.errors import ExitStatus
from attnshape.model import Trace
from attnshape.tracing.output import to_standard_error

if TYPE_CHECKING:
    from attnshape.cli.several import Doing


@takes_target
def trace(
    target: str | None,
    flags: Flags,
    every: All = False,
    expect: Annotated[
        list[str] | None,
        typer.Option(metavar="SPEC", help='Verify a variable or the output: "scores: B H Lq Lk". Repeat.'),
    ] = None,
    format_: Format = "auto",
    output: OutputOrFolder = None,
    columns: Columns = None,
    match: Match = None,
    depth: Depth = None,
    explain: Explain = False,
) -> None:
    """Every intermediate tensor of attention code, as a table; with --expect, a verdict."""
    jobs = jobs_of("trace", target, Flags({**flags.values, "expect": expect or []}), every)
    # of one trace only what ends as a folder does means one: a folder that is there is taken for a mistake
    several = output is not None and (jobs.together or output.endswith("/"))
    folder = _folder(output, format_) if output is not None and several else None
    file = Path(output) if output is not None and folder is None else None
    drawing = Drawing.prepare(format_, file, columns, match, depth, explain)
    # torch is imported only here, once everything that can be wrong without it has been looked at
    from attnshape.pipeline import trace_request
    from attnshape.target.device import require_device

    def run(job: Job, doing: Doing) -> Trace:
        require_device(job.settings.device)
        return trace_request(job.request, job.settings, doing=doing)

    gc.freeze()
    gc.enable()
    # until the table is written, since threads of the traced code may print meanwhile
    with to_standard_error():
        if folder is not None or jobs.together:
            status = _together(jobs, run, drawing, folder, file)
        else:
            with Progress() as progress:
                made = run(jobs.only(), progress)
            drawing.draw(made)
            status = ExitStatus.FOUND if made.found_something else ExitStatus.FINE
    if status:
        raise typer.Exit(status)


# what is for several traces is imported by what makes them: the default trace does without


def _folder(output: str, format_: str) -> Path | None:
    from attnshape.cli.folder import folder_meant

    return folder_meant(output, format_)


def _together(
    jobs: Jobs, run: Callable[[Job, Doing], Trace], drawing: Drawing, folder: Path | None, file: Path | None
) -> ExitStatus:
    from attnshape.cli.folder import file_names, write_files
    from attnshape.cli.several import carried_out, write_together
    from attnshape.render.several_formats import TRACES

    outcomes = carried_out(jobs.each, run)
    if folder is not None:
        return write_files(outcomes, file_names(jobs.each), folder)
    return write_together(outcomes, TRACES[drawing.name], drawing.drawn, file)

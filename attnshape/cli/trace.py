"""`attnshape trace`: every intermediate tensor, as a table; with `--expect`, a verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import typer
from msgspec.structs import replace

from attnshape.cli.flags import All, Columns, Depth, Explain, Match, OutputOrFolder, TraceFormat, takes_target
from attnshape.cli.jobs import Job, jobs_of, jobs_of_all, run_and_write
from attnshape.cli.output import TraceOutput, resolve_format
from attnshape.errors import ExitStatus
from attnshape.model.trace import Trace
from attnshape.options.limits import MEASURING_SECONDS
from attnshape.options.spec import TargetSpec, parse_expect
from attnshape.reporters.registry import find_renderer


@takes_target
def trace(
    typed: TargetSpec,
    run: Mapping[str, object],
    every: All = False,
    expect: Annotated[
        list[str] | None,
        typer.Option(metavar="SPEC", help='Verify a variable or the output: "scores: B H Lq Lk". Repeat.'),
    ] = None,
    format_: TraceFormat = "auto",
    output: OutputOrFolder = None,
    columns: Columns = None,
    match: Match = None,
    depth: Depth = None,
    explain: Explain = False,
    behaviour: Annotated[
        bool,
        typer.Option("--behaviour", help="Measure who sees whom, the scale and the like too, for attnshape diff."),
    ] = False,
) -> None:
    """Show every intermediate tensor as a table; with --expect, verify signatures."""
    typed = replace(typed, expect=parse_expect(expect or ()))
    jobs = jobs_of_all("trace", typed, run) if every else jobs_of("trace", typed, run)
    together = every or len(jobs) > 1
    folder = None
    # for a single trace only a path that ends in a slash means a folder: an existing folder is taken for a mistake
    if output is not None and (together or output.endswith("/")):
        from attnshape.cli.batch import output_folder  # the default trace does without

        folder = output_folder(output, format_)
    file = Path(output) if output is not None and folder is None else None
    trace_output = TraceOutput.parse(format_, file, columns, match, depth, explain)
    batch_reporter = find_renderer(resolve_format(format_, file), "traces") if together else None
    # torch is imported only here, after everything that can be validated without it
    from attnshape.pipelines.trace import trace_request

    def trace_job(job: Job, progress: Callable[[str], None]) -> Trace:
        if behaviour:
            from attnshape.pipelines.behaviour import trace_with_behaviour  # a default trace does without

            return trace_with_behaviour(job.spec, job.options, MEASURING_SECONDS, progress=progress)
        return trace_request(job.spec, job.options, progress=progress)

    def write_all() -> ExitStatus:
        from attnshape.cli.batch import file_names, run_jobs, write_batch, write_folder

        items = run_jobs(jobs, trace_job)
        if folder is not None:
            return write_folder(items, file_names(jobs), folder)
        assert batch_reporter is not None
        return write_batch(items, batch_reporter, trace_output.render, file)

    is_batch = together or folder is not None
    run_and_write(jobs, trace_job, trace_output.render, file, write_all if is_batch else None)

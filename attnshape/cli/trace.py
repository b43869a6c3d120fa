"""`attnshape trace`: every intermediate tensor, as a table; with `--expect`, a verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

from msgspec.structs import replace

from attnshape.cli.flags import (
    All,
    Columns,
    Depth,
    Explain,
    Match,
    OutputOrFolder,
    Picture,
    TraceFormat,
    running_option,
    takes_target,
)
from attnshape.cli.jobs import Job, jobs_of, jobs_of_all, run_and_write
from attnshape.cli.output import TraceOutput, resolve_format
from attnshape.errors import ExitStatus
from attnshape.model.trace import Trace
from attnshape.options.limits import MEASURING_SECONDS, UNASKED_SECONDS
from attnshape.options.spec import TargetSpec, parse_expect
from attnshape.reporters.registry import REPORTERS, find_renderer
from attnshape.runtime.worker import seconds_until_limit


@takes_target
def trace(
    typed: TargetSpec,
    run: Mapping[str, object],
    every: All = False,
    expect: Annotated[
        list[str] | None,
        running_option(metavar="SPEC", help='Verify a variable or the output: "scores: B H Lq Lk". Repeat.'),
    ] = None,
    format_: TraceFormat = "auto",
    output: OutputOrFolder = None,
    columns: Columns = None,
    match: Match = None,
    depth: Depth = None,
    explain: Explain = False,
    picture: Picture = False,
    cost: Annotated[
        bool,
        running_option("--cost", help="Count what each step computes, moves, copies and saves, with gradients."),
    ] = False,
    behaviour: Annotated[
        bool | None,
        running_option(
            "--behaviour/--no-behaviour",
            help="Measure which keys each query sees, the scale and so on, for attnshape diff. HTML pages show it.",
        ),
    ] = None,
) -> None:
    """Show every intermediate tensor as a table; with --expect, verify signatures."""
    from attnshape.reporters.columns import name_costs

    typed = replace(typed, expect=parse_expect(expect or ()))
    if cost or name_costs(columns or ""):
        run = {**run, "cost": True, "grad": True}
    jobs = jobs_of_all("trace", typed, run) if every else jobs_of("trace", typed, run)
    together = every or len(jobs) > 1
    folder = None
    # for a single trace only a path that ends in a slash means a folder: an existing folder is taken for a mistake
    if output is not None and (together or output.endswith("/")):
        from attnshape.cli.batch import output_folder  # the default trace does without

        folder = output_folder(output, format_)
    file = Path(output) if output is not None and folder is None else None
    trace_output = TraceOutput.parse(format_, file, columns, match, depth, explain, picture)
    name = resolve_format(format_, file)
    batch_reporter = find_renderer(name, "traces", selects=trace_output.selects) if together else None
    # torch is imported only here, after everything that can be validated without it
    from attnshape.pipelines.trace import trace_request

    def trace_job(job: Job, progress: Callable[[str], None]) -> Trace:
        traced = trace_request(job.spec, job.options, progress=progress)
        shows_it = REPORTERS[name].shows_behaviour and traced.failure is None
        if not (shows_it if behaviour is None else behaviour):
            return traced
        from attnshape.pipelines.behaviour import with_behaviour  # a default trace does without

        # a trace that is done is written in any case
        seconds = min(MEASURING_SECONDS if behaviour else UNASKED_SECONDS, seconds_until_limit() / 2)
        return with_behaviour(traced, job.spec, job.options, seconds, progress=progress)

    def write_all() -> ExitStatus:
        from attnshape.cli.batch import file_names, run_jobs, write_batch, write_folder

        items = run_jobs(jobs, trace_job)
        if folder is not None:
            return write_folder(items, file_names(jobs), folder)
        assert batch_reporter is not None
        return write_batch(items, batch_reporter, trace_output.render, file)

    is_batch = together or folder is not None
    run_and_write(jobs, trace_job, trace_output.render, file, write_all if is_batch else None)

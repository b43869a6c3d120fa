"""`attnshape trace`: every intermediate tensor, as a table; with `--expect`, a verdict."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from msgspec.structs import replace

from attnshape.cli.flags import All, Columns, Depth, Explain, Match, OutputOrFolder, TraceFormat, takes_target
from attnshape.cli.jobs import Job, Refused, jobs_of, jobs_of_all
from attnshape.cli.output import TraceOutput, resolve_format
from attnshape.cli.progress import Progress
from attnshape.errors import ExitStatus
from attnshape.model.trace import Trace
from attnshape.options.spec import TargetSpec, parse_expect
from attnshape.reporters.reporter import BatchReporter
from attnshape.runtime.capture import to_standard_error

_Run = Callable[[Job, Callable[[str], None]], Trace]


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
) -> None:
    """Show every intermediate tensor as a table; with --expect, verify signatures."""
    typed = replace(typed, expect=parse_expect(expect or ()))
    jobs = jobs_of_all("trace", typed, run) if every else jobs_of("trace", typed, run)
    together = every or len(jobs) > 1
    # for a single trace only a path that ends in a slash means a folder: an existing folder is taken for a mistake
    may_be_folder = output is not None and (together or output.endswith("/"))
    folder = _output_folder(output, format_) if output is not None and may_be_folder else None
    file = Path(output) if output is not None and folder is None else None
    trace_output = TraceOutput.parse(format_, file, columns, match, depth, explain)
    batch_reporter = _batch_reporter(format_, file) if together else None
    # torch is imported only here, after everything that can be validated without it
    from attnshape.pipelines.trace import trace_request

    def trace_job(job: Job, progress: Callable[[str], None]) -> Trace:
        return trace_request(job.spec, job.options, progress=progress)

    gc.freeze()
    gc.enable()
    # until the table is written, since threads of the traced code may print meanwhile
    with to_standard_error():
        if folder is not None:
            status = _write_folder(jobs, trace_job, folder)
        elif batch_reporter is not None:
            status = _write_batch(jobs, trace_job, batch_reporter, trace_output)
        else:
            assert isinstance(jobs[0], Job)  # only with --all is a target refused later than here
            with Progress() as progress:
                made = trace_job(jobs[0], progress)
            trace_output.write(made)
            status = ExitStatus.FOUND if made.found_something else ExitStatus.FINE
    if status:
        raise typer.Exit(status)


# the imports for batches are made by the functions that need them: the default trace does without


def _output_folder(output: str, format_: str) -> Path | None:
    from attnshape.cli.batch import output_folder

    return output_folder(output, format_)


def _batch_reporter(format_: str, file: Path | None) -> BatchReporter:
    from attnshape.reporters.registry import find_renderer

    return find_renderer(resolve_format(format_, file), "traces")


def _write_folder(jobs: Sequence[Job | Refused], run: _Run, folder: Path) -> ExitStatus:
    from attnshape.cli.batch import file_names, run_jobs, write_folder

    return write_folder(run_jobs(jobs, run), file_names(jobs), folder)


def _write_batch(
    jobs: Sequence[Job | Refused], run: _Run, reporter: BatchReporter, trace_output: TraceOutput
) -> ExitStatus:
    from attnshape.cli.batch import run_jobs, write_batch

    return write_batch(run_jobs(jobs, run), reporter, trace_output.render, trace_output.file)

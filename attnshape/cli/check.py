"""`attnshape check`: mistakes in attention code that leave every shape right."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated

import typer
from msgspec.structs import replace

from attnshape.checks.suppressions import Selection, split_suppressed
from attnshape.cli.flags import All, Output, format_option, takes_target
from attnshape.cli.jobs import Job, jobs_of, jobs_of_all, run_and_write
from attnshape.cli.output import check_writable, resolve_format, screen_for
from attnshape.errors import ExitStatus
from attnshape.model.report import Report
from attnshape.options.claims import parse_claims
from attnshape.options.limits import check_time_limit
from attnshape.options.spec import TargetSpec
from attnshape.reporters.registry import find_renderer
from attnshape.runtime.worker import limit_time, seconds_left


@takes_target
def check(
    typed: TargetSpec,
    run: Mapping[str, object],
    every: All = False,
    claim: Annotated[
        list[str] | None,
        typer.Option(metavar="CLAIM", help="What is meant: causal, window=W, mask=keep, visible=k<=q … Repeat."),
    ] = None,
    select: Annotated[
        list[str] | None, typer.Option(metavar="CODES", help="Count only these codes or families: AS2,AS301. Repeat.")
    ] = None,
    ignore: Annotated[
        list[str] | None, typer.Option(metavar="CODES", help="Not these codes or families: AS204. Repeat.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Count warnings and notices too, not errors alone.")] = False,
    pattern: Annotated[
        bool, typer.Option("--pattern", help="Draw which output positions depend on which input positions.")
    ] = False,
    time_limit: Annotated[float, typer.Option(metavar="SECONDS", help="When to stop looking further.")] = 60.0,
    format_: Annotated[str, format_option("report")] = "auto",
    output: Output = None,
) -> None:
    """Find mistakes that leave every shape right, each with its line, numbers and a hint."""
    check_writable(output)
    name = resolve_format(format_, output, "text")
    render_report = find_renderer(name, "report", draws_patterns=pattern)
    selection = Selection.parse(select or [], ignore or [])
    check_time_limit(time_limit)
    limit_time(time_limit)
    parse_claims(claim or ())
    typed = replace(typed, claims=tuple(claim or ()))
    jobs = jobs_of_all("check", typed, run) if every else jobs_of("check", typed, run)
    batch_reporter = find_renderer(name, "reports") if every or len(jobs) > 1 else None
    # torch is imported only here, after everything that can be validated without it
    from attnshape.pipelines.check import check_request
    from attnshape.pipelines.comments import check_comments

    def check_job(job: Job, progress: Callable[[str], None]) -> Report:
        left = seconds_left(time_limit)
        if selection.only_comments:
            report = check_comments(job.spec, job.options, left, progress=progress)
        else:
            report = check_request(job.spec, job.options, parse_claims(job.spec.claims), left, progress=progress)
        kept, suppressed = split_suppressed(report.findings, selection)
        # whoever names codes wants to know about them, whatever their level
        return replace(
            report,
            findings=kept,
            suppressed=(*report.suppressed, *suppressed),
            strict=strict or bool(select),
        )

    def render(report: Report) -> str:
        return render_report(report, screen_for(output), pattern)

    def write_all() -> ExitStatus:
        from attnshape.cli.batch import run_jobs, write_batch

        assert batch_reporter is not None
        return write_batch(run_jobs(jobs, check_job), batch_reporter, render, output)

    run_and_write(jobs, check_job, render, output, write_all if batch_reporter is not None else None)

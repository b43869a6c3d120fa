"""`attnshape check`: mistakes in attention code that no shape tells of."""

from __future__ import annotations

import gc
import math
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import replace

from attnshape.cli.jobs import Job, jobs_of
from attnshape.cli.options import All, Output
from attnshape.cli.progress import Progress
from attnshape.cli.request import Flags
from attnshape.cli.target_options import takes_target
from attnshape.cli.writing import check_writable, resolve_format, use_color, width, write
from attnshape.errors import AttnshapeError, ExitStatus
from attnshape.render.formats import Screen
from attnshape.render.report_formats import find
from attnshape.report import Report
from attnshape.selecting import Selection
from attnshape.silencing import split
from attnshape.tracing.output import to_standard_error

if TYPE_CHECKING:
    from attnshape.cli.several import Doing


@takes_target
def check(
    target: str | None,
    flags: Flags,
    every: All = False,
    claim: Annotated[
        list[str] | None,
        typer.Option(metavar="CLAIM", help="What is meant: causal, window=W, mask=keep, scale=1/sqrt(Dk) … Repeat."),
    ] = None,
    select: Annotated[
        list[str] | None, typer.Option(metavar="CODES", help="Only these codes or families: AS2,AS301. Repeat.")
    ] = None,
    ignore: Annotated[
        list[str] | None, typer.Option(metavar="CODES", help="Not these codes or families: AS204. Repeat.")
    ] = None,
    written: Annotated[
        bool, typer.Option("--written", help="Only what is written about shapes: comments, docstrings, annotations.")
    ] = False,
    pattern: Annotated[
        bool, typer.Option("--pattern", help="Draw which output positions depend on which input positions.")
    ] = False,
    time_limit: Annotated[str, typer.Option(metavar="SECONDS", help="When to stop looking further.")] = "60",
    format_: Annotated[
        str, typer.Option("--format", metavar="NAME", help="auto, text, markdown, json, github or sarif.")
    ] = "auto",
    output: Output = None,
) -> None:
    """Mistakes in attention code that no shape tells of: each with its line, its numbers and a hint."""
    check_writable(output)
    name = resolve_format(format_, output, "text")
    form = find(name, pattern)
    selection = Selection.parse(select or [], ignore or [])
    limit = _seconds(time_limit)
    jobs = jobs_of("check", target, Flags({**flags.values, "claim": claim or []}), every)
    # torch is imported only here, once everything that can be wrong without it has been looked at
    from attnshape.examine import check_request
    from attnshape.target.device import require_device
    from attnshape.verifying import verify_request

    def run(job: Job, doing: Doing) -> Report:
        require_device(job.settings.device)
        if written:
            made = verify_request(job.request, job.settings, limit, doing=doing)
        else:
            made = check_request(job.request, job.settings, job.claims, limit, doing=doing)
        counting, silenced = split(made.findings, selection)
        return replace(made, findings=counting, silenced=(*made.silenced, *silenced))

    def drawn(report: Report) -> str:
        return form.draw(report, Screen(width(), use_color(output)), pattern)

    gc.freeze()
    gc.enable()
    # until the report is written, since threads of the examined code may print meanwhile
    with to_standard_error():
        if jobs.together:
            # one report does without
            from attnshape.cli.several import carried_out, write_together
            from attnshape.render.several_formats import REPORTS

            status = write_together(carried_out(jobs.each, run), REPORTS[name], drawn, output)
        else:
            with Progress() as progress:
                made = run(jobs.only(), progress)
            write(drawn(made), output)
            status = ExitStatus.FOUND if made.found_something else ExitStatus.FINE
    if status:
        raise typer.Exit(status)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise AttnshapeError(
            f"--time-limit is {text[:40]!r}, expected a number of seconds above 0", "for example --time-limit 60"
        )
    return seconds

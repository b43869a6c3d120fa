"""`attnshape check`: mistakes in attention code that leave every shape right."""

from __future__ import annotations

import dataclasses
import gc
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec.structs import replace

from attnshape.checks.suppressions import Selection, split_suppressed
from attnshape.cli.flags import TARGET_HELP, All, Output, format_option, output_option, running_option, takes_targets
from attnshape.cli.help import CHECKING
from attnshape.cli.jobs import Job, NoAttentionError, Refused, jobs_of, jobs_of_all, run_and_write
from attnshape.cli.output import check_writable, print_message, resolve_format, screen_for
from attnshape.errors import AttnshapeError, ExitStatus
from attnshape.model.report import Report
from attnshape.options.claims import parse_claims
from attnshape.options.limits import check_time_limit
from attnshape.options.spec import TargetSpec, require_name
from attnshape.reporters.registry import find_renderer
from attnshape.reporters.report_view import ReportOptions, printed_by
from attnshape.reporters.reporter import BatchReporter
from attnshape.runtime.files import watch_files_read
from attnshape.runtime.worker import limit_time, seconds_left

_checking: Any = partial(typer.Option, rich_help_panel=CHECKING)


@takes_targets
def check(
    typed: TargetSpec,
    run: Mapping[str, object],
    targets: Annotated[list[str] | None, typer.Argument(metavar="TARGET", help=f"{TARGET_HELP} Several too.")] = None,
    every: All = False,
    claim: Annotated[
        list[str] | None,
        _checking(metavar="CLAIM", help="What is meant: causal, window=W, mask=keep, visible=k<=q … Repeat."),
    ] = None,
    select: Annotated[
        list[str] | None, _checking(metavar="CODES", help="Count only these codes or families: AS2,AS301. Repeat.")
    ] = None,
    ignore: Annotated[
        list[str] | None, _checking(metavar="CODES", help="Not these codes or families: AS204. Repeat.")
    ] = None,
    strict: Annotated[bool, _checking("--strict", help="Count warnings and notices too, not errors alone.")] = False,
    pattern: Annotated[
        bool, output_option("--pattern", help="Draw which output positions depend on which input positions.")
    ] = False,
    time_limit: Annotated[float, running_option(metavar="SECONDS", help="When to stop looking further.")] = 60.0,
    jobs: Annotated[
        int | None, running_option(metavar="N", min=1, help="How many targets to check at a time: as many as cores.")
    ] = None,
    no_cache: Annotated[
        bool, running_option("--no-cache", help="Check every target, also those that haven't changed.")
    ] = False,
    verbose: Annotated[bool, output_option("--verbose", "-v", help="List what was verified too.")] = False,
    quiet: Annotated[bool, output_option("--quiet", "-q", help="Only findings, and what is undecided.")] = False,
    format_: Annotated[str, format_option("report")] = "auto",
    output: Output = None,
) -> None:
    """Find mistakes that leave every shape right, each with its line, numbers and a hint."""
    watch_files_read()
    check_writable(output)
    if quiet and verbose:
        raise AttnshapeError("--quiet leaves out what --verbose lists", "give one of them")
    name = resolve_format(format_, output, "text")
    render_report = find_renderer(name, "report", draws_patterns=pattern)
    selection = Selection.parse(select or [], ignore or [])
    check_time_limit(time_limit)
    parse_claims(claim or ())
    typed = replace(typed, claims=tuple(claim or ()))
    asked = _jobs(typed, run, targets or [], every, quiet)
    if not asked:  # files without attention, as a hook may pass them
        return
    reporter = find_renderer(name, "reports") if every or len(asked) > 1 else None
    checks = _Checks(selection, strict or bool(select), time_limit)
    options = ReportOptions(pattern, verbose, quiet)

    def render(report: Report) -> str:
        nonlocal options
        text = render_report(report, screen_for(output), options)
        options = dataclasses.replace(options, printed=options.printed | printed_by(report))
        return text

    if reporter is None:
        checks.begin()
        run_and_write(asked, checks.run, render, output, None)
        return

    def write_all(reporter: BatchReporter = reporter) -> ExitStatus:
        from attnshape.cli.batch import run_jobs, write_batch
        from attnshape.cli.report_cache import ReportCache

        if not no_cache:
            checks.cache = ReportCache(Path(), selection.only_comments)
        lanes = jobs if jobs is not None else _cores()
        items = run_jobs(asked, checks.run, lanes, checks.find, checks.begin)
        return write_batch(items, reporter, render, output, quiet)

    run_and_write(asked, checks.run, render, output, write_all)


def _cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _jobs(
    typed: TargetSpec, run: Mapping[str, object], targets: Sequence[str], every: bool, quiet: bool
) -> Sequence[Job | Refused]:
    """Return what was asked for, each once. Of several files those without attention are left out, unless all are."""

    def announce(text: str) -> None:
        if not quiet:
            print_message(text)

    names = [require_name(target) for target in targets]
    if every:
        return jobs_of_all("check", typed, run, names, announce)
    found: list[Job] = []
    for name in names or [""]:
        try:
            found += jobs_of("check", replace(typed, target=name), run, announce)
        except NoAttentionError:
            if not found and name == names[-1]:
                raise
            announce(f"no attention was found in {name}")
    return list({(job.name, *job.sizes.items()): job for job in found}.values())


class _Checks:
    """Checks jobs, unless the cache has their results."""

    def __init__(self, selection: Selection, is_strict: bool, time_limit: float) -> None:
        from attnshape.cli.report_cache import ReportCache

        self.cache: ReportCache | None = None
        self._selection, self._is_strict, self._time_limit = selection, is_strict, time_limit

    def begin(self) -> None:
        """Start to count the time, and import what checks need: torch too, after everything that can do without."""
        limit_time(self._time_limit)
        collects = gc.isenabled()
        gc.disable()
        import attnshape.pipelines.check
        import attnshape.pipelines.comments  # noqa: F401 - for `run`

        if collects:
            gc.freeze()
            gc.enable()

    def find(self, job: Job) -> Report | AttnshapeError | None:
        """Return the result of an unchanged job."""
        result = self.cache.find(job) if self.cache is not None else None
        return self._selected(result) if isinstance(result, Report) else result

    def run(self, job: Job, progress: Callable[[str], None]) -> Report:
        """Check a job, and keep the result in the cache."""
        from attnshape.pipelines.check import check_request
        from attnshape.pipelines.comments import check_comments

        def checked() -> Report:
            left = seconds_left(self._time_limit)
            if self._selection.only_comments:
                return check_comments(job.spec, job.options, left, progress=progress)
            return check_request(job.spec, job.options, parse_claims(job.spec.claims), left, progress=progress)

        if self.cache is None:
            return self._selected(checked())
        from attnshape.pipelines.check import is_whole

        return self._selected(self.cache.checked(job, checked, is_whole))

    def _selected(self, report: Report) -> Report:
        kept, suppressed = split_suppressed(report.findings, self._selection)
        # whoever names codes wants to know about them, whatever their level
        return replace(report, findings=kept, suppressed=(*report.suppressed, *suppressed), strict=self._is_strict)

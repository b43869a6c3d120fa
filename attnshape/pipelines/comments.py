"""The comments pipeline: run a target at several sizes and verify the shapes that its source documents."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator, Mapping, Sequence

import torch
from msgspec import UNSET
from msgspec.structs import replace

from attnshape import __version__
from attnshape.checks.rules.guard import OUT_OF_TIME, RUN_TOO_LONG
from attnshape.comments.verify import CommentVerification, may_document_shapes, verify_shape_comments
from attnshape.dims.sizes import Sizes, are_large
from attnshape.errors import format_exception
from attnshape.inference.small_runs import ProgressCallback, Samples
from attnshape.model.report import Fact, NotChecked, Report
from attnshape.observation.forms import FunctionId
from attnshape.observation.watch import ObservedRun, runs_at
from attnshape.options.spec import RunOptions, TargetSpec
from attnshape.pipelines.target_runs import load_target, sample_target
from attnshape.pipelines.trace import OutputRedirect
from attnshape.runtime.capture import to_standard_error
from attnshape.runtime.files import installed_package
from attnshape.runtime.isolation import isolated
from attnshape.runtime.signals import foreign_code, reraise_interruption
from attnshape.runtime.time_limit import TimeLimit
from attnshape.targets.target import Target, require_device

_PROPOSED = re.compile(r"--(?:input|with) ['\"]?(\w+)[:=]")
_MOST_RUNS = 4
_PART_OF_BUDGET = 4
"""The part of the work of all extra runs that these may take: one divided by this."""


def check_comments(
    spec: TargetSpec,
    options: RunOptions,
    time_limit: float,
    redirect_output: OutputRedirect = to_standard_error,
    progress: ProgressCallback = lambda words: None,
) -> Report:
    """Return whether the shapes hold that the source of the traced functions documents.

    Raises AttnshapeError if the request can't be carried out, or the target fails at the given sizes.
    """
    require_device(options.device)
    progress("loading the target")
    with redirect_output(), foreign_code(), isolated():
        target = load_target(spec, progress)
        run = RunOptions(seed=options.seed, train=options.train)
        limit = TimeLimit()
        variation = sample_target(target, target.sizes, run, limit, time_limit, progress)
        progress("verifying the shape comments")
        chosen = sizes_to_observe(variation, target.sizes)
        verification = verify_target(target, chosen, run, limit)
    report = comments_report(target, options, run.dtype, chosen, verification)
    report = replace(report, not_checked=(*report.not_checked, *cut_off_by_time(target, variation, limit)))
    if verification.holding or verification.findings or report.not_checked:
        return report
    return replace(report, facts=(Fact(text="the functions that ran document no shapes"),))


def comments_report(
    target: Target,
    options: RunOptions,
    dtype: str,
    small_sizes: Sequence[Mapping[str, int]],
    verification: CommentVerification,
) -> Report:
    """Return the report of a verification; `options` are the user's, `dtype` is that of the small runs."""
    return Report(
        attnshape=__version__,
        torch=str(torch.__version__),
        python=platform.python_version(),
        target=target.label,
        command=options.command,
        found=target.found or UNSET,
        seed=options.seed,
        dtype=dtype,
        sizes=dict(target.sizes.records),
        small_sizes=tuple(dict(numbers) for numbers in small_sizes),
        runs=verification.runs,
        findings=verification.findings,
        verified=verification.summary,
        not_checked=verification.not_checked,
    )


def comments_not_checked(why: str) -> CommentVerification:
    """Return that the shape comments weren't checked, and why."""
    return CommentVerification(not_checked=(NotChecked(what="shape comments", why=why, required=True),))


def cut_off_by_time(target: Target, variation: Samples | None, limit: TimeLimit) -> Iterator[NotChecked]:
    """Yield what remains open because time decided how the target was run: a quieter machine may find more."""
    if target.is_search_cut_short:
        yield NotChecked(what="other arguments of the target", why=OUT_OF_TIME, required=True)
    if variation is not None and variation.cut_short:
        yield NotChecked(what="other constraints on the sizes", why=OUT_OF_TIME, required=True)
    if limit.has_ended_a_run:
        yield NotChecked(what="what a run that was ended would have shown", why=RUN_TOO_LONG, required=True)


def sizes_to_observe(variation: Samples | None, sizes: Sizes) -> list[Mapping[str, int]]:
    """Return the sizes of the runs: some of the small ones, and the user's own where they aren't large."""
    small = variation.cheap_sizes(_PART_OF_BUDGET)[:_MOST_RUNS] if variation is not None else []
    return [*small, *([] if small and are_large(sizes) else [sizes.numbers])]


def verify_target(
    target: Target, sizes: Sequence[Mapping[str, int]], run: RunOptions, limit: TimeLimit
) -> CommentVerification:
    """Return which documented shapes hold at all these sizes, or why this couldn't be checked."""
    try:
        runs, functions = observe_documented(target, sizes, run, limit)
        if not runs:
            return comments_not_checked("the target failed while its variables were watched")
        if not functions:
            return CommentVerification(runs=len(runs))
        return verify_shape_comments(runs, functions, _PROPOSED.findall(target.found))
    except BaseException as error:  # noqa: BLE001 - a comment somewhere must not end the check
        reraise_interruption(error)
        return comments_not_checked(f"the comparison failed: {format_exception(error)}")


def observe_documented(
    target: Target, sizes: Sequence[Mapping[str, int]], run: RunOptions, limit: TimeLimit
) -> tuple[list[ObservedRun], list[FunctionId]]:
    """Return a run at each of the sizes and the functions that ran; a single run if these document no shapes."""
    first = runs_at(target, sizes[:1], run, limit) or runs_at(target, sizes[-1:], run, limit)
    functions = _functions_of_project(first)
    if not may_document_shapes(functions):
        return first, []
    return [*first, *runs_at(target, sizes[1:], run, limit)], functions


def _functions_of_project(runs: Sequence[ObservedRun]) -> list[FunctionId]:
    """Return the functions that ran, without those of installed packages other than the target's own."""
    functions = list(dict.fromkeys(call.function for run in runs for call in run.invocations))
    # the target's file decides, not that of the first function: garbage collection may have called that one
    first = functions[0].file if functions else ""
    home = installed_package(next((run.file for run in runs if run.file is not None), first))
    return [function for function in functions if installed_package(function.file) in (None, home)]

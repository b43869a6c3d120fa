"""`attnshape explain`: an article about the user's own attention code, with numbers of its own run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated

from attnshape.cli.flags import Output, format_option, takes_target
from attnshape.cli.jobs import Job, jobs_of, run_and_write
from attnshape.cli.output import check_writable, resolve_format, screen_for
from attnshape.errors import AttnshapeError
from attnshape.model.explanation import Explanation
from attnshape.options.limits import MEASURING_SECONDS
from attnshape.options.spec import TargetSpec
from attnshape.reporters.registry import find_renderer

_SHOWN = 4
"""How many targets an error names."""


@takes_target
def explain(
    typed: TargetSpec,
    run: Mapping[str, object],
    format_: Annotated[str, format_option("explanation")] = "auto",
    output: Output = None,
) -> None:
    """Explain attention code step by step: what it does, why, and what breaks without it."""
    check_writable(output)
    render = find_renderer(resolve_format(format_, output, "markdown"), "explanation")
    jobs = jobs_of("explain", typed, run)
    if len(jobs) > 1:
        names = ", ".join(dict.fromkeys(job.spec.target for job in jobs[:_SHOWN]))
        more = ", …" if len(jobs) > _SHOWN else ""
        raise AttnshapeError(
            f"an article is about one target at one set of sizes, and {typed.target} stands for {len(jobs)}: "
            f"{names}{more}",
            f"name one: attnshape explain {jobs[0].spec.target}",
        )

    def explain_job(job: Job, progress: Callable[[str], None]) -> Explanation:
        from attnshape.pipelines.explain import explain_request  # torch is imported only here

        return explain_request(job.spec, job.options, MEASURING_SECONDS, progress=progress)

    run_and_write(jobs, explain_job, lambda explanation: render(explanation, screen_for(output)), output, None)

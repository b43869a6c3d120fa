"""Carries out several jobs, one after another, and writes each result as it comes, and at the end how all came out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from attnshape import __version__
from attnshape.cli.complaining import complain
from attnshape.cli.jobs import Job, Refused, as_typed
from attnshape.cli.progress import Progress
from attnshape.cli.writing import use_color, width, write
from attnshape.ending import reraise_interruption
from attnshape.errors import AttnshapeError, ExitStatus
from attnshape.render.formats import Screen
from attnshape.render.several_formats import Draw, Together
from attnshape.render.several_words import title
from attnshape.render.text import visible
from attnshape.several import Made, Outcome, Outcomes
from attnshape.target.neighbours import Neighbours

Doing = Callable[[str], None]
Run = Callable[[Job, Doing], Made]
"""Does one job, and tells what it is doing."""


def carried_out(jobs: Sequence[Job | Refused], run: Run[Made]) -> Iterator[Outcome[Made]]:
    """Yield how each job came out. One that can't be carried out doesn't keep the others from it."""
    neighbours = Neighbours()
    for place, job in enumerate(jobs, 1):
        yield _outcome(job, run, neighbours, f"{place} of {len(jobs)}")


def write_together(
    outcomes: Iterable[Outcome[Made]], form: Together[Made], draw: Draw[Made], output: Path | None
) -> ExitStatus:
    """Write each result as soon as it is there, or all of them into one file at the end; return the status of all."""
    screen = Screen(width(), use_color(output))
    seen: list[Outcome[Made]] = []
    parts: list[str] = []
    for outcome in outcomes:
        try:
            part = form.part(outcome, draw, screen)
        except AttnshapeError as error:  # as where nothing of this one is what --match names
            outcome = replace(outcome, made=None, error=error)
            part = form.part(outcome, draw, screen)
        seen.append(outcome)
        parts.append(part)
        if output is None and part:
            write(part, None)
    every = outcomes_of(seen)
    end = form.end(every, screen)
    write(end if output is None else "".join((*parts, end)), output)
    if output is not None or not form.for_people:
        complain_of(seen)
    return every.status


def outcomes_of(seen: Sequence[Outcome[Made]]) -> Outcomes[Made]:
    """Return what came out of this process's command."""
    return Outcomes(__version__, as_typed(), tuple(seen))


def complain_of(outcomes: Iterable[Outcome[Made]]) -> None:
    """Say on standard error what can't be carried out, where nothing else shows it to the user."""
    for outcome in outcomes:
        if outcome.error is not None:
            complain(AttnshapeError(f"{title(outcome)}: {outcome.error.message}", outcome.error.hint))


def _outcome(job: Job | Refused, run: Run[Made], neighbours: Neighbours, which: str) -> Outcome[Made]:
    if isinstance(job, Refused):
        return Outcome(job.name, error=job.error)
    outcome: Outcome[Made] = Outcome(job.name, job.sizes)
    said = visible(f"{which}: {title(outcome)}")
    try:
        with Progress() as progress, neighbours.of(job.request.target):
            return replace(outcome, made=run(job, lambda words: progress(f"{said}: {words}")))
    except AttnshapeError as error:
        return replace(outcome, error=error)
    except Exception as error:  # noqa: BLE001 - a mistake of the tool's own, with which the others have nothing to do
        reraise_interruption(error)
        return replace(outcome, error=_failed(error, job))


def _failed(error: Exception, job: Job) -> AttnshapeError:
    return AttnshapeError(
        f"attnshape itself failed: {type(error).__name__}: {error}",
        f"report it, with what this shows: {job.settings.command}",
    )

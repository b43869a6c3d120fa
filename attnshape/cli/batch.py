"""Batches: one command that runs several targets and writes their results together, or each into a file."""

from __future__ import annotations

import hashlib
import os
import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from attnshape import __version__
from attnshape.cli.flags import typed_command
from attnshape.cli.jobs import Job, Refused, RunJob
from attnshape.cli.output import internal_error, print_error, remove_output, resolve_format, screen_for, write
from attnshape.cli.progress import Progress
from attnshape.errors import AttnshapeError, ExitStatus
from attnshape.model.trace import Trace
from attnshape.options.flags import flag_syntax
from attnshape.options.pyproject import SizeSet
from attnshape.reporters.batch_view import BatchItem, BatchResult, ResultT, title
from attnshape.reporters.escaping import visible
from attnshape.reporters.registry import find_renderer
from attnshape.reporters.reporter import BatchReporter
from attnshape.runtime.capture import to_standard_error
from attnshape.runtime.lanes import LaneEvent, can_run_lanes, run_lanes
from attnshape.runtime.signals import reraise_interruption
from attnshape.runtime.worker import (
    ERRORS,
    death_in_item,
    earlier_results,
    finish_item,
    is_supervised,
    send,
    start_item,
)
from attnshape.targets.imports import SiblingModules

_LONGEST_NAME = 120
_HASH_DIGITS = 12
_BAR_WIDTH = 20


def run_jobs(
    jobs: Sequence[Job | Refused],
    run: RunJob[ResultT],
    lanes: int = 1,
    find: Callable[[Job], ResultT | AttnshapeError | None] = lambda job: None,
    begin: Callable[[], None] = lambda: None,
) -> Iterator[BatchItem[ResultT]]:
    """Yield the result of each job in order, as soon as it is available. A failing job doesn't stop the others.

    Nor does one that ends the process: another worker then goes on with the next.

    Args:
        jobs: What to run.
        run: Runs a job.
        lanes: How many jobs may run side by side.
        find: Returns the result of a job that doesn't have to be run, such as one that is kept from before.
        begin: Is called before the first job in each process that runs some.
    """
    if lanes > 1 and is_supervised() and can_run_lanes():
        yield from _run_in_lanes(jobs, run, lanes, find, begin)
        return
    siblings = SiblingModules()
    results, death = earlier_results(), death_in_item()
    begun = False
    for number, job in enumerate(jobs, 1):
        if number <= len(results):
            yield pickle.loads(results[number - 1])
            continue
        start_item(number - 1)
        item = _found_item(job, find) if death is None else None
        if death is not None:
            item = BatchItem(job.name, _sizes(job), error=death.error.written_in(flag_syntax))
            death = None
        elif item is None:
            if not begun:
                begin()
                begun = True
            item = _run_job(job, run, siblings, f"{number} of {len(jobs)}")
        yield item
        finish_item(pickle.dumps(item))


def _run_in_lanes(
    jobs: Sequence[Job | Refused],
    run: RunJob[ResultT],
    lanes: int,
    find: Callable[[Job], ResultT | AttnshapeError | None],
    begin: Callable[[], None],
) -> Iterator[BatchItem[ResultT]]:
    """Yield what `run_jobs` does; this process only reads and writes, and other processes run the jobs."""

    def work(numbers: Iterator[int]) -> int:
        begin()
        siblings = SiblingModules()
        with to_standard_error():
            for number in numbers:
                start_item(number)
                finish_item(pickle.dumps(_run_job(jobs[number], run, siblings, f"{number + 1} of {len(jobs)}")))
        return 0

    earlier = [pickle.loads(result) for result in earlier_results()]
    done: dict[int, BatchItem[ResultT]] = dict(enumerate(earlier))
    for number, job in enumerate(jobs):
        if number not in done and (item := _found_item(job, find)) is not None:
            done[number] = item
    events = run_lanes([number for number in range(len(jobs)) if number not in done], work, lanes)
    printed = _PrintedOnce()
    running: list[int] = []
    for number in range(len(jobs)):
        if number >= len(earlier):
            start_item(number)
        if number not in done:
            with Progress() as progress:
                while number not in done:
                    progress(_bar(len(done), len(jobs), [title(_item_named(jobs[one])) for one in running]))
                    event = next(events)
                    if event.kind == "started":
                        running.append(event.number)
                    else:
                        running.remove(event.number)
                        done[event.number] = _item_of(event, jobs[event.number])
                        printed.keep(event.number, event.printed)
        printed.write(number)
        yield done[number]
        if number >= len(earlier):
            finish_item(pickle.dumps(done[number]))
    for _ in events:  # none is left, but the lanes have to be waited for
        pass


class _PrintedOnce:
    """What the code of several jobs wrote to standard error: a line that several wrote is written once."""

    def __init__(self) -> None:
        self._kept: dict[int, bytes] = {}
        self._lines: set[bytes] = set()

    def keep(self, number: int, text: bytes) -> None:
        """Keep what a job wrote."""
        self._kept[number] = text

    def write(self, number: int) -> None:
        """Write what a job wrote, without the lines that were written before."""
        lines = [line for line in self._kept.pop(number, b"").splitlines(keepends=True) if line not in self._lines]
        self._lines.update(line for line in lines if line.strip())
        if lines:
            send(ERRORS, b"".join(lines))


def _bar(done: int, total: int, names: Sequence[str]) -> str:
    """Return how far a batch is, and what it is running.

    >>> _bar(3, 12, ["model.py:Attention"])
    '[#####---------------] 3 of 12: model.py:Attention'
    """
    filled = _BAR_WIDTH * done // total
    shown = visible(", ".join(names)) or "starting"
    return f"[{'#' * filled}{'-' * (_BAR_WIDTH - filled)}] {done} of {total}: {shown}"


def _found_item(
    job: Job | Refused, find: Callable[[Job], ResultT | AttnshapeError | None]
) -> BatchItem[ResultT] | None:
    """Return the result of a job that doesn't have to be run."""
    result = find(job) if isinstance(job, Job) else None
    if result is None:
        return None
    kept = replace(_item_named(job), is_unchanged=True)
    return replace(kept, error=result) if isinstance(result, AttnshapeError) else replace(kept, result=result)


def _item_named(job: Job | Refused) -> BatchItem[Any]:
    return BatchItem(job.name, _sizes(job))


def _item_of(event: LaneEvent, job: Job | Refused) -> BatchItem[Any]:
    if event.death is not None:
        return replace(_item_named(job), error=event.death.error.written_in(flag_syntax))
    item: BatchItem[Any] = pickle.loads(event.result)
    return item


def write_batch(
    items: Iterable[BatchItem[ResultT]],
    reporter: BatchReporter,
    render: Callable[[ResultT], str],
    output: Path | None,
    quiet: bool = False,
) -> ExitStatus:
    """Write each result as soon as it is available, or all of them into a file at the end; return the exit status.

    If `quiet`, leave out the summary, and the headings of targets that could be run.
    """
    screen = screen_for(output)
    done: list[BatchItem[ResultT]] = []
    parts: list[str] = []
    titles: dict[str, str] = {}
    for number, item in enumerate(items):
        part = ""
        if reporter.render_heading is not None:
            try:
                part = f"\n{render(item.result)}" if item.result is not None else ""
            except AttnshapeError as error:  # for example where --match names nothing in this one
                item = replace(item, result=None, error=error)
            headed = _without_repeated_reason(item, titles)
            part = (
                part.lstrip() if quiet and item.error is None else f"{reporter.render_heading(headed, screen)}{part}\n"
            )
        done.append(item)
        parts.append(part)
        if output is None and part and number >= len(earlier_results()):
            write(part, None)
    batch = _batch_result(done, shows_reasons=reporter.render_heading is not None)
    has_summary = not quiet or reporter.render_heading is None
    summary = reporter.render_summary(batch, screen) if has_summary else ""
    write(summary if output is None else "".join((*parts, summary)), output)
    if output is not None or not reporter.shows_errors:
        for item in done:
            if item.error is not None:
                print_error(AttnshapeError(f"{title(item)}: {item.error.message}", item.error.hint))
    return batch.status


def output_folder(output: str, format_: str) -> Path | None:
    """Return the folder that `--output` names, and create it if necessary; None if it names a file.

    Raises AttnshapeError if the folder can't be created or written, or the format isn't JSON.
    """
    folder = Path(output)
    try:
        if not (output.endswith(("/", os.sep)) or folder.is_dir()):
            return None
        if format_ != "json":
            raise AttnshapeError(
                f"--output {output} is a folder, which gets a file for each trace as JSON only",
                f"add --format json, or write to a file in it: {folder / 'traces.md'}",
            )
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(13, "Permission denied")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise AttnshapeError(
            f"--output {output[:80]!r}: no folder can be written there: {reason}", "choose another path"
        ) from None
    return folder


def file_names(jobs: Sequence[Job | Refused]) -> list[str]:
    """Return a file name for each job: its target and sizes, quoted, such as `cross,B=1,L=1.json`.

    A name depends on its own job only, so that folders of two versions can be compared. The exception are names that
    differ in upper and lower case only, which some systems take for one file: a hash is added to these.
    """
    plain = [_plain_name(job) for job in jobs]
    alike = Counter(name.casefold() for name in plain)
    return [f"{_short_name(name, alike[name.casefold()] > 1)}.json" for name in plain]


def write_folder(items: Iterable[BatchItem[Trace]], names: Sequence[str], folder: Path) -> ExitStatus:
    """Write each trace into its file in the folder, and the summary to standard output; return the exit status.

    A target that has no trace now loses the file of that name, which would be mistaken for its result.
    """
    done = []
    for number, (item, name) in enumerate(zip(items, names, strict=True)):
        if number >= len(earlier_results()):
            try:
                if item.result is not None:
                    write(Trace.to_json(item.result) + "\n", folder / name)
                else:
                    remove_output(folder / name)
            except AttnshapeError as error:
                item = replace(item, result=None, error=error)
        done.append(item)
    batch = _batch_result(done)
    reporter = find_renderer(resolve_format("auto", None), "traces")
    write(reporter.render_summary(batch, screen_for(None)), None)
    return batch.status


def _batch_result(items: Sequence[BatchItem[ResultT]], shows_reasons: bool = False) -> BatchResult[ResultT]:
    return BatchResult(__version__, typed_command(), tuple(items), shows_reasons=shows_reasons)


def _without_repeated_reason(item: BatchItem[ResultT], titles: dict[str, str]) -> BatchItem[ResultT]:
    """Return an item whose error, if an earlier item has it, refers to that one; `titles` has the first of each."""
    if item.error is None:
        return item
    first = titles.setdefault(item.error.message, title(item))
    return item if first == title(item) else replace(item, error=AttnshapeError(f"for the same reason as {first}"))


def _run_job(job: Job | Refused, run: RunJob[ResultT], siblings: SiblingModules, number: str) -> BatchItem[ResultT]:
    if isinstance(job, Refused):
        return BatchItem(job.name, error=job.error.written_in(flag_syntax))
    item: BatchItem[ResultT] = BatchItem(job.name, job.sizes)
    heading = visible(f"{number}: {title(item)}")
    try:
        with Progress() as progress, siblings.of(job.spec.target):
            return replace(item, result=run(job, lambda activity: progress(f"{heading}: {activity}")))
    except AttnshapeError as error:
        return replace(item, error=error.written_in(flag_syntax))
    except Exception as error:  # noqa: BLE001 - a bug of attnshape in one target must not lose the other results
        reraise_interruption(error)
        return replace(item, error=internal_error(error))


def _sizes(job: Job | Refused) -> SizeSet:
    return job.sizes if isinstance(job, Job) else {}


def _plain_name(job: Job | Refused) -> str:
    # quoted parts contain neither a comma, nor an equals sign, nor a lone %, so that no two jobs get one name
    sizes = [f",{quote(symbol)}={size}" for symbol, size in _sizes(job).items()]
    return (quote(job.name, safe="", errors="backslashreplace") or "%") + "".join(sizes)


def _short_name(name: str, ambiguous: bool) -> str:
    not_hidden = f"%2E{name[1:]}" if name.startswith(".") else name
    if len(not_hidden) <= _LONGEST_NAME and not ambiguous:
        return not_hidden
    digest = hashlib.sha256(name.encode()).hexdigest()[:_HASH_DIGITS]
    return f"{not_hidden[:_LONGEST_NAME]}-{digest}"

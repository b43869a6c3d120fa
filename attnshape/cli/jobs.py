"""What one command runs: a target, each set of sizes of a named one, or every target of pyproject.toml."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import TypeVar

import msgspec
import typer

from attnshape.cli.flags import typed_command
from attnshape.cli.output import print_message, write
from attnshape.cli.progress import Progress
from attnshape.errors import AttnshapeError, ExitStatus, Option
from attnshape.model.explanation import Explanation
from attnshape.model.formatting import pluralize
from attnshape.model.report import Report
from attnshape.model.trace import Trace
from attnshape.options.flags import command_line, flag_words
from attnshape.options.pyproject import (
    FILE,
    ProjectTarget,
    SizeSet,
    declared_target,
    decode_target,
    project_defaults,
    project_targets,
    require_targets,
    toml_syntax,
)
from attnshape.options.spec import RunOptions, TargetSpec, run_options
from attnshape.runtime.capture import to_standard_error
from attnshape.targets.builtin.registry import CATALOG

_FEW = 4
"""How many names fit on a line."""
JobResult = TypeVar("JobResult", Trace, Report, Explanation)
RunJob = Callable[["Job", Callable[[str], None]], JobResult]
"""Runs one job and reports its progress through the callback."""


@dataclass(frozen=True)
class Job:
    """One target at one set of sizes."""

    name: str
    sizes: SizeSet
    """The set of sizes from pyproject.toml, without those that the user typed."""
    spec: TargetSpec
    options: RunOptions


@dataclass(frozen=True)
class Refused:
    """A target of pyproject.toml that can't be one."""

    name: str
    error: AttnshapeError


def jobs_of(
    verb: str, typed: TargetSpec, run: Mapping[str, object], announce: Callable[[str], None] = print_message
) -> list[Job]:
    """Return what a verb runs: the target that was typed, or each set of sizes of a target of pyproject.toml.

    A file or a folder stands for the attention in it, and `announce` gets what was found. Raises AttnshapeError if a
    value is invalid, or a folder has no attention, and NoAttentionError if a file has none.
    """
    options = run_options(run, typed_command())
    declared = declared_target(typed)
    if declared is None:
        typed.require_known_symbols()
        return _found_jobs(verb, typed, run, announce) or [Job(typed.target, {}, typed, options)]
    jobs = list(_declared_jobs(verb, typed.target, declared, typed, run))
    if len(jobs) > 1:
        return jobs
    return [replace(jobs[0], options=msgspec.structs.replace(jobs[0].options, command=options.command))]


def jobs_of_all(
    verb: str,
    typed: TargetSpec,
    run: Mapping[str, object],
    places: Sequence[str] = (),
    announce: Callable[[str], None] = print_message,
) -> list[Job | Refused]:
    """Return what a verb runs with `--all`: every target of pyproject.toml at each of its sets of sizes.

    With files and folders also the attention in them that pyproject.toml doesn't name; there may be none. Raises
    AttnshapeError if there is nothing else and no target, or if what was typed belongs to one target.
    """
    run_options(run, "")  # an error in what was typed isn't one of each target
    name = next((place for place in (typed.target, *places) if place and not Path(place).exists()), typed.target)[:60]
    if name:
        raise AttnshapeError(
            f"--all runs every target that {FILE} names, and {name!r} is one target",
            f"leave one of them out: attnshape {verb} --all, or attnshape {verb} {name}",
        )
    if (option := next(typed.given_options(), None)) is not None:
        flag = flag_words(Option(option.field, None, option.key))[0]
        raise AttnshapeError(
            f"{flag} is of one target, and --all runs every one",
            f"write it below that target in {FILE}, such as {toml_syntax(option)}, or name the target: "
            f"attnshape {verb} NAME {flag} …",
        )
    jobs: list[Job | Refused] = []
    tables, defaults = project_targets() if places else require_targets(), project_defaults()
    for name, table in tables.items():
        try:
            jobs += _declared_jobs(verb, name, decode_target(name, table, (), defaults), typed, run)
        except AttnshapeError as error:  # the others run all the same
            jobs.append(Refused(name, error))
    named = {normal_target(job.spec.target) for job in jobs if isinstance(job, Job)}
    for place in places:
        if is_source(place):
            found = _found_jobs(verb, msgspec.structs.replace(typed, target=place), run, announce, or_none=True)
            jobs += [job for job in found if normal_target(job.spec.target) not in named]
    return jobs


def run_and_write(
    jobs: Sequence[Job | Refused],
    run: RunJob[JobResult],
    render: Callable[[JobResult], str],
    output: Path | None,
    write_all: Callable[[], ExitStatus] | None,
) -> None:
    """Run the jobs, write their results, and exit unless the status is 0.

    A single job is run, rendered and written. For a batch, `write_all` does all that instead; only then is it given.
    """
    gc.freeze()
    gc.enable()
    # until the results are written, since threads of the code that ran may print meanwhile
    with to_standard_error():
        if write_all is not None:
            status = write_all()
        else:
            assert isinstance(jobs[0], Job)  # only with --all is a target refused later than here
            with Progress() as progress:
                result = run(jobs[0], progress)
            write(render(result), output)
            status = result.exit_status
    if status:
        raise typer.Exit(status)


def is_source(target: str) -> bool:
    """Return whether a target is a folder or a Python file, which stands for the attention in it."""
    place = Path(target)
    try:
        is_folder = place.is_dir() and target not in CATALOG
        return bool(target) and ":" not in target and (is_folder or (place.suffix == ".py" and place.is_file()))
    except (OSError, ValueError):  # too long for a path, or no text
        return False


def normal_target(target: str) -> str:
    """Return a target in the form that two spellings of its file share.

    >>> normal_target("./model.py: Attention")
    'model.py:Attention'
    """
    where, colon, name = target.partition(":")
    return f"{PurePath(where.strip())}{colon}{name.strip()}"


def _found_jobs(
    verb: str,
    typed: TargetSpec,
    run: Mapping[str, object],
    announce: Callable[[str], None],
    or_none: bool = False,
) -> list[Job]:
    """Return a job for each attention in a file or a folder; none if the target names neither, or a file has none.

    Raises AttnshapeError if a folder has none, unless `or_none`.
    """
    if not is_source(typed.target):
        return []
    from attnshape.discovery.files import find_targets, modules_by_name  # only files and folders need it

    found = find_targets([typed.target], typed_command())
    for unread in found.unread:
        print_message(f"not read: {unread.file}: {unread.why}")
    to_run = found.to_run
    if not to_run and (or_none or found.unread):
        return []
    if not to_run and Path(typed.target).is_dir():
        raise AttnshapeError(
            f"no attention was found in {typed.target}, in {pluralize(found.files, 'Python file')}",
            "name what to run, such as model.py:Attention; attnshape targets says what it looks for",
        )
    to_run = to_run or modules_by_name(typed.target)
    if not to_run:
        raise _no_attention(typed.target)
    jobs: list[Job] = []
    named = _names_of_declared() if typed.callable is None else {}
    for one in to_run:
        names = named.get(normal_target(one.target), [])
        for name in names or [one.target]:
            declared = declared_target(msgspec.structs.replace(typed, target=name))
            jobs += _declared_jobs(verb, name, declared or ProjectTarget(target=one.target), typed, run)
    names = [one.name for one in to_run]
    shown = ", ".join(names) if len(names) <= _FEW else f"{len(names)} functions and modules with attention"
    announce(f"found in {typed.target}{', by name' * (not found.to_run)}: {shown}")
    return jobs


def _names_of_declared() -> dict[str, list[str]]:
    """Return under which names pyproject.toml has targets, by their file and class or function."""
    named: dict[str, list[str]] = {}
    for name, table in project_targets().items():
        target = table.get("target") if isinstance(table, dict) else None
        if isinstance(target, str) and ":" not in name:
            named.setdefault(normal_target(target), []).append(name)
    return named


class NoAttentionError(AttnshapeError):
    """A file has no attention, and isn't asked for by the name of a function or class in it."""


def _no_attention(file: str) -> NoAttentionError:
    from attnshape.targets.imports import example_of  # only an error needs it

    example, others = example_of(file)
    problem = f"no attention was found in {file}, by its source; which of its functions or classes do you mean?"
    return NoAttentionError(problem, f"write {file}:{example}{others}")


def _declared_jobs(
    verb: str, name: str, target: ProjectTarget, typed: TargetSpec, run: Mapping[str, object]
) -> Iterator[Job]:
    """Yield a job for each set of sizes, with the command that runs it alone."""
    for sizes, spec in target.over(typed):
        spec.require_known_symbols()
        options = [
            Option("sizes", sizes),
            *typed.given_options(),
            *(Option(field, value) for field, value in run.items()),
        ]
        words = [word for option in options for word in flag_words(option)]
        words = [*words, "--", name] if name.startswith("-") else [name, *words]
        command = command_line(["attnshape", verb, *words])
        yield Job(name, sizes, spec, run_options({**target.run(), **run}, command))

"""What one command runs: a target, each set of sizes of a named one, or every target of pyproject.toml."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import msgspec

from attnshape.cli.flags import flag_words, typed_command
from attnshape.errors import AttnshapeError, Option
from attnshape.options.pyproject import FILE, ProjectTarget, SizeSet, decode_target, named_target, require_targets
from attnshape.options.spec import RunOptions, TargetSpec, run_options


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


def jobs_of(verb: str, typed: TargetSpec, run: Mapping[str, object]) -> list[Job]:
    """Return what a verb runs: the target that was typed, or each set of sizes of a target of pyproject.toml.

    Args:
        verb: The verb, for the commands that run one of several jobs alone.
        typed: The target with what the user typed for it.
        run: The run options that the user typed.

    Raises:
        AttnshapeError: A value is invalid.
    """
    options = run_options(run, typed_command())
    named = named_target(typed)
    if named is None:
        return [Job(typed.target, {}, typed, options)]
    jobs = list(_named_jobs(verb, typed.target, named, typed, run))
    if len(jobs) > 1:
        return jobs
    return [replace(jobs[0], options=msgspec.structs.replace(jobs[0].options, command=options.command))]


def jobs_of_all(verb: str, typed: TargetSpec, run: Mapping[str, object]) -> list[Job | Refused]:
    """Return what a verb runs with `--all`: every target of pyproject.toml at each of its sets of sizes.

    Raises AttnshapeError if there is no target, or what was typed belongs to one target.
    """
    run_options(run, "")  # an error in what was typed isn't one of each target
    _refuse_options_of_one(verb, typed)
    return [job for name, table in require_targets().items() for job in _jobs(verb, name, table, typed, run)]


def _jobs(verb: str, name: str, table: object, typed: TargetSpec, run: Mapping[str, object]) -> Iterator[Job | Refused]:
    """Yield the jobs of one target of several: an error in it must not keep the others from running."""
    try:
        yield from _named_jobs(verb, name, decode_target(name, table), typed, run)
    except AttnshapeError as error:
        yield Refused(name, error)


def _named_jobs(
    verb: str, name: str, target: ProjectTarget, typed: TargetSpec, run: Mapping[str, object]
) -> Iterator[Job]:
    for sizes, spec in target.over(typed):
        command = _command(verb, name, sizes, typed, run)
        yield Job(name, sizes, spec, run_options({**target.run(), **run}, command))


def _command(verb: str, name: str, sizes: SizeSet, typed: TargetSpec, run: Mapping[str, object]) -> str:
    """Return the command that runs one of several jobs alone."""
    options = [Option("sizes", sizes), *typed.given(), *(Option(field, value) for field, value in run.items())]
    words = [word for option in options for word in flag_words(option)]
    first = ["attnshape", verb]
    return shlex.join([*first, *words, "--", name] if name.startswith("-") else [*first, name, *words])


def _refuse_options_of_one(verb: str, typed: TargetSpec) -> None:
    if typed.target:
        name = typed.target[:60]
        raise AttnshapeError(
            f"--all runs every target that {FILE} names, and {name!r} is one target",
            f"leave one of them out: attnshape {verb} --all, or attnshape {verb} {name}",
        )
    for option in typed.given():
        flag = flag_words(Option(option.field, None, option.key))[0]
        raise AttnshapeError(
            f"{flag} is of one target, and --all runs every one",
            f"write it below that target in {FILE}, or name the target: attnshape {verb} NAME {flag} …",
        )

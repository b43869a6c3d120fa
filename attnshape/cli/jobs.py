"""What one command is to do: a target, each set of sizes of a named one, or every target of pyproject.toml."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from typing import Any

from attnshape.claims import Claims, parse_claims
from attnshape.cli.request import Flags, asked, blaming, entry_named, flags_of, layered
from attnshape.errors import AttnshapeError
from attnshape.settings import Settings
from attnshape.target.entry import FILE, SWITCHES, Entry, entry_of
from attnshape.target.project import every_target
from attnshape.target.request import Request
from attnshape.target.size_sets import SizeSet

_OF_ALL = ("device", "dtype", "seed", "train", "grad")
"""The flags that say how to run; the others are of one target."""


@dataclass(frozen=True)
class Job:
    """One target at one set of sizes, and what is claimed of it."""

    name: str
    sizes: SizeSet
    request: Request
    settings: Settings
    claims: Claims


@dataclass(frozen=True)
class Refused:
    """A target of pyproject.toml whose entry is wrong."""

    name: str
    error: AttnshapeError


@dataclass(frozen=True)
class Jobs:
    """All that one command is to do, in order."""

    each: tuple[Job | Refused, ...]
    together: bool
    """Whether the results are put together, under headings; the one of a target as typed stands for itself."""

    def only(self) -> Job:
        """Return the one job of those that aren't put together."""
        (job,) = self.each
        if isinstance(job, Refused):
            raise job.error
        return job


def jobs_of(verb: str, target: str | None, typed: Flags, every: bool) -> Jobs:
    """Return what a verb is to do with a target as typed, or with every target where `--all` is given.

    Raises AttnshapeError where a flag's value can't be, where a flag is of one target and all are meant, and where
    there is no target.
    """
    if every:
        _refuse_flags_of_one(verb, target, typed)
        asked("", typed, "")  # what is typed wrongly isn't each target's error
        each = [job for name, value in every_target().items() for job in _jobs(verb, name, value, typed)]
        return Jobs(tuple(each), together=True)
    entry = entry_named(target)
    if entry is None:
        return Jobs((_job(target or "", {}, target or "", typed, as_typed()),), together=False)
    sets = layered(entry, typed)
    alone = len(sets) == 1
    named = [
        _named(entry, sizes, typed, given, as_typed() if alone else _command(verb, entry.name, sizes, typed))
        for sizes, given in sets
    ]
    return Jobs(tuple(named), together=not alone)


def _jobs(verb: str, name: str, value: Any, typed: Flags) -> list[Job | Refused]:
    """Return the jobs of a target of pyproject.toml: what is wrong with it must not keep the others from being done."""
    try:
        entry = entry_of(name, value)
        return [
            _named(entry, sizes, typed, given, _command(verb, name, sizes, typed))
            for sizes, given in layered(entry, typed)
        ]
    except AttnshapeError as error:
        return [Refused(name, error)]


def _named(entry: Entry, sizes: SizeSet, typed: Flags, given: Flags, command: str) -> Job:
    """Return the job of a named target at one set of sizes. Raises AttnshapeError where a flag's value can't be."""
    return blaming(entry, sizes, typed, given, lambda flags: _job(entry.name, sizes, entry.target, flags, command))


def _job(name: str, sizes: SizeSet, target: str, flags: Flags, command: str) -> Job:
    request, settings = asked(target, flags, command)
    return Job(name, sizes, request, settings, parse_claims(flags.values.get("claim", [])))


def as_typed() -> str:
    """Return the command of this process; bytes that are no text, as names of files may have, are escaped."""
    return shlex.join(["attnshape", *sys.argv[1:]]).encode(errors="backslashreplace").decode()


def _command(verb: str, name: str, sizes: SizeSet, typed: Flags) -> str:
    """Return the command that does one of several jobs alone."""
    words = ["attnshape", verb, *flags_of(sizes)]
    for flag, values in typed.values.items():
        words += [word for value in values for word in ([f"--{flag}"] if flag in SWITCHES else [f"--{flag}", value])]
    return shlex.join([*words, "--", name] if name.startswith("-") else [*words[:2], name, *words[2:]])


def _refuse_flags_of_one(verb: str, target: str | None, typed: Flags) -> None:
    if target is not None:
        raise AttnshapeError(
            f"--all runs every target that {FILE} names, and {target[:60]!r} is one target",
            f"leave one of them out: attnshape {verb} --all, or attnshape {verb} {target[:60]}",
        )
    flag = next((flag for flag, values in typed.values.items() if values and flag not in _OF_ALL), None)
    if flag is not None:
        raise AttnshapeError(
            f"--{flag} is of one target, and --all runs every one",
            f"write it below that target in {FILE}, or name the target: attnshape {verb} NAME --{flag} …",
        )

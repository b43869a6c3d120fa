"""Interleaved rounds of whole processes, since a machine's speed drifts during the measurement."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

ROOT = Path(__file__).parents[1]
TIME_LIMIT = 300

Sample = TypeVar("Sample")

ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
"""Enables bytecode, as installed packages have it; without it each run would compile attnshape again."""


@dataclass(frozen=True)
class Options:
    """The options of the command line."""

    quick: bool
    attnshape: tuple[str, ...]
    """The command that runs attnshape."""

    def rounds(self, usual: int) -> int:
        """Return the number of rounds: `usual`, or fewer with --quick."""
        return max(2, usual // 4) if self.quick else usual


class NotMeasuredError(Exception):
    """Something can't be measured here; the message is the reason."""


@dataclass(frozen=True)
class Measured(Generic[Sample]):
    """The samples of each successful task, one per round, and the reason for each failure."""

    samples: Mapping[str, Sequence[Sample]]
    missing: Mapping[str, str]


def output_of(command: Sequence[str]) -> str:
    """Run a command in the project's folder and return its output."""
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=TIME_LIMIT
        )
    except OSError as error:
        raise NotMeasuredError(f"{command[0]}: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise NotMeasuredError(f"took more than {TIME_LIMIT} s") from error
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise NotMeasuredError(f"exit status {done.returncode}: {reason}")
    return done.stdout


def wall_time(command: Sequence[str]) -> float:
    """Return the seconds that a whole process takes, with its output read through a pipe."""
    start = time.perf_counter()
    output_of(command)
    return time.perf_counter() - start


def cpu_time(command: Sequence[str]) -> float:
    """Return the seconds that a process, and those that it waits for, keep processors busy.

    On a machine that others use too this varies less than the time that passes.
    """
    before = os.times()
    output_of(command)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def interleaved(tasks: Mapping[str, Callable[[], Sample]], rounds: int) -> Measured[Sample]:
    """Take one sample of each task per round, after a round that only warms up the file caches."""
    samples: dict[str, list[Sample]] = {label: [] for label in tasks}
    missing: dict[str, str] = {}
    for number in range(rounds + 1):
        print(f"round {number} of {rounds}: {', '.join(samples)}", file=sys.stderr)
        for label in list(samples):
            try:
                sample = tasks[label]()
            except NotMeasuredError as error:
                missing[label] = str(error)
                del samples[label]
                continue
            if number > 0:
                samples[label].append(sample)
    return Measured(samples, missing)

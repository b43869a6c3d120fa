"""What the families have in common: a case, its verdict, and the drawing of cases from a Hypothesis strategy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

from tests.fuzz.harness import Command, Harness, Outcome, changes, contents

ALL_HEALTH_CHECKS = list(HealthCheck)


@dataclass
class Verdict:
    """What came out of a case."""

    valid: bool
    """Whether the case is one that attnshape should carry out."""
    statuses: list[int] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    skipped: str = ""
    """Why the case could not be tried on this machine."""
    seconds: float = 0.0
    work: Mapping[str, float] = field(default_factory=dict)
    """Seconds by what was run."""


@dataclass(frozen=True)
class Family:
    """A family of cases: how to draw one, and how to try it."""

    name: str
    strategy: Callable[[Harness], SearchStrategy[Any]]
    attempt: Callable[[Any, Harness], Verdict]
    describe: Callable[[Any], str]
    """Returns what somebody needs to reproduce a case by hand."""
    fixed_cases: int
    """How many cases the tests try."""
    long_cases: int
    table: Callable[[], Sequence[Any]] | None = None
    """Returns all cases, of a family that has so few that each is tried, in this order."""


def drawn(family: Family, harness: Harness, number: int, count: int) -> list[Any]:
    """Return the cases of a seed: the same ones whenever it is called."""
    if family.table is not None:
        table = family.table()
        return [table[place % len(table)] for place in range(number * count, (number + 1) * count)]
    cases: dict[str, Any] = {}

    @seed(number)
    @settings(
        max_examples=2 * count,  # some of them are alike
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=ALL_HEALTH_CHECKS,
    )
    @given(family.strategy(harness))
    def collect(case: Any) -> None:
        cases.setdefault(family.describe(case), case)

    collect()
    return list(cases.values())[:count]


def run_in(
    harness: Harness,
    files: Mapping[str, bytes],
    command: Command,
    verdict: Verdict,
    written: Sequence[str] = (),
    statuses: Sequence[int] = (0, 1, 2),
    inspect: Callable[[Outcome, Path], None] | None = None,
    prints_errors: bool = False,
) -> Outcome:
    """Run a command in a folder with these files, and add to the verdict what is wrong whatever it was.

    `written` are the files that it may write; `inspect` looks at the folder before it is removed.
    """
    with harness.case_folder(files) as folder:
        before = contents(folder)
        outcome = harness.run(command, folder)
        after = contents(folder) if folder.exists() else {}
        if inspect is not None:
            inspect(outcome, folder)
    verdict.statuses.append(outcome.status)
    verdict.seconds += outcome.seconds
    if outcome.unsupported:
        verdict.skipped = outcome.err.strip()
        return outcome
    verdict.problems += [*outcome.problems(statuses, prints_errors), *changes(before, after, written)]
    return outcome


def failure_of(action: Callable[[], object]) -> str | None:
    """Return the message of an assertion that fails, or of a parser's error; None if there is none."""
    try:
        action()
    except Exception as error:  # noqa: BLE001 - every error of a parser counts
        return f"{type(error).__name__}: {str(error)[:600]}"
    return None


def checked(verdict: Verdict, what: str, action: Callable[[], object]) -> None:
    """Add to the verdict that an assertion about some output fails."""
    problem = failure_of(action)
    if problem is not None:
        verdict.problems.append(f"{what}: {problem}")


def assert_budget(family: Family, harness: Harness) -> None:
    """Try as many cases of a family as the tests have time for, always the same, and assert that none fails."""
    failures = []
    for case in drawn(family, harness, 0, family.fixed_cases):
        verdict = family.attempt(case, harness)
        if verdict.problems:
            failures.append("\n".join([family.describe(case), *(f"    {problem}" for problem in verdict.problems)]))
    assert not failures, f"{len(failures)} cases:\n" + "\n".join(failures)

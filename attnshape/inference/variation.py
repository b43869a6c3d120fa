"""The runs of a target at small sizes, and how far they take the steps of the user's run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from attnshape.inference.plan import Plan
from attnshape.tracing.raw import RawStep, RawTrace


@dataclass(frozen=True)
class Variation:
    """The runs at small primes, and how far they took the same steps as the user's run."""

    plan: Plan
    actual: RawTrace
    """The user's run, with one turn of each loop that turns as often as a size says."""
    runs: tuple[RawTrace, ...]
    """The rounds at primes."""
    common: int
    """The number of leading steps that are the same in all runs."""
    complete: bool
    """Whether all steps are the same, and end the same way."""
    witnesses: tuple[tuple[Mapping[str, int], RawTrace], ...] = ()
    """Runs at other sizes, no primes, at which every formula must hold too."""
    others: tuple[Mapping[str, int], ...] = ()
    """Sizes that were tried, and at which the target takes other steps."""

    @property
    def every(self) -> list[tuple[Mapping[str, int], RawTrace]]:
        """All runs with their sizes, the rounds first."""
        return [(self.plan.numbers(round_), run) for round_, run in enumerate(self.runs)] + list(self.witnesses)


def alone(plan: Plan, actual: RawTrace) -> Variation:
    """Return the variation of what can't be run again."""
    return Variation(plan, actual, runs=(), common=0, complete=False)


def common_steps(run: RawTrace, actual: RawTrace) -> int:
    """Return how many leading steps are the same."""
    count = 0
    for mine, theirs in zip(run.steps, actual.steps, strict=False):
        if mine.key != theirs.key or _ranks(mine) != _ranks(theirs):
            break
        count += 1
    return count


def _ranks(step: RawStep) -> list[int]:
    return [len(output.tensor.shape) for output in step.outputs]


def same(run: RawTrace, actual: RawTrace) -> bool:
    """Say whether a run took all the user's steps: and no others, unless the user's run failed."""
    if common_steps(run, actual) < len(actual.steps):
        return False
    return actual.failure is not None or (run.failure is None and len(run.steps) == len(actual.steps))


def newly_empty(run: RawTrace, actual: RawTrace) -> bool:
    """Say whether a tensor of a run has no elements that has some in the user's, as `x[4:]` where x has three."""
    return any(
        0 in mine.tensor.shape and 0 not in its.tensor.shape
        for step, twin in zip(run.steps, actual.steps, strict=False)
        for mine, its in zip(step.outputs, twin.outputs, strict=False)
    )

"""Runs the target again at small primes, and finds under which constraints it takes the user's steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from attnshape.inference import witness
from attnshape.inference.plan import Constraint, Equal, Fixed, Multiple, Plan
from attnshape.tracing.raw import RawStep, RawTrace

Attempt = Callable[[Mapping[str, int]], RawTrace]
_ROUNDS = 3
"""Two would do for products of sizes; the third keeps a sum, such as 7+13, from passing for one, such as 4*5."""
_PATIENCE = 4.0
"""Seconds after which no further constraints are tried."""
_LARGEST_FIXED = 4096
"""A size above this is never kept in a small run, which would be small no longer."""
_FACTORS = (2, 4, 8, 16, 32, 64, 3, 5, 6, 7, 12)


@dataclass(frozen=True)
class Variation:
    """The runs at small primes, and how far they took the same steps as the user's run."""

    plan: Plan
    runs: tuple[RawTrace, ...]
    """The rounds at primes."""
    common: int
    """The number of leading steps that are the same in all runs."""
    complete: bool
    """Whether all steps are the same, and end the same way."""
    witnesses: tuple[tuple[Mapping[str, int], RawTrace], ...] = ()
    """Runs at other sizes, no primes, at which every formula must hold too."""

    @property
    def every(self) -> list[tuple[Mapping[str, int], RawTrace]]:
        """All runs with their sizes, the rounds first."""
        return [(self.plan.numbers(round_), run) for round_, run in enumerate(self.runs)] + list(self.witnesses)


class Explorer:
    """Runs a target under plans, each plan and round once."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._done: dict[tuple[tuple[str, int], ...], RawTrace] = {}
        self._deadline = time.monotonic() + _PATIENCE

    def run(self, plan: Plan, round_: int) -> RawTrace:
        """Return what the target does in one round of a plan."""
        return self._at(plan.numbers(round_))

    def _at(self, numbers: Mapping[str, int]) -> RawTrace:
        key = tuple(numbers.items())
        if key not in self._done:
            self._done[key] = self._attempt(numbers)
        return self._done[key]

    def vary(self, plan: Plan, actual: RawTrace) -> Variation:
        """Return the variation with the fewest constraints under which the target takes the user's steps."""
        best = self._try(plan, actual)
        if not best.complete:
            # the very first call may have set something up; only what differs again differs because of its sizes
            self._done.clear()
            best = self._try(plan, actual)
        while not best.complete:
            found = self._improve(best, actual)
            if found is None:
                break
            best = found
        best = best if best.complete else self._free_from_fixed(best, actual)
        return self._witnessed(best, actual, [witness.reverse(best.plan), *witness.large(best.plan)])

    def extend(self, variation: Variation, actual: RawTrace, rounds: int) -> Variation:
        """Return the variation with more rounds and witnesses, as far as these take the same steps."""
        runs = list(variation.runs)
        for round_ in range(len(runs), rounds):
            run = self.run(variation.plan, round_)
            if _common(run, actual) < variation.common:
                break
            runs.append(run)
        variation = replace(variation, runs=tuple(runs))
        return self._witnessed(variation, actual, witness.mixed(variation.plan))

    def _witnessed(self, variation: Variation, actual: RawTrace, choices: Iterable[Mapping[str, int]]) -> Variation:
        """Add the runs at the chosen numbers of the unknowns that take the same steps."""
        added = list(variation.witnesses)
        for chosen in choices:
            if time.monotonic() > self._deadline or not variation.runs:
                break
            numbers = variation.plan.at(chosen)
            run = self._at(numbers)
            if _common(run, actual) >= variation.common and (_same(run, actual) or not variation.complete):
                added.append((numbers, run))
        return replace(variation, witnesses=tuple(added))

    def _try(self, plan: Plan, actual: RawTrace) -> Variation:
        runs: list[RawTrace] = []
        common = len(actual.steps)
        complete = True
        for round_ in range(_ROUNDS):
            run = self.run(plan, round_)
            runs.append(run)
            common = min(common, _common(run, actual))
            complete = complete and _same(run, actual)
            if not complete:
                break
        return Variation(plan, tuple(runs), common, complete)

    def _improve(self, best: Variation, actual: RawTrace) -> Variation | None:
        """Return the first constraint that completes the steps, else the one that gets furthest beyond the best."""
        furthest: Variation | None = None
        for plan in self._stricter(best, actual):
            if time.monotonic() > self._deadline:
                break
            found = self._try(plan, actual)
            if found.common > best.common or found.complete:
                added = plan.constraints[len(best.plan.constraints) :]
                if added and self._only_larger(found, added[0], actual):
                    continue
            if found.complete:
                return found
            if found.common > (furthest or best).common:
                furthest = found
        return furthest

    def _stricter(self, best: Variation, actual: RawTrace) -> Iterator[Plan]:
        """Yield plans with one constraint more: on the sizes that matter where these can be told, else on any."""
        plan = best.plan
        if not plan.ordered:
            yield replace(plan, ordered=True)
        fixes = [c for c in _candidates(plan) if isinstance(c, Fixed)]
        tried = [(fix.symbol, self._try(_with(plan, fix), actual)) for fix in fixes]
        matter = {symbol for symbol, found in tried if found.complete or found.common > best.common}
        for constraint in _candidates(plan):
            if not matter or constraint.symbol in matter:
                yield _with(plan, constraint)

    def _only_larger(self, found: Variation, added: Constraint, actual: RawTrace) -> bool:
        """Say whether a multiple helps only by its size: the next number, no multiple, takes the same steps."""
        if not isinstance(added, Multiple):
            return False
        numbers = found.plan.numbers(0)
        sizes = found.plan.sizes
        beside = {letter: numbers[letter] + (letter == added.symbol) for letter in sizes.independent}
        return _common(self._at(sizes.at(beside)), actual) >= found.common

    def _free_from_fixed(self, best: Variation, actual: RawTrace) -> Variation:
        """Fix all sizes, then free one after the other while the steps stay the same."""
        sizes = best.plan.sizes
        letters = list(sizes.independent)
        if any(sizes.records[letter].size > _LARGEST_FIXED for letter in letters):
            return best
        kept = [Fixed(letter) for letter in letters]
        found = self._try(replace(best.plan, constraints=tuple(kept)), actual)
        if not found.complete:
            return found if found.common > best.common else best
        for constraint in list(kept):
            if time.monotonic() > self._deadline:
                break
            fewer = tuple(other for other in kept if other != constraint)
            freed = self._try(replace(best.plan, constraints=fewer), actual)
            if freed.complete:
                kept.remove(constraint)
                found = freed
        return found


def _common(run: RawTrace, actual: RawTrace) -> int:
    """Return how many leading steps are the same."""
    count = 0
    for mine, theirs in zip(run.steps, actual.steps, strict=False):
        if mine.key != theirs.key or _ranks(mine) != _ranks(theirs):
            break
        count += 1
    return count


def _ranks(step: RawStep) -> list[int]:
    return [len(output.tensor.shape) for output in step.outputs]


def _same(run: RawTrace, actual: RawTrace) -> bool:
    """Say whether a run took all the user's steps: and no others, unless the user's run failed."""
    if _common(run, actual) < len(actual.steps):
        return False
    return actual.failure is not None or (run.failure is None and len(run.steps) == len(actual.steps))


def _with(plan: Plan, constraint: Constraint) -> Plan:
    return replace(plan, constraints=(*plan.constraints, constraint))


def _candidates(plan: Plan) -> Iterator[Constraint]:
    """Yield the constraints that the user's own sizes meet, the simplest first."""
    numbers = plan.sizes.numbers
    taken = {constraint.symbol for constraint in plan.constraints}
    free = [letter for letter in plan.sizes.independent if letter not in taken]
    for letter in free:
        if numbers[letter] == 1:
            yield Fixed(letter)
    for letter in free:
        if numbers[letter] % 2 == 0:
            yield Multiple(letter, 2)
    roots = [c.other for c in plan.constraints if isinstance(c, Equal)]
    for place, letter in enumerate(free):
        for other in free[:place]:
            if numbers[letter] == numbers[other] and letter not in roots:
                yield Equal(letter, other)
    for letter in free:
        for other in plan.sizes.independent:
            whole = numbers[letter] % numbers[other] == 0 and numbers[letter] > numbers[other]
            if other != letter and whole and other in plan.symbols and letter not in roots:
                yield Multiple(letter, other)
    for letter in free:
        for factor in _FACTORS[1:]:
            if numbers[letter] % factor == 0:
                yield Multiple(letter, factor)
    for letter in free:
        if 1 < numbers[letter] <= _LARGEST_FIXED:
            yield Fixed(letter)

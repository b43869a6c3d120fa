"""Run a target at small sizes at which it takes the user's steps, until the formulas of its numbers are settled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from attnshape.inference.plan import (
    LARGEST_FIXED,
    Constraint,
    Fixed,
    Multiple,
    Plan,
    candidates,
    large_sizes,
    mixed_sizes,
    related,
    reversed_sizes,
)
from attnshape.inference.small_runs import Samples, SmallRuns, common_steps, takes_same_steps
from attnshape.tracing.raw import RawTrace

ENOUGH_ROUNDS = 4
"""Rounds after which a sum or a rounded quotient isn't a coincidence."""

_MOST_TIES, _MOST_TIED = 4, 60
"""How many constraints at once may tie sizes to each other, and how many sets of them are tried."""

Solution = TypeVar("Solution")


def sample_and_solve(
    runs: SmallRuns, plan: Plan, actual: RawTrace, solve: Callable[[Samples], tuple[Solution, bool]]
) -> tuple[Samples, Solution]:
    """Run a target at small sizes, solve for its formulas, and run it at more sizes where they aren't settled.

    The plan has only the constraints that are known beforehand; the small runs must take the steps of `actual`. `solve`
    returns the solution for its samples, and whether it is settled.
    """
    runs.budget.allow_for(actual)
    sampler = Sampler(runs)
    samples = sampler.sample(plan, actual)
    solution, settled = solve(samples)
    if not settled:
        samples = sampler.extend(samples, ENOUGH_ROUNDS)
        solution, _ = solve(samples)
    samples = replace(samples, left_out=len(runs.left_out), timed_out=runs.timed_out, cut_short=runs.cut_short)
    return replace(samples, work=runs.growth.estimate), solution


class Sampler:
    """Searches for the constraints on the sizes under which small runs take the user's steps."""

    def __init__(self, runs: SmallRuns) -> None:
        self._runs = runs

    def sample(self, plan: Plan, actual: RawTrace) -> Samples:
        """Return samples under the fewest constraints under which the target takes the user's steps."""
        best = self._runs.try_plan(plan, actual)
        if not best.complete:
            # the very first call may have set something up; only what differs again differs because of its sizes
            self._runs.forget()
            best = self._runs.try_plan(plan, actual)
        self._runs.purpose = "" if best.complete else "searching for constraints on the sizes: "
        while not best.complete and not best.left_out:
            if any(self._runs.fold_loops([best.actual, *runs]) for runs in self._runs_to_fold(best.plan)):
                best = self._runs.try_plan(best.plan, self._runs.folded(best.actual))
            elif (better := self._improve(best)) is not None:
                best = better
            else:
                best = self._free_from_fixed(best)
                break
        self._runs.purpose = ""
        samples = self._validated(best)
        diverging = samples.diverging if samples.complete else ()
        if any(self._runs.fold_loops([samples.actual, self._runs.at(numbers)]) for numbers in diverging):
            # the loop had equally many iterations at all primes
            samples = self._validated(self._runs.try_plan(best.plan, self._runs.folded(samples.actual)))
        return self._with_missing_multiple(samples) or samples

    def extend(self, samples: Samples, rounds: int) -> Samples:
        """Return the samples with more rounds and validation runs, as far as these take the same steps."""
        runs, diverging = list(samples.runs), list(samples.diverging)
        for round_ in range(len(runs), rounds):
            if self._runs.is_far_too_large(samples.plan, round_):
                break
            if self._runs.is_costly(samples.plan, samples.plan.primes(round_)):
                self._runs.leave_out(samples.plan.numbers(round_))
                break
            run = self._runs.run(samples.plan, round_)
            if common_steps(run, samples.actual) < samples.common:
                diverging.append(samples.plan.numbers(round_))
                break
            runs.append(run)
        more = mixed_sizes(self._runs.with_measured_powers(samples.plan))
        samples = self._with_runs_at(replace(samples, runs=tuple(runs), diverging=tuple(diverging)), more)
        constrained = self._with_missing_multiple(samples)
        return self.extend(constrained, rounds) if constrained is not None else samples

    def _validated(self, samples: Samples) -> Samples:
        weighed = self._runs.with_measured_powers(samples.plan)
        return self._with_runs_at(samples, [*reversed_sizes(weighed), *large_sizes(weighed)])

    def _with_runs_at(self, samples: Samples, choices: Iterable[Mapping[str, int]]) -> Samples:
        """Add the runs at the chosen numbers of the unknowns that take the same steps."""
        added, diverging = list(samples.validation), list(samples.diverging)
        for chosen in choices:
            numbers = samples.plan.at(chosen)
            if not self._runs.affords(numbers):
                self._runs.leave_out(numbers)
                continue
            if self._runs.exhausted or not samples.runs:
                break
            run = self._runs.at(numbers)
            if samples.are_matched_by(run):
                added.append((numbers, run))
            else:
                diverging.append(numbers)
        return replace(samples, validation=tuple(added), diverging=tuple(diverging))

    def _with_missing_multiple(self, samples: Samples) -> Samples | None:
        """Return samples under the multiple without which runs fail; all primes may have been 1 above one."""
        failed = [numbers for numbers in samples.diverging if self._runs.fails(numbers)]
        if not failed or not samples.complete or samples.actual.failure is not None:
            return None
        # first those of numbers alone: what needs an even number often takes a multiple of an even size too
        for constraint in sorted(_multiples(samples.plan), key=lambda multiple: multiple.other is not None):
            if self._runs.exhausted:
                break
            met = [constraint.next(numbers) for numbers in failed]
            if all(self._works_at(numbers, samples) for numbers in met) and not any(
                all(self._works_at(near, samples) for near in constraint.near_misses(numbers)) for numbers in met
            ):
                constrained = self._runs.try_plan(samples.plan.under(constraint), samples.actual)
                if constrained.complete:
                    return self._validated(constrained)
        return None

    def _works_at(self, numbers: Mapping[str, int], samples: Samples) -> bool:
        """Return whether the target takes the user's steps where the independent sizes have these numbers."""
        run = self._runs.at(_without_constraints(numbers, samples.plan))
        return run.failure is None and takes_same_steps(run, samples.actual)

    def _runs_to_fold(self, plan: Plan) -> Iterator[Sequence[RawTrace]]:
        """Yield two runs; where they fail, two at multiples too, at which later loops may be reached."""
        for tried in (plan, *(plan.under(multiple) for multiple in _multiples(plan) if multiple.other is None)):
            if self._runs.exhausted or self._runs.folds:
                return
            runs = [self._runs.run(tried, round_) for round_ in range(2)]
            yield runs
            if all(run.failure is None for run in runs):
                return

    def _improve(self, best: Samples) -> Samples | None:
        """Return the first constraint that completes the steps, else the one that gets furthest beyond the best."""
        furthest = best
        for plan in self._stricter(best):
            if self._runs.exhausted:
                break
            samples = self._runs.try_plan(plan, best.actual)
            added = plan.constraints[len(best.plan.constraints) :]
            if added and (samples.common > best.common or samples.complete) and self._is_by_size(samples, added[0]):
                continue
            if samples.complete:
                return self._weaker(samples) or samples
            if samples.common > furthest.common:
                furthest = samples
        return furthest if furthest is not best else None

    def _weaker(self, samples: Samples) -> Samples | None:
        """Return samples in which a multiple of another size needs to be one of a number only."""
        last = samples.plan.constraints[-1] if samples.plan.constraints else None
        if not isinstance(last, Multiple) or last.other is None:
            return None
        plan = replace(samples.plan, constraints=samples.plan.constraints[:-1])
        for multiple in _multiples(plan):
            if multiple.other is None and multiple.symbol == last.symbol and not self._runs.exhausted:
                weaker = self._runs.try_plan(plan.under(multiple), samples.actual)
                if weaker.complete and not self._is_by_size(weaker, multiple):
                    return weaker
        return None

    def _stricter(self, best: Samples) -> Iterator[Plan]:
        """Yield plans with one constraint more: on the sizes that matter where these can be told, else on any."""
        plan = best.plan
        if not plan.ordered:
            yield replace(plan, ordered=True)
        fixes = [c for c in candidates(plan.sizes, plan.constraints) if isinstance(c, Fixed)]
        tried = [(fix.symbol, self._runs.try_plan(plan.under(fix), best.actual)) for fix in fixes]
        matter = {symbol for symbol, samples in tried if samples.complete or samples.common > best.common}
        for constraint in candidates(plan.sizes, plan.constraints):
            if not matter or constraint.symbol in matter:
                stricter = plan.under(constraint)
                # the order is given up where it makes the runs too large
                yield replace(stricter, ordered=stricter.ordered and not stricter.is_large)

    def _is_by_size(self, samples: Samples, added: Constraint) -> bool:
        """Return whether a multiple helps only by its size: the numbers next to it take the same steps too."""
        return isinstance(added, Multiple) and all(
            common_steps(self._runs.at(_without_constraints(near, samples.plan)), samples.actual) >= samples.common
            for near in added.near_misses(samples.plan.numbers(0))
        )

    def _free_from_fixed(self, best: Samples) -> Samples:
        """Fix all sizes, then free one after the other while the steps stay the same."""
        sizes = best.plan.sizes
        waiting = list(sizes.independent)
        if any(sizes.records[symbol].size > LARGEST_FIXED for symbol in waiting):
            return best
        samples = self._runs.try_plan(replace(best.plan, constraints=tuple(map(Fixed, waiting))), best.actual)
        if not samples.complete:
            return samples if samples.common > best.common else best
        samples = self._freed_alone(waiting, samples, bound=False)
        while (freed := self._freed_together(samples)) is not None:
            samples = freed
        return self._freed_alone(samples.plan.fixed, samples, bound=True)

    def _freed_alone(self, waiting: Sequence[str], samples: Samples, bound: bool) -> Samples:
        """Return samples in which fixed sizes vary too, one after the other; with `bound`, under a constraint."""
        while freed := [one for one in waiting if (looser := self._freed(one, samples, bound)) and (samples := looser)]:
            waiting = [symbol for symbol in waiting if symbol not in freed]
        return samples

    def _freed_together(self, samples: Samples) -> Samples | None:
        """Return samples in which fixed sizes vary that constraints tie to each other, the fewest at once."""
        waiting, tried = samples.plan.fixed, 0
        loose = tuple(c for c in samples.plan.constraints if c.symbol not in waiting)
        plan = replace(samples.plan, constraints=loose)
        for count in range(1, min(len(waiting), _MOST_TIES + 1)):
            for ties in _ties(plan, waiting, count):
                tied = {name for tie in ties for name in (tie.symbol, *related(tie))}
                fixed = [Fixed(symbol) for symbol in waiting if symbol not in tied]
                tried += 1
                if self._runs.exhausted or tried > _MOST_TIED:
                    return None
                freed = self._runs.try_plan(replace(plan, constraints=(*loose, *ties, *fixed)), samples.actual)
                if freed.complete:
                    return freed
        return None

    def _freed(self, symbol: str, samples: Samples, bound: bool) -> Samples | None:
        """Return samples in which one fixed size varies too, freely or `bound` by a constraint."""
        plan = replace(samples.plan, constraints=tuple(c for c in samples.plan.constraints if c.symbol != symbol))
        constraints = [c for c in candidates(plan.sizes, plan.constraints) if c.symbol == symbol] if bound else []
        for freer in (plan, *map(plan.under, constraints)):
            if self._runs.exhausted:
                return None
            # one that follows from fixed sizes doesn't vary
            if symbol in freer.symbols and (freed := self._runs.try_plan(freer, samples.actual)).complete:
                return freed
        return None


def _ties(plan: Plan, waiting: Sequence[str], count: int) -> Iterator[tuple[Constraint, ...]]:
    """Yield so many constraints at a time, each of which relates a waiting size to others that are waiting."""
    if not count:
        yield ()
        return
    ties = [c for c in candidates(plan.sizes, plan.constraints) if c.symbol in waiting and related(c)]
    for tie in ties:
        simple = not isinstance(tie, Multiple) or tie.factor == 1
        if simple and all(name in waiting for name in related(tie)):
            # those of earlier sizes come first, so that no set of ties is tried twice
            later = waiting[waiting.index(tie.symbol) + 1 :]
            for others in _ties(plan.under(tie), waiting, count - 1):
                if all(other.symbol in later for other in others):
                    yield (tie, *others)


def _without_constraints(numbers: Mapping[str, int], plan: Plan) -> dict[str, int]:
    """Return all sizes where the independent ones have these numbers."""
    return plan.sizes.at({symbol: numbers[symbol] for symbol in plan.sizes.independent})


def _multiples(plan: Plan) -> list[Multiple]:
    return [c for c in candidates(plan.sizes, plan.constraints) if isinstance(c, Multiple)]

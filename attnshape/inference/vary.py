"""Finds under which constraints the target takes the user's steps at small primes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from attnshape.inference import witness
from attnshape.inference.constraint import LARGEST_FIXED, Constraint, Fixed, Multiple, candidates
from attnshape.inference.plan import Plan
from attnshape.inference.small_runs import SmallRuns
from attnshape.inference.variation import Variation, common_steps, newly_empty, same
from attnshape.tracing.raw import RawTrace


class Explorer:
    """Looks for a plan under which small runs take the user's steps."""

    def __init__(self, runs: SmallRuns) -> None:
        self._runs = runs

    def vary(self, plan: Plan, actual: RawTrace) -> Variation:
        """Return the variation with the fewest constraints under which the target takes the user's steps."""
        best = self._runs.try_plan(plan, actual)
        if not best.complete:
            # the very first call may have set something up; only what differs again differs because of its sizes
            self._runs.forget()
            best = self._runs.try_plan(plan, actual)
        self._runs.aim = "" if best.complete else "looking for what the sizes must meet: "
        while not best.complete:
            if any(self._runs.fold_loops([actual, *runs]) for runs in self._runs_to_fold(best.plan)):
                actual = self._runs.folded(actual)
                best = self._runs.try_plan(best.plan, actual)
                continue
            found = self._improve(best, actual)
            if found is None:
                break
            best = found
        best = best if best.complete else self._free_from_fixed(best, actual)
        self._runs.aim = ""
        witnessed = self._with_witnesses(best, actual)
        others = witnessed.others if best.complete else ()
        if any(self._runs.fold_loops([actual, self._runs.at(numbers)]) for numbers in others):
            # a loop that turned equally often at all primes
            actual = self._runs.folded(actual)
            witnessed = self._with_witnesses(self._runs.try_plan(best.plan, actual), actual)
        if self._fails(witnessed, actual):
            witnessed = self._explained(witnessed, actual) or witnessed
        return replace(witnessed, actual=actual)

    def _with_witnesses(self, best: Variation, actual: RawTrace) -> Variation:
        weighed = self._runs.weighed_again(best.plan)
        return self._witnessed(best, actual, [*witness.reverse(weighed), *witness.large(weighed)])

    def _fails(self, witnessed: Variation, actual: RawTrace) -> bool:
        """Say whether the target fails at some sizes, and not at the user's."""
        failed = any(map(self._runs.fails, witnessed.others))
        return witnessed.complete and actual.failure is None and failed

    def _explained(self, witnessed: Variation, actual: RawTrace) -> Variation | None:
        """Return the variation with the multiple without which runs fail; all primes may have been 1 above one."""
        plan = witnessed.plan
        failed = [numbers for numbers in witnessed.others if self._runs.fails(numbers)]
        multiples = _multiples(plan)
        # first those of numbers alone: what needs an even number often takes a multiple of an even size too
        for constraint in sorted(multiples, key=lambda multiple: multiple.other is not None):
            if self._runs.spent:
                break
            met = [constraint.next(numbers) for numbers in failed]
            if all(self._takes(one, plan, actual) for one in met) and not any(
                all(self._takes(beside, plan, actual) for beside in constraint.beside(one)) for one in met
            ):
                found = self._runs.try_plan(_with(plan, constraint), actual)
                if found.complete:
                    return self._with_witnesses(found, actual)
        return None

    def _takes(self, numbers: Mapping[str, int], plan: Plan, actual: RawTrace) -> bool:
        """Say whether the target takes the user's steps at these sizes."""
        run = self._runs.at(self._free(numbers, plan))
        return run.failure is None and same(run, actual)

    def _runs_to_fold(self, plan: Plan) -> Iterator[Sequence[RawTrace]]:
        """Yield two runs; where they fail, two at multiples too, at which the loops behind may be reached."""
        for tried in (plan, *(_with(plan, multiple) for multiple in _multiples(plan) if multiple.other is None)):
            if self._runs.spent or self._runs.folds:
                return
            runs = [self._runs.run(tried, round_) for round_ in range(2)]
            yield runs
            if all(run.failure is None for run in runs):
                return

    def extend(self, variation: Variation, rounds: int) -> Variation:
        """Return the variation with more rounds and witnesses, as far as these take the same steps."""
        actual = variation.actual
        runs, others = list(variation.runs), list(variation.others)
        for round_ in range(len(runs), rounds):
            if self._runs.is_far_too_large(variation.plan, round_):
                break
            run = self._runs.run(variation.plan, round_)
            if common_steps(run, actual) < variation.common:
                others.append(variation.plan.numbers(round_))
                break
            runs.append(run)
        more = witness.mixed(self._runs.weighed_again(variation.plan))
        variation = self._witnessed(replace(variation, runs=tuple(runs), others=tuple(others)), actual, more)
        explained = self._explained(variation, actual) if self._fails(variation, actual) else None
        return self.extend(explained, rounds) if explained is not None else variation

    def _witnessed(self, variation: Variation, actual: RawTrace, choices: Iterable[Mapping[str, int]]) -> Variation:
        """Add the runs at the chosen numbers of the unknowns that take the same steps."""
        added, others = list(variation.witnesses), list(variation.others)
        for chosen in choices:
            if self._runs.spent or not variation.runs:
                break
            numbers = variation.plan.at(chosen)
            run = self._runs.at(numbers)
            taken = common_steps(run, actual) >= variation.common and (same(run, actual) or not variation.complete)
            if taken and not newly_empty(run, actual):
                added.append((numbers, run))
            else:
                others.append(numbers)
        return replace(variation, witnesses=tuple(added), others=tuple(others))

    def _improve(self, best: Variation, actual: RawTrace) -> Variation | None:
        """Return the first constraint that completes the steps, else the one that gets furthest beyond the best."""
        furthest: Variation | None = None
        for plan in self._stricter(best, actual):
            if self._runs.spent:
                break
            found = self._runs.try_plan(plan, actual)
            if found.common > best.common or found.complete:
                added = plan.constraints[len(best.plan.constraints) :]
                if added and self._only_larger(found, added[0], actual):
                    continue
            if found.complete:
                return self._weaker(found, actual) or found
            if found.common > (furthest or best).common:
                furthest = found
        return furthest

    def _weaker(self, found: Variation, actual: RawTrace) -> Variation | None:
        """Return the variation in which a multiple of another size needs to be one of a number only."""
        last = found.plan.constraints[-1] if found.plan.constraints else None
        if not isinstance(last, Multiple) or last.other is None:
            return None
        plan = replace(found.plan, constraints=found.plan.constraints[:-1])
        for multiple in _multiples(plan):
            if multiple.other is None and multiple.symbol == last.symbol and not self._runs.spent:
                weaker = self._runs.try_plan(_with(plan, multiple), actual)
                if weaker.complete and not self._only_larger(weaker, multiple, actual):
                    return weaker
        return None

    def _stricter(self, best: Variation, actual: RawTrace) -> Iterator[Plan]:
        """Yield plans with one constraint more: on the sizes that matter where these can be told, else on any."""
        plan = best.plan
        if not plan.ordered:
            yield replace(plan, ordered=True)
        fixes = [c for c in candidates(plan.sizes, plan.constraints) if isinstance(c, Fixed)]
        tried = [(fix.symbol, self._runs.try_plan(_with(plan, fix), actual)) for fix in fixes]
        matter = {symbol for symbol, found in tried if found.complete or found.common > best.common}
        for constraint in candidates(plan.sizes, plan.constraints):
            if not matter or constraint.symbol in matter:
                stricter = _with(plan, constraint)
                # the order is given up where it makes the runs too large
                yield replace(stricter, ordered=stricter.ordered and not stricter.is_large)

    def _only_larger(self, found: Variation, added: Constraint, actual: RawTrace) -> bool:
        """Say whether a multiple helps only by its size: the next numbers, no multiples, take the same steps."""
        if not isinstance(added, Multiple):
            return False
        numbers = found.plan.numbers(0)
        return all(
            common_steps(self._runs.at(self._free(beside, found.plan)), actual) >= found.common
            for beside in added.beside(numbers)
        )

    @staticmethod
    def _free(numbers: Mapping[str, int], plan: Plan) -> dict[str, int]:
        """Return all sizes where the independent ones have these numbers."""
        return plan.sizes.at({letter: numbers[letter] for letter in plan.sizes.independent})

    def _free_from_fixed(self, best: Variation, actual: RawTrace) -> Variation:
        """Fix all sizes, then free one after the other while the steps stay the same."""
        sizes = best.plan.sizes
        letters = list(sizes.independent)
        if any(sizes.records[letter].size > LARGEST_FIXED for letter in letters):
            return best
        found = self._runs.try_plan(replace(best.plan, constraints=tuple(Fixed(letter) for letter in letters)), actual)
        if not found.complete:
            return found if found.common > best.common else best
        waiting = letters
        while waiting:
            freed = [
                letter for letter in waiting if (looser := self._freed(letter, found, actual)) and (found := looser)
            ]
            waiting = [letter for letter in waiting if letter not in freed] if freed else []
        return found

    def _freed(self, letter: str, found: Variation, actual: RawTrace) -> Variation | None:
        """Return the variation in which one fixed size varies too, as freely as it may."""
        others = tuple(constraint for constraint in found.plan.constraints if constraint.symbol != letter)
        plan = replace(found.plan, constraints=others)
        bound = [c for c in candidates(plan.sizes, plan.constraints) if c.symbol == letter and not isinstance(c, Fixed)]
        for freer in (plan, *(_with(plan, constraint) for constraint in bound)):
            if self._runs.spent:
                return None
            freed = self._runs.try_plan(freer, actual)
            if freed.complete:
                return freed
        return None


def _multiples(plan: Plan) -> list[Multiple]:
    """Return the multiples that the user's own sizes meet."""
    return [c for c in candidates(plan.sizes, plan.constraints) if isinstance(c, Multiple)]


def _with(plan: Plan, constraint: Constraint) -> Plan:
    return replace(plan, constraints=(*plan.constraints, constraint))

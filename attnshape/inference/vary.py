"""Runs the target again at small primes, and finds under which constraints it takes the user's steps."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from attnshape.inference import witness
from attnshape.inference.constraint import LARGEST_FIXED, Constraint, Fixed, Multiple, candidates
from attnshape.inference.loops import Folding, folding
from attnshape.inference.monomial import multiplicity
from attnshape.inference.plan import Plan
from attnshape.inference.variation import Variation, common_steps, newly_empty, same
from attnshape.inference.witness import is_length
from attnshape.tracing.raw import RawTrace

Attempt = Callable[[Mapping[str, int]], RawTrace]
Doing = Callable[[str], None]
"""Is told what is being done, in a few words for people."""
_ROUNDS = 3
"""Two would do for products of sizes; the third keeps a sum, such as 7+13, from passing for one, such as 4*5."""
_MOST_STEPS = 60_000
_STEPS_OF_A_RUN = 100
"""How many steps all runs may take before nothing further is tried, and what building the target counts for: counted
in steps, so that what is found doesn't depend on how busy the machine is."""
_PATIENCE = 60.0
"""Seconds after which nothing further is tried, however few the steps."""
_MANY = 10**5
_TINY = (2, 3, 5, 7, 11, 13, 17, 19, 23)
_UNEXPLAINED = 8
"""How many times larger than the product of sizes that divide it a tensor must be for more sizes to be in it."""


class Explorer:
    """Runs a target under plans, each plan and round once."""

    def __init__(
        self,
        attempt: Attempt,
        find_loops: Callable[[Sequence[RawTrace]], Folding | None] = folding,
        doing: Doing = lambda words: None,
    ) -> None:
        """`find_loops` tells which loops of runs that took other steps are to be folded."""
        self._attempt = attempt
        self._find_loops = find_loops
        self._doing = doing
        self._aim = ""
        self._runs = 0
        self._done: dict[tuple[tuple[str, int], ...], RawTrace] = {}
        self._folding: Folding | None = None
        self._steps = 0
        self._deadline = time.monotonic() + _PATIENCE

    def run(self, plan: Plan, round_: int) -> RawTrace:
        """Return what the target does in one round of a plan."""
        return self._at(plan.numbers(round_))

    def _at(self, numbers: Mapping[str, int]) -> RawTrace:
        key = tuple(numbers.items())
        if key not in self._done:
            self._runs += 1
            self._doing(f"{self._aim}run {self._runs} at small sizes")
            run = self._attempt(numbers)
            self._steps += _STEPS_OF_A_RUN + len(run.steps)
            self._done[key] = self._folded(run)
        return self._done[key]

    @property
    def _spent(self) -> bool:
        return self._steps > _MOST_STEPS or time.monotonic() > self._deadline

    def weighed(self, plan: Plan) -> Plan:
        """Return the plan with the power in which each unknown is part of the largest tensor of its first round."""
        if math.prod(plan.primes(0).values()) > _MANY:
            # with many sizes a first look at the smallest primes keeps the first round from being large
            plan = replace(plan, weights=self._weights(plan, dict(zip(plan.unknowns, _TINY, strict=False))))
        return replace(plan, weights=self._weights(plan, plan.primes(0)))

    def _weights(self, plan: Plan, primes: Mapping[str, int]) -> dict[str, int]:
        if len(primes) != len(plan.unknowns):
            return {}
        tensors = [output.tensor for step in self._at(plan.at(primes)).steps for output in step.outputs]
        if not tensors:
            return {}
        largest = max(math.prod(tensor.shape) for tensor in tensors)
        weights = {name: multiplicity(largest, prime) for name, prime in primes.items()}
        if largest > _UNEXPLAINED * math.prod(primes[name] ** weight for name, weight in weights.items()):
            # a length that was rounded is no factor any more
            weights = {name: weight + (weight > 0 and is_length(name)) for name, weight in weights.items()}
        return weights

    def vary(self, plan: Plan, actual: RawTrace) -> Variation:
        """Return the variation with the fewest constraints under which the target takes the user's steps."""
        best = self._try(plan, actual)
        if not best.complete:
            # the very first call may have set something up; only what differs again differs because of its sizes
            self._done.clear()
            best = self._try(plan, actual)
        self._aim = "" if best.complete else "looking for what the sizes must meet: "
        while not best.complete:
            if self._fold_loops([actual, *(self.run(best.plan, round_) for round_ in range(2))]):
                actual = self._folded(actual)
                best = self._try(best.plan, actual)
                continue
            found = self._improve(best, actual)
            if found is None:
                break
            best = found
        best = best if best.complete else self._free_from_fixed(best, actual)
        self._aim = ""
        witnessed = self._with_witnesses(best, actual)
        others = witnessed.others if best.complete else ()
        if any(self._fold_loops([actual, self._at(numbers)]) for numbers in others):
            # a loop that turned equally often at all primes
            actual = self._folded(actual)
            witnessed = self._with_witnesses(self._try(best.plan, actual), actual)
        if self._fails(witnessed, actual):
            witnessed = self._explained(witnessed, actual) or witnessed
        return replace(witnessed, actual=actual)

    def _with_witnesses(self, best: Variation, actual: RawTrace) -> Variation:
        weighed = self._weighed_again(best.plan)
        return self._witnessed(best, actual, [*witness.reverse(weighed), *witness.large(weighed)])

    def _fails(self, witnessed: Variation, actual: RawTrace) -> bool:
        """Say whether the target fails at some sizes, and not at the user's."""
        failed = any(self._at(numbers).failure is not None for numbers in witnessed.others)
        return witnessed.complete and actual.failure is None and failed

    def _explained(self, witnessed: Variation, actual: RawTrace) -> Variation | None:
        """Return the variation with a multiple at which no run fails; all primes may have been odd, or 1 above one."""
        for constraint in candidates(witnessed.plan.sizes, witnessed.plan.constraints):
            if self._spent or not isinstance(constraint, Multiple):
                continue
            found = self._try(_with(witnessed.plan, constraint), actual)
            if not found.complete:
                continue
            found = self._with_witnesses(found, actual)
            if found.witnesses and not self._fails(found, actual):
                return found
        return None

    def _fold_loops(self, runs: Sequence[RawTrace]) -> bool:
        """Say whether the runs are one but for the turns of loops; from now on these are folded."""
        if self._folding is not None:
            return False
        self._folding = self._find_loops(runs)
        if self._folding is None:
            return False
        self._done = {key: self._folded(run) for key, run in self._done.items()}
        return True

    def _folded(self, run: RawTrace) -> RawTrace:
        return self._folding.fold(run) if self._folding is not None else run

    def extend(self, variation: Variation, rounds: int) -> Variation:
        """Return the variation with more rounds and witnesses, as far as these take the same steps."""
        actual = variation.actual
        runs = list(variation.runs)
        for round_ in range(len(runs), rounds):
            run = self.run(variation.plan, round_)
            if common_steps(run, actual) < variation.common:
                break
            runs.append(run)
        variation = replace(variation, runs=tuple(runs))
        return self._witnessed(variation, actual, witness.mixed(self._weighed_again(variation.plan)))

    def _weighed_again(self, plan: Plan) -> Plan:
        """Return the plan weighed by what its first round does; constraints may have let it go further."""
        return replace(plan, weights=self._weights(plan, plan.primes(0)))

    def _witnessed(self, variation: Variation, actual: RawTrace, choices: Iterable[Mapping[str, int]]) -> Variation:
        """Add the runs at the chosen numbers of the unknowns that take the same steps."""
        added, others = list(variation.witnesses), list(variation.others)
        for chosen in choices:
            if self._spent or not variation.runs:
                break
            numbers = variation.plan.at(chosen)
            run = self._at(numbers)
            taken = common_steps(run, actual) >= variation.common and (same(run, actual) or not variation.complete)
            if taken and not newly_empty(run, actual):
                added.append((numbers, run))
            else:
                others.append(numbers)
        return replace(variation, witnesses=tuple(added), others=tuple(others))

    def _try(self, plan: Plan, actual: RawTrace) -> Variation:
        runs: list[RawTrace] = []
        shared = len(actual.steps)
        complete = True
        for round_ in range(_ROUNDS):
            run = self.run(plan, round_)
            runs.append(run)
            shared = min(shared, common_steps(run, actual))
            complete = complete and same(run, actual)
            if not complete:
                break
        return Variation(plan, actual, tuple(runs), shared, complete)

    def _improve(self, best: Variation, actual: RawTrace) -> Variation | None:
        """Return the first constraint that completes the steps, else the one that gets furthest beyond the best."""
        furthest: Variation | None = None
        for plan in self._stricter(best, actual):
            if self._spent:
                break
            found = self._try(plan, actual)
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
        """Return the variation in which a multiple of another size needs to be one of its factor only."""
        last = found.plan.constraints[-1] if found.plan.constraints else None
        if not isinstance(last, Multiple) or last.other is None or last.factor == 1:
            return None
        constraints = (*found.plan.constraints[:-1], Multiple(last.symbol, last.factor))
        weaker = self._try(replace(found.plan, constraints=constraints), actual)
        return weaker if weaker.complete else None

    def _stricter(self, best: Variation, actual: RawTrace) -> Iterator[Plan]:
        """Yield plans with one constraint more: on the sizes that matter where these can be told, else on any."""
        plan = best.plan
        if not plan.ordered:
            yield replace(plan, ordered=True)
        fixes = [c for c in candidates(plan.sizes, plan.constraints) if isinstance(c, Fixed)]
        tried = [(fix.symbol, self._try(_with(plan, fix), actual)) for fix in fixes]
        matter = {symbol for symbol, found in tried if found.complete or found.common > best.common}
        for constraint in candidates(plan.sizes, plan.constraints):
            if not matter or constraint.symbol in matter:
                yield _with(plan, constraint)

    def _only_larger(self, found: Variation, added: Constraint, actual: RawTrace) -> bool:
        """Say whether a multiple helps only by its size: the next numbers, no multiples, take the same steps."""
        if not isinstance(added, Multiple):
            return False
        numbers = found.plan.numbers(0)
        sizes = found.plan.sizes
        # half of a number one larger than a multiple of 4 is even too, when it is rounded down
        for more in (1, 2, 3) if added.other is not None else range(1, min(added.factor, 4)):
            beside = {letter: numbers[letter] + more * (letter == added.symbol) for letter in sizes.independent}
            if common_steps(self._at(sizes.at(beside)), actual) < found.common:
                return False
        return True

    def _free_from_fixed(self, best: Variation, actual: RawTrace) -> Variation:
        """Fix all sizes, then free one after the other while the steps stay the same."""
        sizes = best.plan.sizes
        letters = list(sizes.independent)
        if any(sizes.records[letter].size > LARGEST_FIXED for letter in letters):
            return best
        found = self._try(replace(best.plan, constraints=tuple(Fixed(letter) for letter in letters)), actual)
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
            if self._spent:
                return None
            freed = self._try(freer, actual)
            if freed.complete:
                return freed
        return None


def _with(plan: Plan, constraint: Constraint) -> Plan:
    return replace(plan, constraints=(*plan.constraints, constraint))

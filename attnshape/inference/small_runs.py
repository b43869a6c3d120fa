"""Runs of the target at small sizes: each once, bounded in size and in number, with loops folded."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from attnshape.inference.loops import Folding, folding
from attnshape.inference.monomial import multiplicity
from attnshape.inference.plan import TOO_MANY_ELEMENTS, Plan
from attnshape.inference.variation import Variation, common_steps, same
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
_LONG, _MOST_LONG = 2.0, 6
"""Seconds that make a run a long one, and how many of these there may be."""
_MANY = 10**5
_FAR_TOO_MANY = 3 * 10**7
"""Elements of a tensor that are not tried, as where one prime must be above the product of others."""
_TINY = (2, 3, 5, 7, 11, 13, 17, 19, 23)
_UNEXPLAINED = 8
"""How many times larger than the product of sizes that divide it a tensor must be for more sizes to be in it."""


class SmallRuns:
    """What a target does at small sizes."""

    def __init__(
        self,
        attempt: Attempt,
        find_loops: Callable[[Sequence[RawTrace]], Folding | None] = folding,
        doing: Doing = lambda words: None,
        patience: float = _PATIENCE,
    ) -> None:
        """`find_loops` tells which loops of runs that took other steps are to be folded.

        After `patience`, in seconds, nothing further is tried.
        """
        self._attempt = attempt
        self._find_loops = find_loops
        self._doing = doing
        self.aim = ""
        """What the runs are for, in words for people."""
        self._runs = 0
        self._done: dict[tuple[tuple[str, int], ...], RawTrace] = {}
        self._folding: Folding | None = None
        self._steps = 0
        self._long: set[tuple[tuple[str, int], ...]] = set()
        self._deadline = time.monotonic() + patience

    def run(self, plan: Plan, round_: int) -> RawTrace:
        """Return what the target does in one round of a plan."""
        return self.at(plan.numbers(round_))

    def at(self, numbers: Mapping[str, int]) -> RawTrace:
        """Return what the target does at these sizes."""
        key = tuple(numbers.items())
        if key not in self._done:
            self._runs += 1
            self._doing(f"{self.aim}run {self._runs} at small sizes")
            started = time.monotonic()
            run = self._attempt(numbers)
            if time.monotonic() - started > _LONG:
                self._long.add(key)
            self._steps += _STEPS_OF_A_RUN + len(run.steps)
            self._done[key] = self.folded(run)
        return self._done[key]

    def fails(self, numbers: Mapping[str, int]) -> bool:
        """Say whether the target fails at these sizes, and was not only ended because it took long."""
        return self.at(numbers).failure is not None and tuple(numbers.items()) not in self._long

    @property
    def spent(self) -> bool:
        """Whether nothing further is to be tried."""
        return self._steps > _MOST_STEPS or len(self._long) > _MOST_LONG or time.monotonic() > self._deadline

    def weighed(self, plan: Plan) -> Plan:
        """Return the plan with the power in which each unknown is part of the largest tensor of its first round."""
        if math.prod(plan.primes(0).values()) > _MANY:
            # with many sizes a first look at the smallest primes keeps the first round from being large
            plan = replace(plan, weights=self._weights(plan, dict(zip(plan.unknowns, _TINY, strict=False))))
        return replace(plan, weights=self._weights(plan, plan.primes(0)))

    def _weights(self, plan: Plan, primes: Mapping[str, int]) -> dict[str, int]:
        return _with_rounded_lengths(*self._explained(plan, primes))

    def _explained(self, plan: Plan, primes: Mapping[str, int]) -> tuple[dict[str, int], float]:
        """Return the power of each unknown in the largest tensor, and the factor that these don't explain."""
        if len(primes) != len(plan.unknowns):
            return {}, 1
        largest = _elements(self.at(plan.at(primes)))
        if not largest:
            return {}, 1
        weights = _powers(largest, primes)
        return weights, largest / math.prod(primes[name] ** weight for name, weight in weights.items())

    def _others(self, plan: Plan, primes: Mapping[str, int]) -> tuple[Mapping[str, int], ...]:
        """Return the power of each unknown in every tensor."""
        if len(primes) != len(plan.unknowns):
            return ()
        run = self.at(plan.at(primes))
        counts = {math.prod(output.tensor.shape) for step in run.steps for output in step.outputs} - {0}
        return tuple({tuple(powers.items()): powers for powers in (_powers(one, primes) for one in counts)}.values())

    def fold_loops(self, runs: Sequence[RawTrace]) -> bool:
        """Say whether the runs are one but for the turns of loops; from now on these are folded."""
        if self._folding is not None:
            return False
        self._folding = self._find_loops(runs)
        if self._folding is None:
            return False
        self._done = {key: self.folded(run) for key, run in self._done.items()}
        return True

    @property
    def folds(self) -> bool:
        """Whether loops are folded."""
        return self._folding is not None

    def folded(self, run: RawTrace) -> RawTrace:
        """Return a run with the loops folded that were found."""
        return self._folding.fold(run) if self._folding is not None else run

    def weighed_again(self, plan: Plan) -> Plan:
        """Return the plan weighed by what its first rounds do; constraints may have let it go further."""
        primes = plan.primes(0)
        plan = replace(plan, others=self._others(plan, primes))
        weights, rest = self._explained(plan, primes)
        if rest > _UNEXPLAINED and not any(weights[name] for name in weights if is_length(name)):
            # with a token more than a length says, as in W*W+1, any may have made all of what isn't a constant
            if rest != self._explained(plan, plan.primes(1))[1]:
                weights |= {name: round(math.log(rest, prime)) for name, prime in primes.items() if is_length(name)}
            return replace(plan, weights=weights)
        return replace(plan, weights=_with_rounded_lengths(weights, rest))

    def try_plan(self, plan: Plan, actual: RawTrace) -> Variation:
        """Return how far the rounds of a plan take the user's steps."""
        plan = self._weighed_by_itself(plan, actual)
        runs: list[RawTrace] = []
        shared = len(actual.steps)
        complete = True
        for round_ in range(_ROUNDS):
            if (plan.ordered or plan.constraints) and self.is_far_too_large(plan, round_):
                complete, shared = False, 0
                break
            run = self.run(plan, round_)
            runs.append(run)
            shared = min(shared, common_steps(run, actual))
            complete = complete and same(run, actual)
            if not complete:
                break
        return Variation(plan, actual, tuple(runs), shared, complete)

    def _weighed_by_itself(self, plan: Plan, actual: RawTrace) -> Plan:
        """Return the plan weighed by its own first run, where a constraint lets this go further and be large."""
        if not plan.constraints or self.is_far_too_large(plan, 0):
            return plan
        run = self.run(plan, 0)
        if not same(run, actual) or _elements(run) <= TOO_MANY_ELEMENTS:
            return plan
        return replace(plan, weights=self._weights(plan, plan.primes(0)), ordered=False)

    def is_far_too_large(self, plan: Plan, round_: int) -> bool:
        """Say whether a round of a plan makes tensors too large to try."""
        return plan.elements(plan.primes(round_)) > _FAR_TOO_MANY

    def forget(self) -> None:
        """Run everything anew."""
        self._done.clear()


def _with_rounded_lengths(weights: Mapping[str, int], rest: float) -> dict[str, int]:
    """Return the powers with one more for lengths where much is left unexplained: one that was rounded is no factor."""
    rounded = rest > _UNEXPLAINED
    return {name: weight + (rounded and weight > 0 and is_length(name)) for name, weight in weights.items()}


def _powers(elements: int, primes: Mapping[str, int]) -> dict[str, int]:
    """Return the power of each unknown in a number of elements."""
    return {name: multiplicity(elements, prime) for name, prime in primes.items()}


def _elements(run: RawTrace) -> int:
    """Return how many elements the largest tensor of a run has."""
    return max((math.prod(output.tensor.shape) for step in run.steps for output in step.outputs), default=0)

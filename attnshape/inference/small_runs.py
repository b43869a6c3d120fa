"""Runs of the target at small sizes: each once, bounded in size and in number, with loops folded."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from attnshape.inference.loops import Folding, folding
from attnshape.inference.monomial import multiplicity
from attnshape.inference.plan import Plan
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
    ) -> None:
        """`find_loops` tells which loops of runs that took other steps are to be folded."""
        self._attempt = attempt
        self._find_loops = find_loops
        self._doing = doing
        self.aim = ""
        """What the runs are for, in words for people."""
        self._runs = 0
        self._done: dict[tuple[tuple[str, int], ...], RawTrace] = {}
        self._folding: Folding | None = None
        self._steps = 0
        self._deadline = time.monotonic() + _PATIENCE

    def run(self, plan: Plan, round_: int) -> RawTrace:
        """Return what the target does in one round of a plan."""
        return self.at(plan.numbers(round_))

    def at(self, numbers: Mapping[str, int]) -> RawTrace:
        """Return what the target does at these sizes."""
        key = tuple(numbers.items())
        if key not in self._done:
            self._runs += 1
            self._doing(f"{self.aim}run {self._runs} at small sizes")
            run = self._attempt(numbers)
            self._steps += _STEPS_OF_A_RUN + len(run.steps)
            self._done[key] = self.folded(run)
        return self._done[key]

    @property
    def spent(self) -> bool:
        """Whether nothing further is to be tried."""
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
        tensors = [output.tensor for step in self.at(plan.at(primes)).steps for output in step.outputs]
        if not tensors:
            return {}
        largest = max(math.prod(tensor.shape) for tensor in tensors)
        weights = {name: multiplicity(largest, prime) for name, prime in primes.items()}
        if largest > _UNEXPLAINED * math.prod(primes[name] ** weight for name, weight in weights.items()):
            # a length that was rounded is no factor any more
            weights = {name: weight + (weight > 0 and is_length(name)) for name, weight in weights.items()}
        return weights

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
        """Return the plan weighed by what its first round does; constraints may have let it go further."""
        return replace(plan, weights=self._weights(plan, plan.primes(0)))

    def try_plan(self, plan: Plan, actual: RawTrace) -> Variation:
        """Return how far the rounds of a plan take the user's steps."""
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

    def is_far_too_large(self, plan: Plan, round_: int) -> bool:
        """Say whether a round of a plan makes tensors too large to try."""
        return plan.elements(plan.primes(round_)) > _FAR_TOO_MANY

    def forget(self) -> None:
        """Run everything anew."""
        self._done.clear()

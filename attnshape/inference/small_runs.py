"""Runs of the target at small sizes: cached, bounded in size and in number, with loops folded."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from attnshape.dims.sizes import are_large, is_length
from attnshape.dims.symbols import SYMBOLS_BY_NAME
from attnshape.inference.algebra import multiplicity
from attnshape.inference.loops import Folding, find_folding, fold_equal_blocks
from attnshape.inference.plan import TOO_MANY_ELEMENTS, Plan
from attnshape.inference.work import WorkBudget, WorkEstimate, WorkGrowth, count_work
from attnshape.runtime.time_limit import TooLong
from attnshape.tracing.raw import RawFailure, RawStep, RawTrace

Attempt = Callable[[Mapping[str, int]], RawTrace]
ProgressCallback = Callable[[str], None]
"""A progress callback: it takes a few words that say what is being done."""

_ROUNDS = 3
"""Two would do for products of sizes; the third keeps a sum, such as 7+13, from passing for one, such as 4*5."""
_MOST_STEPS = 60_000
_STEPS_OF_A_RUN = 100
"""How many steps all runs may take before nothing further is tried, and what building the target counts for: counted
in steps, so that what is found doesn't depend on how busy the machine is."""
_TIME_LIMIT = 60.0
"""Seconds after which nothing further is tried, however few the steps."""
_LONG, _MOST_LONG = 2.0, 6
"""Seconds that make a run a long one, and how many of these there may be."""
_MANY = 10**5
_FAR_TOO_MANY = 3 * 10**7
"""Elements of a tensor that are not tried, as when one prime must be above the product of others."""
_TINY = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)
_SECOND_LOOK = 8
"""How many times the work of a first look at the smallest primes one at the next ones may take."""
_UNEXPLAINED = 8
"""How many times larger than the product of sizes that divide it a tensor must be for more sizes to be in it."""


@dataclass(frozen=True)
class Samples:
    """Runs of a target at small sizes, and how far they took the same steps as the user's run."""

    plan: Plan
    actual: RawTrace
    """The user's run, with one iteration of each loop whose number of iterations follows from the sizes."""
    runs: tuple[RawTrace, ...] = ()
    """The rounds at primes."""
    common: int = 0
    """The number of leading steps that are the same in all runs."""
    complete: bool = False
    """Whether all steps are the same, and end the same way."""
    validation: tuple[tuple[Mapping[str, int], RawTrace], ...] = ()
    """Runs at other sizes, no primes, at which every formula must hold too."""
    diverging: tuple[Mapping[str, int], ...] = ()
    """Sizes that were tried, and at which the target takes different steps."""
    left_out: int = 0
    """How many sets of sizes were not tried, since the runs would have taken too much work."""
    timed_out: bool = False
    """Whether a run at other sizes was ended because it took too long."""
    cut_short: bool = False
    """Whether time ended the search for constraints, so that a quieter machine may find other ones."""
    work: WorkEstimate | None = None
    """How the work of a run grows with the sizes, as far as that is known."""

    @property
    def to_verify(self) -> list[tuple[Mapping[str, int], RawTrace]]:
        """The user's run with its sizes; all others too where they take the same steps."""
        return [(self.plan.sizes.numbers, self.actual), *(self.every if self.complete else ())]

    @property
    def every(self) -> list[tuple[Mapping[str, int], RawTrace]]:
        """All runs with their sizes, the rounds first."""
        return [(self.plan.numbers(round_), run) for round_, run in enumerate(self.runs)] + list(self.validation)

    def cheap_sizes(self, part: int) -> list[Mapping[str, int]]:
        """Return the sizes of the runs that together take no more than a part of the budget: one divided by `part`.

        The first is always among them.
        """
        budget = WorkBudget()
        budget.allow_for(self.actual)
        sizes: list[Mapping[str, int]] = []
        for numbers, run in self.every:
            work = count_work(run)
            if not sizes or budget.spent + work <= budget.total // part:
                sizes.append(numbers)
                budget.spent += work
        return sizes

    def only_at(self, sizes: Sequence[Mapping[str, int]]) -> Samples:
        """Return the samples at some of their sizes: rounds follow one another, so none after a missing one is kept."""
        rounds = enumerate(self.runs)
        runs = tuple(run for _, run in itertools.takewhile(lambda pair: self.plan.numbers(pair[0]) in sizes, rounds))
        validation = tuple((numbers, run) for numbers, run in self.validation if numbers in sizes)
        return replace(self, runs=runs, validation=validation if runs else ())

    def with_equal_blocks_folded(self, more: Sequence[RawTrace] = ()) -> tuple[Samples, list[RawTrace]]:
        """Return the samples, and further runs of the same steps, with one of each series of equal blocks."""
        if self.actual.failure is not None or (self.runs and not self.complete):
            return self, list(more)
        every = [self.actual, *(run for _, run in self.every), *more]
        actual, *others = fold_equal_blocks(every)
        if len(actual.steps) == len(self.actual.steps):
            return self, list(more)
        count, validation = len(self.runs), len(self.validation)
        sizes = (numbers for numbers, _ in self.validation)
        folded = replace(
            self,
            actual=actual,
            runs=tuple(others[:count]),
            common=len(actual.steps) if self.runs else 0,
            validation=tuple(zip(sizes, others[count : count + validation], strict=True)),
        )
        return folded, others[count + validation :]

    def are_matched_by(self, run: RawTrace) -> bool:
        """Return whether a run takes the steps that all samples take, with no tensor empty that isn't in the user's."""
        if common_steps(run, self.actual) < self.common or (self.complete and not takes_same_steps(run, self.actual)):
            return False
        return not any(
            0 in output.tensor.shape and 0 not in twin.tensor.shape
            for step, actual in zip(run.steps, self.actual.steps, strict=False)
            for output, twin in zip(step.outputs, actual.outputs, strict=False)
        )


def common_steps(run: RawTrace, actual: RawTrace) -> int:
    """Return how many leading steps are the same."""
    steps = zip(run.steps, actual.steps, strict=False)
    return next(
        (count for count, (step, twin) in enumerate(steps) if step.key != twin.key or _ranks(step) != _ranks(twin)),
        min(len(run.steps), len(actual.steps)),
    )


def _ranks(step: RawStep) -> list[int]:
    return [len(output.tensor.shape) for output in step.outputs]


def takes_same_steps(run: RawTrace, actual: RawTrace) -> bool:
    """Return whether a run took all the user's steps: and no others, unless the user's run failed."""
    if common_steps(run, actual) < len(actual.steps):
        return False
    return actual.failure is not None or (run.failure is None and len(run.steps) == len(actual.steps))


class _TooMuchWorkError(Exception):
    """Stands for a run that was not made, since it would have taken too much work."""


class SmallRuns:
    """What a target does at small sizes."""

    def __init__(
        self,
        attempt: Attempt,
        find_loops: Callable[[Sequence[RawTrace]], Folding | None] = find_folding,
        progress: ProgressCallback = lambda words: None,
        time_limit: float = _TIME_LIMIT,
        budget: WorkBudget | None = None,
    ) -> None:
        """`attempt` runs the target; after `time_limit` seconds no further constraints are tried.

        `budget` is shared with other runs of the target.
        """
        self._attempt = attempt
        self._find_loops = find_loops
        self._progress = progress
        self.purpose = ""
        """What the runs are for, as the progress line begins."""
        self.sizes_run: list[Mapping[str, int]] = []
        """The sizes of every run from which something may be inferred."""
        self._done: dict[tuple[tuple[str, int], ...], RawTrace] = {}
        self._folding: Folding | None = None
        self._count = 0
        self._steps = 0
        self.budget = budget or WorkBudget()
        self.growth = WorkGrowth()
        """What the runs show of how their work grows."""
        self.left_out: set[tuple[tuple[str, int], ...]] = set()
        """Sizes at which a run would have taken too much work."""
        self._long: set[tuple[tuple[str, int], ...]] = set()
        self._has_long_failure = False
        self._deadline = time.monotonic() + time_limit

    def run(self, plan: Plan, round_: int) -> RawTrace:
        """Return what the target does in one round of a plan."""
        return self.at(plan.numbers(round_))

    def at(self, numbers: Mapping[str, int], last: bool = False) -> RawTrace:
        """Return what the target does at these sizes; a failure where the run would take too much work.

        `last` says that no other run will follow.
        """
        if not self.affords(numbers, last):
            self.leave_out(numbers)
            return RawTrace([], [], [], RawFailure(_TooMuchWorkError()))
        if numbers not in self.sizes_run:
            self.sizes_run.append(numbers)
        return self._done_at(numbers)

    def _done_at(self, numbers: Mapping[str, int]) -> RawTrace:
        key = tuple(numbers.items())
        if key not in self._done:
            self._count += 1
            self._progress(f"{self.purpose}run {self._count} at small sizes")
            run, seconds = self._timed(numbers)
            if seconds > _LONG and run.failure is not None and not isinstance(run.failure.error, TooLong):
                # a busy machine, or a first import, may have taken the time
                run, seconds = self._timed(numbers)
            if seconds > _LONG:
                self._long.add(key)
                self._has_long_failure = self._has_long_failure or run.failure is not None
            self._steps += _STEPS_OF_A_RUN + len(run.steps)
            work = count_work(run)
            self.budget.spent += work
            self.growth.learn(run, numbers, work)
            self._done[key] = self.folded(run)
        return self._done[key]

    def _timed(self, numbers: Mapping[str, int]) -> tuple[RawTrace, float]:
        """Return what the target does at these sizes, and the seconds that it took."""
        started = time.monotonic()
        run = self._attempt(numbers)
        return run, time.monotonic() - started

    def affords(self, numbers: Mapping[str, int], last: bool = False) -> bool:
        """Return whether the budget allows a run at these sizes, or there was one; `last` if no other will follow."""
        key = tuple(numbers.items())
        work = self.growth.estimate.at(numbers) if self.growth.estimate is not None else 0.0
        return key in self._done or self.budget.affords(work, last)

    def leave_out(self, numbers: Mapping[str, int]) -> int:
        """Take note that there is no run at these sizes, and return how many sets of sizes were left out so far."""
        self.left_out.add(tuple(numbers.items()))
        return len(self.left_out)

    def priced(self, plan: Plan) -> Plan:
        """Return the plan with what is known of the work that its runs take, and may take."""
        return replace(plan, work=self.growth.estimate, most_work=self.budget.of_one_run)

    def fails(self, numbers: Mapping[str, int]) -> bool:
        """Return whether the target fails at these sizes, and was not only ended because it took too long or much."""
        return self.at(numbers).failure is not None and tuple(numbers.items()) not in self._long | self.left_out

    @property
    def timed_out(self) -> bool:
        """Whether a run was ended because it took too long."""
        return any(run.failure is not None and isinstance(run.failure.error, TooLong) for run in self._done.values())

    @property
    def exhausted(self) -> bool:
        """Whether the limits on steps, work and time are reached."""
        return self._steps > _MOST_STEPS or not self.budget.affords(0) or self._is_out_of_time

    @property
    def cut_short(self) -> bool:
        """Whether something was, or will be, decided by how long runs take and not by what they do."""
        return self._is_out_of_time or self._has_long_failure

    @property
    def _is_out_of_time(self) -> bool:
        return len(self._long) > _MOST_LONG or time.monotonic() > self._deadline

    def with_powers(self, plan: Plan) -> Plan:
        """Return the plan with the power in which each unknown is part of the largest tensor of its first round.

        A first look at the smallest primes shows whether the first round would take too much work.
        """
        self.growth.counts = plan.counts
        tiny = dict(zip(plan.of_axes, _TINY, strict=False)) | dict.fromkeys(plan.of_counts, _TINY[0])
        if len(tiny) == len(plan.unknowns):
            self.at(plan.at(tiny))
            plan = replace(plan, counts=plan.counts or self._counts(plan, tiny))
            self.growth.counts = plan.counts
        first = plan.primes(0)
        if self.is_costly(plan, first) and self.budget.affords(_SECOND_LOOK * self.budget.spent):
            # 2 and 3 divide many constants, which then seem to grow
            others = dict(zip(plan.of_axes, _TINY[1:], strict=False)) | dict.fromkeys(plan.of_counts, _TINY[1])
            if len(others) == len(plan.unknowns):
                self._done_at(plan.at(others))
        self.sizes_run.clear()  # nothing was inferred from these
        costly, many = self.is_costly(plan, first), math.prod(first.values()) > _MANY
        if costly or many:
            # with many sizes a look at the smallest primes keeps the first round from being large
            plan = replace(plan, powers=self._measured_powers(plan, tiny))
        if costly:
            plan = self.priced(plan)
        return replace(plan, powers=self._measured_powers(plan, plan.primes(0)))

    def _counts(self, plan: Plan, tiny: Mapping[str, int]) -> frozenset[str]:
        """Return the symbols that only count something: with one more, the same shapes occur, but more often."""
        own = [name for name in plan.unknowns if name in plan.sizes.independent and name not in SYMBOLS_BY_NAME]
        numbers = plan.at(tiny)
        if own and self.at(numbers).failure is not None and not are_large(plan.sizes):
            numbers = plan.sizes.numbers
        if not own or (first := self.at(numbers)).failure is not None:
            return frozenset()
        of_inputs = {size for _, tensor in first.inputs for size in tensor.shape}
        candidates = [name for name in own if all(size % numbers[name] for size in of_inputs)]
        independent = {symbol: numbers[symbol] for symbol in plan.sizes.independent}
        more = {name: self.at(plan.sizes.at({**independent, name: numbers[name] + 1})) for name in candidates}
        return frozenset(name for name, run in more.items() if _repeats_more(run, first))

    def is_costly(self, plan: Plan, chosen: Mapping[str, int]) -> bool:
        """Return whether a run where the unknowns have these numbers takes more than its part of what is left."""
        return not self.priced(plan).is_affordable(chosen)

    def _measured_powers(self, plan: Plan, primes: Mapping[str, int]) -> dict[str, int]:
        return _with_rounded_lengths(*self._explained(plan, primes))

    def _explained(self, plan: Plan, primes: Mapping[str, int]) -> tuple[dict[str, int], float]:
        """Return the power of each unknown in the largest tensor, and the factor that these don't explain."""
        if len(primes) != len(plan.unknowns):
            return {}, 1
        largest = _elements(self.at(plan.at(primes)))
        if not largest:
            return {}, 1
        powers = _powers(largest, {name: primes[name] for name in plan.of_axes})
        return powers, largest / math.prod(primes[name] ** power for name, power in powers.items())

    def _powers_of_each(self, plan: Plan, primes: Mapping[str, int]) -> tuple[Mapping[str, int], ...]:
        if len(primes) != len(plan.unknowns):
            return ()
        run = self.at(plan.at(primes))
        counts = {output.tensor.elements for step in run.steps for output in step.outputs} - {0}
        of_axes = {name: primes[name] for name in plan.of_axes}
        return tuple({tuple(powers.items()): powers for powers in (_powers(n, of_axes) for n in counts)}.values())

    def fold_loops(self, runs: Sequence[RawTrace]) -> bool:
        """Fold the loops in whose number of iterations alone the runs differ; return whether there are any."""
        if self._folding is not None or (folding := self._find_loops(runs)) is None:
            return False
        self._folding = folding
        self._done = {key: self.folded(run) for key, run in self._done.items()}
        return True

    @property
    def folds(self) -> bool:
        """Whether loops are folded."""
        return self._folding is not None

    def folded(self, run: RawTrace) -> RawTrace:
        """Return a run with the loops that were found folded."""
        return self._folding.fold(run) if self._folding is not None else run

    def with_measured_powers(self, plan: Plan) -> Plan:
        """Return the plan measured by what its first rounds do; constraints may have let it go further."""
        primes = plan.primes(0)
        plan = self.priced(replace(plan, other_powers=self._powers_of_each(plan, primes)))
        powers, rest = self._explained(plan, primes)
        if rest > _UNEXPLAINED and not any(powers[name] for name in powers if is_length(name)):
            # with a token more than a length says, as in W*W+1, any may have made all of what isn't a constant
            if rest != self._explained(plan, plan.primes(1))[1]:
                powers |= {name: round(math.log(rest, primes[name])) for name in plan.of_axes if is_length(name)}
            return replace(plan, powers=powers)
        return replace(plan, powers=_with_rounded_lengths(powers, rest))

    def try_plan(self, plan: Plan, actual: RawTrace) -> Samples:
        """Return how far the rounds of a plan take the user's steps."""
        plan = self._with_cheap_rounds(self._with_own_powers(plan, actual), actual)
        runs: list[RawTrace] = []
        common = len(actual.steps)
        for round_ in range(_ROUNDS):
            if (plan.ordered or plan.constraints) and self.is_far_too_large(plan, round_):
                return Samples(plan, actual, tuple(runs))
            if not self.affords(plan.numbers(round_)):
                return Samples(plan, actual, tuple(runs), left_out=self.leave_out(plan.numbers(round_)))
            runs.append(self.run(plan, round_))
            common = min(common, common_steps(runs[-1], actual))
            if not takes_same_steps(runs[-1], actual):
                return Samples(plan, actual, tuple(runs), common)
        return Samples(plan, actual, tuple(runs), common, complete=True)

    def _with_cheap_rounds(self, plan: Plan, actual: RawTrace) -> Plan:
        """Return the plan with cheaper sizes where its first rounds show that the next one would take too much work."""
        for round_ in range(_ROUNDS):
            if self.is_costly(plan, plan.primes(round_)):
                return self.priced(plan)
            if self.is_far_too_large(plan, round_) or not takes_same_steps(self.run(plan, round_), actual):
                break
        return plan

    def _with_own_powers(self, plan: Plan, actual: RawTrace) -> Plan:
        """Return the plan measured by its own first run, where a constraint lets this go further and be large."""
        if not plan.constraints or self.is_far_too_large(plan, 0):
            return plan
        run = self.run(plan, 0)
        if not takes_same_steps(run, actual) or _elements(run) <= TOO_MANY_ELEMENTS:
            return plan
        return replace(plan, powers=self._measured_powers(plan, plan.primes(0)), ordered=False)

    def is_far_too_large(self, plan: Plan, round_: int) -> bool:
        """Return whether a round of a plan makes tensors too large to try."""
        return plan.elements(plan.primes(round_)) > _FAR_TOO_MANY

    def forget(self) -> None:
        """Run everything again when it is next needed."""
        self._done.clear()


def _with_rounded_lengths(powers: Mapping[str, int], rest: float) -> dict[str, int]:
    """Return the powers with one more for lengths where much is left unexplained: one that was rounded is no factor."""
    rounded = rest > _UNEXPLAINED
    return {name: power + (rounded and power > 0 and is_length(name)) for name, power in powers.items()}


def _repeats_more(run: RawTrace, other: RawTrace) -> bool:
    """Return whether a run makes the calls of another one, with the same shapes, but makes some of them more often."""

    def shapes(raw: RawTrace) -> set[object]:
        calls = ((step.operation, step.location, *(o.tensor.shape for o in step.outputs)) for step in raw.steps)
        return {*calls, *raw.parameters.values()}

    return run.failure is None and len(run.steps) > len(other.steps) and shapes(run) == shapes(other)


def _powers(elements: int, primes: Mapping[str, int]) -> dict[str, int]:
    return {name: multiplicity(elements, prime) for name, prime in primes.items()}


def _elements(run: RawTrace) -> int:
    return max((output.tensor.elements for step in run.steps for output in step.outputs), default=0)

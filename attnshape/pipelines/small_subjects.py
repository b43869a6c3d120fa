"""A target at the small sizes at which it is checked, and at which its behaviour is measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache

from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Budget, Experiment, OutOfTimeError
from attnshape.checks.interventions.module_state import ModuleState
from attnshape.checks.interventions.small_sizes import LENGTHS, cheap_first, near_sizes, other_lengths, small_sizes
from attnshape.dims.sizes import are_large
from attnshape.inference.plan import Constraint
from attnshape.inference.small_runs import Samples
from attnshape.options.claims import Claims
from attnshape.options.spec import DtypeName, RunOptions
from attnshape.runtime.time_limit import TimeLimit, TooLong
from attnshape.targets.target import Target


class Subjects:
    """The subjects of one target, one for each set of sizes."""

    def __init__(
        self,
        target: Target,
        run: RunOptions,
        claims: Claims,
        requested_dtype: DtypeName,
        limit: TimeLimit,
        budget: Budget,
        modules: ModuleState,
        variation: Samples | None,
        known: Sequence[Constraint] = (),
    ) -> None:
        """`variation` is what small runs showed, None if the sizes can't vary; `known` are its known constraints."""
        self._target, self._run, self._claims, self._requested_dtype = target, run, claims, requested_dtype
        self._limit, self._budget, self._modules = limit, budget, modules
        self._variation, self._known = variation, known
        sizes = target.sizes
        self.candidates: list[Mapping[str, int]] = [sizes.numbers]
        """The sets of sizes to try, in this order."""
        if variation is not None:
            own = [] if are_large(sizes) else [*near_sizes(sizes), sizes.numbers]
            # a part of a claim about visible keys that hides none of them, or all, can't be told from none
            idle = _idle_comparisons(claims)
            small = [one for one in small_sizes(variation.plan, variation.work, idle) if one not in own]
            self.candidates = cheap_first([*small, *own], variation.work)
            self.candidates.sort(key=idle)
        self.timed_out = False
        """Whether a run took too long."""

    def experiment(self, numbers: Mapping[str, int], run: RunOptions) -> Experiment | None:
        """Return the experiment at these sizes; None if the target fails at them or takes too long."""
        try:
            experiment = Experiment(self._target, numbers, run, self._limit, self._budget, self._modules)
        except (TooLong, OutOfTimeError):
            self.timed_out = True
            return None
        failure = experiment.raw.failure
        self.timed_out = self.timed_out or (failure is not None and isinstance(failure.error, TooLong))
        return experiment if experiment.base.error is None and failure is None else None

    def at(self, numbers: Mapping[str, int]) -> Subject | None:
        """Return the subject at these sizes; None if the target fails at them or takes too long."""
        experiment = self.experiment(numbers, self._run)
        if experiment is None:
            return None
        experiment.repeat_if_remembered()
        variation = self._variation
        other = other_lengths(variation.plan, numbers, self._known) if variation is not None else None
        symbols = self._target.sizes.independent if variation is not None else ()
        apart = (one for one in self.candidates if all(one[symbol] != numbers[symbol] for symbol in symbols))
        return Subject(experiment, self._claims, other, self._requested_dtype, next(apart, None) if symbols else None)


def _idle_comparisons(claims: Claims) -> Callable[[Mapping[str, int]], int]:
    """Return a function of sizes: how many comparisons of a claim about visible keys tell no keys apart there."""
    symbols = {
        *LENGTHS,
        *(
            symbol
            for expression in (claims.visible, claims.window)
            if expression is not None
            for symbol in expression.symbols
        ),
    }

    @cache
    def counted(numbers: frozenset[tuple[str, int]]) -> int:
        sizes = dict(numbers)
        queries = sizes.get("Lq", sizes.get("L", 0))
        keys = sizes.get("Lk", queries + sizes.get("Lp", 0))
        return claims.idle_at(sizes, queries, keys) if queries and keys else 0

    return lambda numbers: counted(frozenset((name, size) for name, size in numbers.items() if name in symbols))

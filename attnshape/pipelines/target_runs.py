"""Run a target at small sizes, and find under which constraints it takes the steps that it takes at the user's."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from attnshape.dims.sizes import Sizes, are_large, proxy_sizes
from attnshape.errors import AttnshapeError, format_exception
from attnshape.inference.assemble import are_settled
from attnshape.inference.plan import Constraint, Fixed, Multiple, Plan
from attnshape.inference.sampling import Solution, sample_and_solve
from attnshape.inference.small_runs import ProgressCallback, Samples, SmallRuns
from attnshape.options.flags import flag_syntax
from attnshape.options.spec import RunOptions, TargetSpec
from attnshape.runtime.isolation import one_thread, unattended
from attnshape.runtime.signals import reraise_interruption
from attnshape.runtime.time_limit import TimeLimit
from attnshape.targets.find import find_target, may_lack_arguments
from attnshape.targets.target import Target
from attnshape.tracing.raw import RawFailure, RawTrace
from attnshape.tracing.runner import Runnable, build_and_record

if TYPE_CHECKING:
    from torch import Tensor

    from attnshape.cost.counter import OperationCounter
    from attnshape.cost.meter import Meter


def load_target(spec: TargetSpec, progress: ProgressCallback, *, may_fail: bool = False) -> Target:
    """Return the target of a spec, with the arguments that the spec lacks worked out where possible.

    With `may_fail` that is also one whose own code fails with every argument that was tried.

    Raises AttnshapeError if there is no target of that name, or nothing that was tried for its arguments works.
    """
    completed = complete_spec(spec, progress, may_fail=may_fail)
    target = find_target(completed.spec)
    notes = (*target.notes, *completed.notes)
    return dataclasses.replace(target, found=completed.flags, is_search_cut_short=completed.cut_short, notes=notes)


@dataclasses.dataclass(frozen=True)
class CompletedSpec:
    """A spec with what it lacked."""

    spec: TargetSpec
    flags: str = ""
    """The flags that say the same as what was added, empty if nothing was."""
    cut_short: bool = False
    """Whether time cut the search for it short."""
    notes: tuple[str, ...] = ()
    """What is uncertain about it."""


def complete_spec(spec: TargetSpec, progress: ProgressCallback, *, may_fail: bool = False) -> CompletedSpec:
    """Return the spec with what it lacks.

    With `may_fail` the target may be one whose own code fails. Raises AttnshapeError if nothing that was tried works.
    """
    if not may_lack_arguments(spec):
        return CompletedSpec(spec)
    # most requests describe their target in full
    from attnshape.proposals.complete import complete

    progress("working out what the target takes")
    trying = "working out what the target takes: trying "
    plain = replace(spec, inside=None)
    completed = complete(plain, lambda flags: progress(f"{trying}{flags}"), may_fail=may_fail)
    flags = " ".join(map(flag_syntax, completed.found))
    return CompletedSpec(replace(completed.spec, inside=spec.inside), flags, completed.cut_short, completed.notes)


def first_plan(target: Target, sizes: Sizes) -> Plan:
    """Return the plan of a target's small runs before any was made, with what is known of its sizes."""
    even = tuple(Multiple(symbol, 2) for symbol in target.even)
    return Plan(sizes, even, counts=frozenset(target.counts), fewest=target.counts)


def first_plan_of_steps(target: Target, sizes: Sizes) -> Plan:
    """Return the same where the small runs are to take the steps of the user's run, but for how often they repeat."""
    plan = first_plan(target, sizes)
    fixed = (symbol for symbol in target.uneven if symbol in sizes.independent)
    return dataclasses.replace(plan, constraints=(*plan.constraints, *map(Fixed, fixed)))


def small_run(
    target: Target, numbers: Mapping[str, int], options: RunOptions, limit: TimeLimit, meter: Meter | None = None
) -> RawTrace:
    """Run the target at small sizes on the CPU; that it can't be built there is a failure like any other."""
    small = replace(options, device="cpu")
    threads = one_thread() if meter is None else contextlib.nullcontext()  # kernels' own memory depends on them

    def run() -> RawTrace:
        return record_run(lambda: target.build(numbers, small), small, meter)

    try:
        with threads, unattended():
            return limit.run(run)
    except BaseException as error:  # noqa: BLE001 - the user's constructor may raise anything
        reraise_interruption(error)
        return RawTrace([], [], [], RawFailure(error))


def record_run(build: Callable[[], Runnable], options: RunOptions, meter: Meter | None = None) -> RawTrace:
    """Build a target and record its call; with the cost of each step if the options ask for it.

    A run that is metered isn't counted: what counts would take memory too.
    """
    if not options.cost or meter is not None:
        return _record(build, options, meter)
    from attnshape.cost.counter import record_counted  # a default trace does without

    return record_counted(lambda counter: _record(build, options, counter), options.grad)


def _record(
    build: Callable[[], Runnable], options: RunOptions, *observers: Meter | OperationCounter | None
) -> RawTrace:
    watching = [observer for observer in observers if observer is not None]

    def build_and_mark() -> Runnable:
        runnable = build()
        if watching:
            made = (runnable.named_inputs(), runnable.named_parameters())
            inputs, parameters = ([tensor for _, tensor in named] for named in made)
            for observer in watching:
                observer.mark_built(inputs, parameters)
        return runnable

    def mark_step(outputs: Sequence[Tensor]) -> None:
        for observer in watching:
            observer.mark_step(outputs)

    return build_and_record(build_and_mark, options.seed, options.grad, mark_step if watching else None)


def sample_target(
    target: Target,
    sizes: Sizes,
    options: RunOptions,
    limit: TimeLimit,
    time_limit: float,
    progress: ProgressCallback,
    constraints: tuple[Constraint, ...] = (),
) -> Samples | None:
    """Return the samples of a target; None if it can't be built at sizes other than its own.

    Args:
        target: What to run.
        sizes: The user's sizes.
        options: How to run it; the dtype is float32 all the same.
        limit: Limits the time of each run.
        time_limit: Seconds for which constraints are searched.
        progress: The progress callback.
        constraints: What is known of the sizes beforehand.

    Raises:
        AttnshapeError: The target fails at its own sizes.
    """
    if not target.resizable:
        return None
    plan = first_plan(target, sizes)
    plan = dataclasses.replace(plan, constraints=(*plan.constraints, *constraints))
    return _sample(target, plan, options, limit, time_limit, progress, lambda samples: (None, True))[0]


def sample_target_closely(
    target: Target, sizes: Sizes, options: RunOptions, limit: TimeLimit, time_limit: float, progress: ProgressCallback
) -> Samples:
    """Return as many samples as the signatures of a trace need; only the user's run where nothing varies.

    The arguments and errors are those of `sample_target`.
    """
    if not target.resizable:
        return Samples(first_plan(target, sizes), _first_run(target, sizes, options, limit))

    plan = first_plan_of_steps(target, sizes)
    return _sample(target, plan, options, limit, time_limit, progress, lambda samples: (None, are_settled(samples)))[0]


def small_enough(sizes: Sizes) -> Sizes:
    """Return the sizes, or proxies for them where they are large."""
    return next(proxy_sizes(sizes), sizes) if are_large(sizes) else sizes


def affordable_sizes(target: Target, sizes: Sizes) -> Iterator[Sizes]:
    """Yield the user's sizes, or where they are large proxies for them with few of what only counts."""
    yield from proxy_sizes(sizes, counts=target.counts) if are_large(sizes) else [sizes]


def _sample(
    target: Target,
    known: Plan,
    options: RunOptions,
    limit: TimeLimit,
    time_limit: float,
    progress: ProgressCallback,
    solve: Callable[[Samples], tuple[Solution, bool]],
) -> tuple[Samples, Solution]:
    progress("running the target")
    single = replace(options, dtype="float32")
    runs = SmallRuns(
        lambda numbers: small_run(target, numbers, single, limit), progress=progress, time_limit=time_limit
    )
    plan = runs.with_powers(known)
    return sample_and_solve(runs, plan, _first_run(target, known.sizes, single, limit), solve)


def _first_run(target: Target, sizes: Sizes, options: RunOptions, limit: TimeLimit) -> RawTrace:
    """Return a run at the user's sizes, or at proxies for them where they are large, and learn how long it takes."""
    for numbers in (one.numbers for one in affordable_sizes(target, sizes)):
        actual = limit.learn_from(partial(build_and_record, partial(target.build, numbers, options), options.seed))
        if actual.failure is None:
            break
    if actual.failure is not None:
        error = actual.failure.error
        raise AttnshapeError(
            f"the target fails, so that nothing can be checked: {format_exception(error)}",
            "attnshape trace, with the same arguments, shows where and why",
        )
    return actual

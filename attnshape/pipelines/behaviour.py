"""Measures the behaviour of a target, at small sizes, to compare it with another version's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from attnshape.checks.behaviour import behaviour
from attnshape.checks.interventions.experiment import Budget
from attnshape.checks.interventions.module_state import ModuleState
from attnshape.checks.interventions.small_sizes import MAX_RESULT_BYTES
from attnshape.dims.sizes import Sizes
from attnshape.errors import AttnshapeError
from attnshape.inference.small_runs import ProgressCallback
from attnshape.model.behaviour import Behaviour
from attnshape.model.trace import Trace
from attnshape.options.claims import Claims
from attnshape.options.spec import RunOptions, TargetSpec
from attnshape.pipelines.small_subjects import Subjects
from attnshape.pipelines.target_runs import load_target, sample_target
from attnshape.pipelines.trace import OutputRedirect
from attnshape.runtime.capture import to_standard_error
from attnshape.runtime.isolation import isolated, one_thread
from attnshape.runtime.signals import foreign_code
from attnshape.runtime.time_limit import TimeLimit


def measure_behaviour(
    spec: TargetSpec,
    options: RunOptions,
    time_limit: float,
    other: Mapping[str, int] | None = None,
    redirect_output: OutputRedirect = to_standard_error,
    progress: ProgressCallback = lambda activity: None,
) -> Behaviour:
    """Return the behaviour of a target; if it can't be measured, what is returned says why.

    Args:
        spec: The target and its sizes.
        options: How to run it; the runs are on the CPU.
        time_limit: Seconds for all runs together.
        other: The sizes at which another version was measured, which are tried first.
        redirect_output: Returns a context that redirects the output of the target.
        progress: The progress callback.
    """
    with redirect_output(), foreign_code(), isolated(), one_thread():
        try:
            return _measured(spec, options, time_limit, other, progress)
        except AttnshapeError as error:
            return Behaviour(unknown=error.message)


def with_behaviour(
    trace: Trace,
    spec: TargetSpec,
    options: RunOptions,
    time_limit: float,
    other: Mapping[str, int] | None = None,
    redirect_output: OutputRedirect = to_standard_error,
    progress: ProgressCallback = lambda activity: None,
) -> Trace:
    """Return a trace with the behaviour of its target; the other arguments are those of `measure_behaviour`."""
    if trace.failure is not None:
        return replace(trace, behaviour=Behaviour(unknown="the code fails"))
    measured = measure_behaviour(spec, options, time_limit, other, redirect_output, progress)
    return replace(trace, behaviour=measured)


def _measured(
    spec: TargetSpec,
    options: RunOptions,
    time_limit: float,
    other: Mapping[str, int] | None,
    progress: ProgressCallback,
) -> Behaviour:
    target = load_target(spec, progress)
    modules, limit, budget = ModuleState(target.module), TimeLimit(), Budget(time_limit)
    run = RunOptions(dtype="float64", seed=options.seed, train=options.train)
    variation = sample_target(target, target.sizes, run, limit, time_limit / 2, progress)
    subjects = Subjects(target, run, Claims(), options.dtype, limit, budget, modules, variation)
    alike = _alike(target.sizes, other, subjects.candidates[0]) if variation is not None else ()
    for numbers in [*alike, *subjects.candidates]:
        progress(f"measuring the behaviour at {', '.join(f'{symbol}={size}' for symbol, size in numbers.items())}")
        subject = subjects.at(numbers)
        if subject is not None and subject.experiment.bytes <= MAX_RESULT_BYTES:
            training = None if options.train else subjects.experiment(numbers, replace(run, train=True))
            found = behaviour(subject, training)
            modules.restore()
            return found
        if budget.is_spent:
            break
    modules.restore()
    why = "the time limit was reached" if subjects.timed_out or budget.is_spent else "it runs at no small sizes"
    return Behaviour(unknown=why)


def _alike(sizes: Sizes, other: Mapping[str, int] | None, first: Mapping[str, int]) -> Iterator[Mapping[str, int]]:
    """Yield sizes with the numbers that another version was measured at, as far as it has the same symbols."""
    if other is not None and set(sizes.independent) & set(other):
        yield sizes.at({symbol: other.get(symbol, first[symbol]) for symbol in sizes.independent})

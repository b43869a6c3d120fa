"""Traces a target: runs it, runs it again at small sizes, infers formulas, and verifies them."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import msgspec
import torch
from msgspec import UNSET

from attnshape import __version__
from attnshape.dims.sizes import Sizes, are_large
from attnshape.errors import AttnshapeError, Option
from attnshape.inference.arguments import with_arguments
from attnshape.inference.assemble import Formulas, assemble, relevant, similar_failures, with_avoided
from attnshape.inference.plan import Equal, Multiple, Plan
from attnshape.inference.roles import with_roles
from attnshape.inference.sampling import sample_and_solve
from attnshape.inference.small_runs import ProgressCallback, Samples, SmallRuns
from attnshape.inference.verification import (
    Expected,
    checks_work,
    declared_result,
    first_three,
    parse_expectations,
    run_held_out,
    verify,
    verify_signatures,
)
from attnshape.model.trace import HeldOut, Trace
from attnshape.options.spec import RunOptions, TargetSpec
from attnshape.pipelines.target_runs import first_plan_of_steps, load_target, record_run, small_run
from attnshape.runtime.capture import to_standard_error
from attnshape.runtime.files import display_path
from attnshape.runtime.isolation import isolated
from attnshape.runtime.signals import foreign_code
from attnshape.runtime.time_limit import TimeLimit
from attnshape.targets.inputs import annotated_result
from attnshape.targets.target import Target, require_device
from attnshape.tracing.fast_path import Comparison
from attnshape.tracing.raw import RawTrace
from attnshape.tracing.runner import Runnable

if TYPE_CHECKING:
    from attnshape.cost.estimate import PeakEstimate
    from attnshape.cost.meter import MeteredRuns

OutputRedirect = Callable[[], AbstractContextManager[object]]
_UNCHECKED = "no signature was checked: jaxtyping's checks or Python's assertions are disabled"


def trace_request(
    spec: TargetSpec,
    options: RunOptions,
    redirect_output: OutputRedirect = to_standard_error,
    progress: ProgressCallback = lambda activity: None,
) -> Trace:
    """Return the trace of a request.

    Args:
        spec: The target and its sizes.
        options: How to run it.
        redirect_output: Returns a context that redirects the output of the traced code.
        progress: The progress callback.

    Raises:
        AttnshapeError: The request can't be carried out.
    """
    trace = _traced(spec, options, redirect_output, progress)
    if not options.cost or trace.failure is None:
        return trace
    # flex_attention, for one, has no backward pass on the CPU
    without = _traced(spec, msgspec.structs.replace(options, grad=False), redirect_output, progress)
    if without.failure is not None:
        return trace
    note = f"with gradients the code fails, so that what it saves is unknown: {trace.failure.error}"
    return msgspec.structs.replace(without, notes=(*without.notes, note))


def _traced(
    spec: TargetSpec, options: RunOptions, redirect_output: OutputRedirect, progress: ProgressCallback
) -> Trace:
    require_device(options.device)
    progress("loading the target")
    with redirect_output(), foreign_code(), isolated():
        target = load_target(spec, progress, may_fail=True)
        if target.prefers_meta and not options.chooses_device:
            options = msgspec.structs.replace(options, device="meta")
        sizes = target.sizes
        expected = parse_expectations(spec.expect, list(sizes.records))
        if expected and not checks_work():
            raise AttnshapeError(
                (Option("expect"), " can't be verified: jaxtyping's checks are disabled"), "unset JAXTYPING_DISABLE"
            )
        limit = TimeLimit()
        metered, estimate = _estimate_memory(target, sizes, options, limit, progress)
        runs = SmallRuns(
            # what counts can't be metered: these runs are others than those that show the memory
            metered.reuse
            if metered and not options.cost
            else lambda numbers: small_run(target, numbers, options, limit),
            progress=progress,
        )
        plan = first_plan_of_steps(target, sizes)
        plan = runs.with_powers(plan) if target.resizable else plan
        progress("running the target")
        actual, declared = _run(target, sizes, options, limit)
        if not target.is_builtin and checks_work():
            expected += declared_result(declared, list(sizes.records))
        header = msgspec.structs.replace(_header(target.label, options, sizes), found=target.found or UNSET)
        if target.resizable:

            def solve(samples: Samples) -> tuple[tuple[Trace, Formulas], bool]:
                progress("inferring the signatures")
                return assemble(header, samples)

            samples, (trace, formulas) = sample_and_solve(runs, plan, actual, solve)
            progress("checking the signatures")
            conditions = {formula.condition for _, formula in relevant(formulas)}
            held_out, held_out_run = run_held_out(runs, samples, conditions, metered.sizes_run if metered else ())
            # not before all runs are known: their blocks may differ in some only
            whole, whole_held_out = samples, held_out_run
            folded, more = samples.with_equal_blocks_folded([held_out_run] if held_out_run is not None else [])
            if folded is not samples:
                samples, held_out_run = folded, more[0] if more else None
                (trace, formulas), _ = assemble(header, samples)
        else:
            whole = Samples(plan, actual)
            samples, _ = whole.with_equal_blocks_folded()
            (trace, formulas), _ = assemble(header, samples)
            whole_held_out = None
            held_out, held_out_run = HeldOut(reason="the target can't be built at other sizes"), None
    trace = _verified(trace, formulas, samples, held_out, held_out_run, expected, target.is_builtin)
    if options.cost:
        from attnshape.cost.formulas import CountedRuns, with_costs  # a default trace does without

        twins = [(held_out.sizes, run) if run is not None else None for run in (held_out_run, whole_held_out)]
        runs_ = CountedRuns(samples, twins[0], whole, twins[1], on_cpu=options.device == "cpu")
        trace = with_costs(trace, runs_)
    if estimate is None:
        return trace
    notes = (*trace.notes, *estimate.notes)
    return msgspec.structs.replace(trace, peak=estimate.peak_of(actual, samples.actual), notes=notes)


def trace_recording(label: str, options: RunOptions, sizes: Sizes, actual: RawTrace) -> Trace:
    """Return the trace of a recording, which can't be repeated: its axes are only matched to sizes."""
    samples, _ = Samples(Plan(sizes), actual).with_equal_blocks_folded()
    (trace, formulas), _ = assemble(_header(label, options, sizes), samples)
    held_out = HeldOut(reason="a recording can't be repeated at other sizes")
    return _verified(trace, formulas, samples, held_out, None, [], is_builtin=False)


def _estimate_memory(
    target: Target, sizes: Sizes, options: RunOptions, limit: TimeLimit, progress: ProgressCallback
) -> tuple[MeteredRuns | None, PeakEstimate | None]:
    """Estimate the peak memory from small runs, and return it with these runs; None if the sizes are small.

    Raises AttnshapeError if the run needs more memory than is free, before anything is allocated at the user's sizes.
    """
    if not target.resizable or not (options.grad or are_large(sizes)):
        return None, None
    # a default trace doesn't need these imports
    from attnshape.cost.capacity import refuse_too_large
    from attnshape.cost.estimate import estimate_peak_memory
    from attnshape.cost.meter import MeteredRuns

    progress("estimating the memory")
    metered = MeteredRuns(lambda numbers, meter: small_run(target, numbers, options, limit, meter))
    estimate = estimate_peak_memory(metered, sizes, options.device.startswith("cuda"), options.grad)
    if estimate is not None and options.device != "meta":
        refuse_too_large(estimate, torch.device(options.device))
    return metered, estimate


def _run(
    target: Target, sizes: Sizes, options: RunOptions, limit: TimeLimit
) -> tuple[RawTrace, tuple[str, str] | None]:
    """Run the target at the user's sizes; return the run and the target's return annotation."""
    declared: list[tuple[str, str] | None] = []
    comparison = Comparison(options.seed)

    def build() -> Runnable:
        runnable = target.build(sizes.numbers, options)
        declared[:] = [annotated_result(runnable.signature_of)]
        return runnable if target.is_builtin or options.grad else comparison.of(runnable)

    actual = limit.learn_from(lambda: record_run(build, options))
    actual.notes += target.notes
    actual.notes += comparison.notes(lambda: target.build(sizes.numbers, options))
    return actual, declared[0]


def _header(label: str, options: RunOptions, sizes: Sizes) -> Trace:
    """Return a trace without steps, which describes only the run."""
    return Trace(
        attnshape=__version__,
        torch=str(torch.__version__),
        python=platform.python_version(),
        target=label,
        command=options.command,
        device=options.device,
        dtype=options.dtype,
        seed=options.seed,
        sizes=dict(sizes.records),
        complete=False,
        verified_at=1,
        grad=options.grad or UNSET,
    )


def _verified(
    trace: Trace,
    formulas: Formulas,
    samples: Samples,
    held_out: HeldOut,
    held_out_run: RawTrace | None,
    expected: Sequence[Expected],
    is_builtin: bool,
) -> Trace:
    """Verify the signatures and expectations, and add roles and notes."""
    actual = samples.actual
    expectations = verify(expected, samples.to_verify)
    trace = msgspec.structs.replace(trace, notes=tuple(_notes(samples, formulas, held_out)))
    if checks_work() and (not is_builtin or _catalog_is_checked()):
        trace = verify_signatures(trace, formulas, samples, held_out, held_out_run)
    else:
        trace = msgspec.structs.replace(trace, notes=(*trace.notes, _UNCHECKED))
    failure = None
    if actual.failure is not None:
        # imported only for runs that failed
        from attnshape.diagnostics.explain import failure_of

        similar = similar_failures(actual.failure, samples)
        failure = failure_of(similar, trace.inputs, trace.steps, trace.device, trace.dtype)
    return msgspec.structs.replace(
        trace,
        complete=actual.failure is None and actual.broken is None,
        verified_at=1 + len(samples.every) if samples.common else 1,
        preconditions=tuple(str(c) for c in samples.plan.constraints if isinstance(c, (Equal, Multiple))),
        steps=with_avoided(with_roles(with_arguments(trace.steps, samples)), trace.inputs),
        failure=failure,
        expectations=expectations,
    )


def _catalog_is_checked() -> bool:
    # beartype takes a while to import, and only the catalog needs it
    from attnshape.targets.builtin.mechanisms.canary import annotations_are_checked

    return annotations_are_checked()


def _notes(samples: Samples, formulas: Formulas, held_out: HeldOut) -> Iterable[str]:
    """Yield notes on the limits of this trace."""
    actual, sizes = samples.actual, samples.plan.sizes
    if actual.broken is not None:
        yield actual.broken
    yield from actual.notes
    mapped = [f"step {number}" for number, step in enumerate(actual.steps, 1) if step.mapped]
    if mapped:
        yield f"an axis that vmap maps over is hidden in {first_three(mapped)}"
    for file in sorted({step.location.file for step in actual.steps if step.location and not step.location.expression}):
        yield f"the source of {display_path(file)} can't be read: its steps go by their operations"
    if not samples.runs:
        yield "one run only: an axis is matched to the one size that it equals"
        return
    if fixed := samples.plan.fixed:
        numbers = ", ".join(f"{symbol}={sizes.records[symbol].size}" for symbol in fixed)
        why = (
            "takes a different path, fails or runs for too long"
            if samples.timed_out
            else "takes a different path or fails"
        )
        yield f"not varied: {numbers}, since at other sizes the code {why}"
    elif not samples.complete and actual.failure is None:
        after = f"after step {samples.common}" if samples.common else "from the first step on"
        why = "runs for too long" if samples.timed_out else "takes a different path"
        why = "takes too much work to be run often enough" if samples.left_out and not samples.common else why
        yield f"at small sizes the code {why} {after}: axes there are only matched to sizes, not verified"
    if samples.left_out:
        yield (
            f"{samples.left_out} sets of sizes were left out, as runs at them would take much more work than this one"
        )
    if sizes.labels:
        symbols = ", ".join(symbol for symbol in sizes.records if symbol in sizes.labels)
        yield f"nothing in the target depends on {symbols}: an axis of that size is only matched to it, not verified"
    if unsolved := [where for where, formula in relevant(formulas) if formula.unsolved]:
        yield f"no formula for {first_three(unsolved)}: shown as this run's number"
    conditions: dict[str, list[str]] = {}
    for where, formula in relevant(formulas):
        if formula.condition:
            conditions.setdefault(formula.condition, []).append(where)
    for condition, places in conditions.items():
        yield f"holds only where {condition}, as here: {first_three(places)}"
    if samples.common and held_out.reason:
        yield f"no signature was checked at sizes held out: {held_out.reason}"

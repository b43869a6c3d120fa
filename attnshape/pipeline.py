"""From a request to a trace: find the target, run it, run it again at small primes, infer, check."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import torch
from msgspec import UNSET

from attnshape import __version__
from attnshape.checking.expectations import Expected, declared_result, parse_expectations, verify
from attnshape.checking.signatures import checks_work
from attnshape.checking.steps import Checked, check_steps
from attnshape.ending import foreign_code, reraise_interruption
from attnshape.errors import AttnshapeError
from attnshape.inference.assemble import ENOUGH_ROUNDS, Assembled, assemble
from attnshape.inference.avoided import with_avoided
from attnshape.inference.plan import Plan
from attnshape.inference.roles import with_roles
from attnshape.inference.small_runs import Doing, SmallRuns
from attnshape.inference.variation import Variation, alone
from attnshape.inference.vary import Explorer
from attnshape.memory.standin import worth_foretelling
from attnshape.model import Failure, Trace
from attnshape.remarks import notes, preconditions
from attnshape.settings import Settings
from attnshape.sizes import Sizes, resolve
from attnshape.target.annotations import annotated_result
from attnshape.target.find import find_target
from attnshape.target.request import Placement, Request, Target
from attnshape.tracing.fast_path import Comparison
from attnshape.tracing.isolation import isolated, one_thread
from attnshape.tracing.output import to_standard_error
from attnshape.tracing.patience import Patience
from attnshape.tracing.raw import RawFailure, RawTrace
from attnshape.tracing.runner import Runnable, record_anew

if TYPE_CHECKING:
    from attnshape.memory.forecast import Forecast
    from attnshape.memory.meter import Meter

Printed = Callable[[], AbstractContextManager[object]]
_UNCHECKED = "no signature was checked: jaxtyping's checks or Python's assertions are disabled"


def trace_request(
    request: Request, settings: Settings, printed: Printed = to_standard_error, doing: Doing = lambda words: None
) -> Trace:
    """Return the trace of a request; `printed` says where what the traced code prints goes.

    `doing` is told what is being done, each time that this changes.

    Raises AttnshapeError where it can't be carried out.
    """
    doing("loading the target")
    with printed(), foreign_code(), isolated():
        target = find_target(request)
        sizes = resolve(target.used, target.given, request.own)
        expected = parse_expectations(settings.expect, list(sizes.records))
        if expected and not checks_work():
            raise AttnshapeError(
                "--expect can't be verified: jaxtyping's checks are disabled", "unset JAXTYPING_DISABLE"
            )
        placement = Placement(
            torch.device(settings.device), getattr(torch, settings.dtype), settings.seed, settings.train, settings.grad
        )
        forecast, patience = None, Patience()
        if target.varies:
            doing("foretelling the memory")
            small_run, forecast = _foretell(target, sizes, placement, patience)
            runs = SmallRuns(small_run, doing=doing)
            explorer, plan = Explorer(runs), runs.weighed(Plan(sizes))
        doing("running the target")
        declared: list[tuple[str, str] | None] = []
        comparison = Comparison(settings.seed)

        def build() -> Runnable:
            runnable = target.build(sizes.numbers, placement)
            declared[:] = [annotated_result(runnable.signature_of)]
            return runnable if target.library or settings.grad else comparison.of(runnable)

        started = time.monotonic()
        actual = record_anew(build, settings.seed, settings.grad)
        patience.learn(time.monotonic() - started)
        actual.notes += comparison.notes(lambda: target.build(sizes.numbers, placement))
        if not target.library and checks_work():
            expected += declared_result(declared[0], list(sizes.records))
        variation = explorer.vary(plan, actual) if target.varies else alone(Plan(sizes), actual)
        doing("working out the signatures")
        assembled = assemble(variation, sizes.numbers)
        if assembled.unsure:
            variation = explorer.extend(variation, ENOUGH_ROUNDS)
            assembled = assemble(variation, sizes.numbers)
    doing("checking signatures")
    trace = _written(target.label, target.library, settings, sizes, expected, variation, assembled)
    if forecast is None:
        return trace
    return msgspec.structs.replace(trace, peak=forecast.peak_of(actual, variation.actual))


def observed(label: str, settings: Settings, sizes: Sizes, actual: RawTrace) -> Trace:
    """Return the trace of one run that was watched and can't be run again: its axes are matched only."""
    variation = alone(Plan(sizes), actual)
    return _written(label, False, settings, sizes, [], variation, assemble(variation, sizes.numbers))


def _written(
    label: str,
    library: bool,
    settings: Settings,
    sizes: Sizes,
    expected: Sequence[Expected],
    variation: Variation,
    assembled: Assembled,
) -> Trace:
    """Check what was assembled, and write it down."""
    actual = variation.actual
    runs: list[tuple[Mapping[str, int], RawTrace]] = [(sizes.numbers, actual)]
    if variation.complete:
        runs += variation.every
    expectations = verify(expected, runs)
    checks_count = checks_work() and (not library or _catalog_is_checked())
    checked = (
        check_steps(assembled.inputs, assembled.steps, runs)
        if checks_count
        else Checked(assembled.inputs, assembled.steps, (_UNCHECKED,))
    )
    return Trace(
        attnshape=__version__,
        torch=str(torch.__version__),
        python=platform.python_version(),
        target=label,
        command=settings.command,
        device=settings.device,
        dtype=settings.dtype,
        seed=settings.seed,
        sizes=dict(sizes.records),
        complete=actual.failure is None and actual.broken is None,
        proved_by_runs=1 + len(variation.every) if variation.common else 1,
        preconditions=preconditions(variation),
        notes=notes(variation, sizes, assembled, checked.wrong),
        inputs=checked.inputs,
        steps=with_avoided(with_roles(checked.steps), checked.inputs),
        loops=assembled.loops,
        outputs=assembled.outputs,
        failure=_failure(actual, variation, sizes.numbers, checked, settings),
        expectations=expectations,
        grad=settings.grad or UNSET,
    )


def _foretell(
    target: Target, sizes: Sizes, placement: Placement, patience: Patience
) -> tuple[Callable[[Mapping[str, int]], RawTrace], Forecast | None]:
    """Return what runs the target at small sizes, and what such runs foretell of the memory, where that matters.

    Raises AttnshapeError where the run needs more than is free: nothing has been made at the user's sizes by then.
    """
    if not placement.grad and not worth_foretelling(sizes):
        return lambda numbers: small_run(target, numbers, placement, patience, None), None
    # the default trace does without
    from attnshape.memory.forecast import foretell
    from attnshape.memory.refuse import refuse_too_large
    from attnshape.memory.runs import MeteredRuns

    runs = MeteredRuns(lambda numbers, meter: small_run(target, numbers, placement, patience, meter))
    forecast = foretell(runs, sizes, placement.device.type == "cuda", placement.grad)
    if forecast is not None and placement.device.type != "meta":
        refuse_too_large(forecast, placement.device)
    return runs.once_more, forecast


def _failure(
    actual: RawTrace, variation: Variation, numbers: Mapping[str, int], checked: Checked, settings: Settings
) -> Failure | None:
    if actual.failure is None:
        return None
    # only a run that failed needs the explanations
    from attnshape.failing.report import failure_of
    from attnshape.inference.failed import alike

    return failure_of(
        alike(actual.failure, variation, numbers), checked.inputs, checked.steps, settings.device, settings.dtype
    )


def _catalog_is_checked() -> bool:
    # beartype takes a while to import, and only the catalog needs it
    from attnshape.catalog.canary import annotations_are_checked

    return annotations_are_checked()


def small_run(
    target: Target, numbers: Mapping[str, int], placement: Placement, patience: Patience, meter: Meter | None
) -> RawTrace:
    """Run the target at small sizes on the CPU; that it can't be built there is a failure like any other."""
    small = replace(placement, device=torch.device("cpu"))

    def build() -> Runnable:
        runnable = target.build(numbers, small)
        if meter is not None:
            made = (runnable.named_inputs(), runnable.named_parameters())
            meter.built(*([tensor for _, tensor in named] for named in made))
        return runnable

    try:
        if meter is not None:  # what kernels take for themselves may depend on their threads
            return patience.run(lambda: record_anew(build, placement.seed, placement.grad, meter.stepped))
        with one_thread():
            return patience.run(lambda: record_anew(build, placement.seed, placement.grad))
    except BaseException as error:  # noqa: BLE001 - the user's constructor may raise anything
        reraise_interruption(error)
        return RawTrace([], [], [], RawFailure(error))

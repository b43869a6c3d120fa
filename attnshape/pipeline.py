"""From a request to a trace: find the target, run it, run it again at small primes, infer, check."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import replace

import torch

from attnshape import __version__
from attnshape.checking.expectations import declared_result, parse_expectations, verify
from attnshape.checking.signatures import checks_work
from attnshape.checking.steps import Checked, check_steps
from attnshape.errors import AttnshapeError
from attnshape.inference.assemble import ENOUGH_ROUNDS, assemble
from attnshape.inference.avoided import with_avoided
from attnshape.inference.forecast import refuse_too_large
from attnshape.inference.plan import Plan
from attnshape.inference.roles import with_roles
from attnshape.inference.vary import Explorer
from attnshape.model import Trace
from attnshape.remarks import failure_of, notes, preconditions
from attnshape.settings import Settings
from attnshape.sizes import resolve
from attnshape.target.annotations import annotated_result
from attnshape.target.find import find_target
from attnshape.target.request import Placement, Request, Target
from attnshape.tracing.fold import fold
from attnshape.tracing.output import to_standard_error
from attnshape.tracing.raw import RawFailure, RawTrace
from attnshape.tracing.runner import record

_UNCHECKED = "no signature was checked: jaxtyping's checks or Python's assertions are disabled"


def trace_request(request: Request, settings: Settings) -> Trace:
    """Return the trace of a request. Raises AttnshapeError where it can't be carried out."""
    with to_standard_error():
        target = find_target(request)
        sizes = resolve(target.used, target.given, request.own)
        expected = parse_expectations(settings.expect, list(sizes.records))
        if expected and not checks_work():
            raise AttnshapeError(
                "--expect can't be verified: jaxtyping's checks are disabled", "unset JAXTYPING_DISABLE"
            )
        placement = Placement(
            torch.device(settings.device), getattr(torch, settings.dtype), settings.seed, settings.train
        )
        explorer = Explorer(lambda numbers: _small_run(target, numbers, placement))
        plan = Plan(sizes)
        refuse_too_large(explorer, plan, placement.device)
        runnable = target.build(sizes.numbers, placement)
        if not target.library and checks_work():
            expected += declared_result(annotated_result(runnable.signature_of), list(sizes.records))
        actual = fold(record(runnable, settings.seed))
        variation = explorer.vary(plan, actual)
        assembled = assemble(actual, variation, sizes.numbers)
        if assembled.unsure:
            variation = explorer.extend(variation, actual, ENOUGH_ROUNDS)
            assembled = assemble(actual, variation, sizes.numbers)
    runs: list[tuple[Mapping[str, int], RawTrace]] = [(sizes.numbers, actual)]
    if variation.complete:
        runs += variation.every
    expectations = verify(expected, runs)
    checks_count = checks_work() and (not target.library or _catalog_is_checked())
    checked = (
        check_steps(assembled.inputs, assembled.steps, runs)
        if checks_count
        else Checked(assembled.inputs, assembled.steps, (_UNCHECKED,))
    )
    return Trace(
        attnshape=__version__,
        torch=str(torch.__version__),
        python=platform.python_version(),
        target=target.label,
        command=settings.command,
        device=settings.device,
        dtype=settings.dtype,
        seed=settings.seed,
        sizes=dict(sizes.records),
        complete=actual.failure is None and actual.broken is None,
        proved_by_runs=1 + len(variation.every) if variation.common else 1,
        preconditions=preconditions(variation),
        notes=notes(actual, variation, sizes, assembled.missed, checked.wrong),
        inputs=checked.inputs,
        steps=with_avoided(with_roles(checked.steps), checked.inputs),
        outputs=assembled.outputs,
        failure=failure_of(actual.failure, checked.inputs, checked.steps) if actual.failure is not None else None,
        expectations=expectations,
    )


def _catalog_is_checked() -> bool:
    # beartype takes a while to import, and only the catalog needs it
    from attnshape.catalog.canary import annotations_are_checked

    return annotations_are_checked()


def _small_run(target: Target, numbers: Mapping[str, int], placement: Placement) -> RawTrace:
    """Run the target at small sizes on the CPU; that it can't be built there is a failure like any other."""
    try:
        runnable = target.build(numbers, replace(placement, device=torch.device("cpu")))
    except Exception as error:  # noqa: BLE001 - the user's constructor may raise anything
        return RawTrace([], [], [], RawFailure(error))
    return fold(record(runnable, placement.seed))

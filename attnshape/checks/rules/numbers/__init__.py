"""Are all numbers of the results finite, in float16 and in the gradients too, and are the angles of positions precise?

The softmax of a row of nothing but -inf is NaN, and NaN spreads to everything that is computed from it. The largest
number of float16 is 65504: what is larger becomes infinite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Intervention, ReplayRun
from attnshape.checks.interventions.replay import OutputRef, ReplayedCall
from attnshape.checks.rules.numbers.angles import imprecise_angles
from attnshape.checks.rules.numbers.finite import first_not_finite, is_not_finite
from attnshape.checks.rules.numbers.gradients import check_gradients
from attnshape.checks.rules.numbers.maxima import check_maxima
from attnshape.checks.rules.numbers.one_key import check_single_keys
from attnshape.checks.rules.protocol import Outcome, Undecided, Verification, Violation
from attnshape.model.report import Level
from attnshape.tracing.operations import ALLOCATIONS, PRODUCTS

CODES: tuple[str, ...] = ("AS208", "AS209", "AS306", "AS308", "AS309", "AS406")
TOPIC = "finite numbers"
_MOST_IN_HALF = torch.finfo(torch.float16).max


def check(subject: Subject) -> Iterator[Outcome]:
    """Look for NaN and infinity in the results, at the small sizes and, in float16, at the user's sizes."""
    wrong = first_not_finite(subject.base)
    if wrong is None:
        yield Verification("every number of the results is finite")
    elif not any(is_not_finite(value).any() for value in subject.base.inputs.values()):
        yield _not_finite(subject, *wrong)
    yield from _unwritten(subject)
    if wrong is None:
        yield from check_single_keys(subject)
        yield from check_gradients(subject)
    half = subject.experiment.run_in("float16") if wrong is None else None
    in_half = list(_in_half_precision(subject, half)) if wrong is None else []
    yield from in_half
    yield from imprecise_angles(subject, half)
    if not any(isinstance(outcome, Violation) for outcome in in_half):
        yield from check_maxima(subject)


def _unwritten(subject: Subject) -> Iterator[Outcome]:
    """Put other numbers into memory that is only allocated: no result may depend on what nothing wrote."""
    allocated = [
        event.refs[0]
        for event in subject.base.events
        if event.name in ALLOCATIONS and not event.unusual and event.values[0].is_floating_point()
    ]
    moved = subject.perturb(Intervention(results=dict.fromkeys(allocated, torch.ones_like))) if allocated else None
    if moved is None or not moved.comparable:
        return
    reached = [(path, mask) for path, mask in moved.returned() if bool(mask.any())]
    if not reached:
        yield Verification("no result depends on memory that nothing wrote")
        return
    path, mask = reached[0]
    count = f"{int(mask.sum())} of {mask.numel()} numbers of {path}"
    message = (
        f"{count} depend on memory that {subject.base.event(allocated[0]).short_name} allocates and nothing writes"
    )
    hint = "write every element, or start from torch.zeros"
    evidence = "put ones into the memory, and then zeros"
    yield Violation("AS308", message, allocated[0], hint, evidence)


def _not_finite(subject: Subject, path: str, value: Tensor) -> Outcome:
    is_nan = torch.isnan(value)
    what, wrong = ("NaN", is_nan) if bool(is_nan.any()) else ("infinite", is_not_finite(value))
    is_masking = bool(torch.isneginf(value[wrong]).all())
    origin = _origin(subject.base, torch.isneginf if is_masking else _is_nan_or_infinite)
    at = origin.refs[0] if origin is not None else None
    count = f"{int(wrong.sum())} of {value.numel()} numbers of {path} are {what}"
    evidence = "ran the target with its own arguments at small sizes"
    if origin is None:
        return Violation(
            "AS306", count, None, "follow them back to the first call that makes them", evidence, "measured"
        )
    if what == "NaN" and origin.name not in PRODUCTS and any(map(_has_empty_row, origin.operand_values)):
        message = f"a query without any visible key gets NaN: {count}"
        hint = (
            "set the weights of such rows to 0, weights.masked_fill(~mask, 0), and claim it: --claim zero-masked-rows"
        )
        if subject.claims.zero_masked_rows:
            return Undecided(TOPIC, message)
        # a mask that was drawn at random may hide what the user's own masks never hide
        drawn = subject.graph.origins(tuple(origin.producers)) & set(subject.experiment.target.sizes.inputs)
        masks = {name for name in drawn if subject.base.inputs[name].dtype == torch.bool}
        return Violation("AS406", message, at, hint, evidence, "measured", level="notice" if masks else "error")
    hint = "compute with numbers that stay finite: subtract the maximum before exp, and don't divide by 0"
    if is_masking:
        hint = "return the weights, after the softmax, instead of the masked scores"
    message = f"{count}, from {origin.short_name}"
    return Violation("AS306", message, at, hint, evidence, "measured", level="notice" if is_masking else "error")


def _is_nan_or_infinite(value: Tensor) -> Tensor:
    """Return where numbers are NaN or infinite; minus infinity hides scores."""
    return torch.isnan(value) | torch.isposinf(value)


def _has_empty_row(value: Tensor) -> bool:
    """Return whether scores are minus infinity along a whole axis somewhere."""
    hidden = torch.isneginf(value) if value.is_floating_point() else torch.zeros(())
    return any(bool(hidden.all(axis).any()) for axis in range(hidden.ndim))


def _origin(run: ReplayRun, is_wrong: Callable[[Tensor], Tensor]) -> ReplayedCall | None:
    """Return the call that made such numbers from others, followed back from the last call with such numbers."""
    wrong = {
        ref: event
        for event in run.events
        for ref, value in zip(event.refs, event.values, strict=True)
        if value.is_floating_point() and bool(is_wrong(value).any())
    }
    event = wrong[max(wrong)] if wrong else None
    while event is not None:
        before = [wrong[source] for source in event.producers if isinstance(source, OutputRef) and source in wrong]
        earlier = max((one for one in before if one.order < event.order), key=lambda one: one.order, default=None)
        if earlier is None:
            return event
        event = earlier
    return None


def _in_half_precision(subject: Subject, half: ReplayRun | None) -> Iterator[Outcome]:
    """Look for NaN and infinity in a run in float16 at the user's sizes, and compare it with one in float32."""
    requested = subject.requested_dtype == "float16"
    wrong = first_not_finite(half) if half is not None else None
    if half is not None and wrong is None:
        yield Verification("every number of the results is finite in float16 at the target's own sizes")
        return
    single = subject.experiment.run_in("float32") if half is not None else None
    if half is None or wrong is None or single is None or not half.follows(single) or first_not_finite(single):
        if requested:
            yield Undecided(TOPIC, "the target can't be compared in float16 and float32", incomplete=True)
        return
    path, value = wrong
    level: Level = "error" if requested else "notice"
    count = f"{int(is_not_finite(value).sum())} of {value.numel()} numbers of {path} aren't finite in float16"
    evidence = "ran the target at its own sizes in float16 and in float32"
    pairs = zip(half.events, single.events, strict=True)
    first = next((found for a, b in pairs if (found := _overflow(a, b)) is not None), None)
    if first is None:
        hint = "compute this part in float32"
        yield Violation("AS208", count, None, hint, evidence, "measured", level=level)
        return
    event, single_value, half_value = first
    message = f"{event.short_name} gives {half_value:g} in float16, {single_value:.4g} in float32: {count}"
    hint = "compute this part in float32, or scale queries and keys before their product"
    if half_value == -math.inf and single_value < -_MOST_IN_HALF:
        hint = "fill with torch.finfo(scores.dtype).min, the smallest number of the scores' own dtype"
    yield Violation("AS208", message, OutputRef(event.order), hint, evidence, "measured", level=level)


def _overflow(half: ReplayedCall, single: ReplayedCall) -> tuple[ReplayedCall, float, float] | None:
    """Return a call whose result isn't finite where the same call's result in float32 is, with both numbers."""
    for in_half, in_single in zip(half.values, single.values, strict=True):
        if in_half.dtype.is_floating_point and in_half.shape == in_single.shape:
            lost = is_not_finite(in_half) & torch.isfinite(in_single)
            if bool(lost.any()):
                return half, float(in_single[lost][0]), float(in_half[lost][0])
    return None

"""Does the softmax run over the keys, and do its weights reach the values unchanged?"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from attnshape.checks.attention.cores import Core, between
from attnshape.checks.attention.elementwise import MeasuredCore, axis_after, distinct
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Intervention
from attnshape.checks.interventions.replay import OutputRef, ReplayedCall
from attnshape.checks.interventions.small_sizes import symbol_or_number
from attnshape.checks.rules.protocol import Outcome, Undecided, Verification, Violation
from attnshape.tracing.operations import (
    ADDITIONS,
    DROPOUTS,
    ELEMENT_WRITES,
    EXPONENTIALS,
    LOG_SOFTMAXES,
    MASKS,
    MAXIMA,
    SCALINGS,
    SOFTMAXES,
    SUBTRACTIONS,
)

CODES: tuple[str, ...] = ("AS301", "AS302", "AS303", "AS304", "AS305")
TOPIC = "softmax"
_TWO_SOFTMAXES = 2
"""Rows sum to at least this if several softmaxes are concatenated or added."""
_MASK = "mask the scores with -inf before the softmax"
_VALUES = {"v", "value", "values"}
_MASKS = MASKS | ELEMENT_WRITES


def check(subject: Subject) -> Iterator[Outcome]:
    """Find the axis along which the weights sum to one, and where known numbers end up after the softmax."""
    if not subject.measured and not subject.fused:
        yield from _by_blocks(subject)
        return
    if not subject.measured:
        yield Verification("the softmax runs over the keys")  # by definition of PyTorch's fused attention
        return
    fine = False
    for measured in subject.measured:
        found = [*_dropout_before(subject, measured.core)]
        outcome = _axis(subject, measured) or _rows(subject, measured)
        yield from found
        if outcome is not None:
            yield outcome
        fine = fine or (outcome is None and not found)
    if fine:
        yield Verification("the softmax runs over the keys, and each row of weights sums to one")


def _by_blocks(subject: Subject) -> Iterator[Outcome]:
    """Check a softmax that is computed block by block: if every value is one, so must be every result."""
    names = [name for name in subject.inputs if name.rpartition(".")[2].lower() in _VALUES]
    made = {event.name for event in subject.base.events}
    if not made & EXPONENTIALS or not made & (MAXIMA | {"maximum"}) or len(names) != 1 or subject.base.state:
        yield Undecided(TOPIC, "no softmax was found")
        return
    run = subject.experiment.run(Intervention(inputs={names[0]: torch.ones_like}))
    if not run.follows(subject.base) or len(run.returned) != 1:
        yield Undecided(TOPIC, "it is computed block by block")
        return
    result = run.returned[0][1]
    if bool(torch.isclose(result, torch.ones_like(result), rtol=1e-5).all()):
        yield Verification("each row of weights sums to one over all blocks")
        return
    last = next(event for event in reversed(subject.base.events) if event.name in SCALINGS | EXPONENTIALS)
    yield Violation(
        code="AS302",
        message=f"rows of weights don't sum to one: if every value is 1, a result is {float(result.flatten()[0]):.4g}",
        at=last.refs[0],
        hint="with each new maximum, multiply both the sum and the output by exp(old - new)",
        evidence=f"set {names[0]} to 1 everywhere",
    )


def _axis(subject: Subject, measured: MeasuredCore) -> Outcome | None:
    core = measured.core
    weights = core.softmax.event.values[0]
    if not core.softmax.axes or not core.key_axes:
        return None
    axes = {_at_value(measured, axis) for axis in core.softmax.axes}
    if None in axes:
        return Undecided(TOPIC, "the code between the softmax and the values mixes weights")
    if axes & set(core.key_axes) or _sums_to_one(core):
        return None
    over = min(core.softmax.axes)
    key = core.weights.shape[core.key_axes[0]]
    return Violation(
        code="AS301",
        message=f"the softmax runs over axis {over} ({symbol_or_number(weights.shape[over], subject.numbers)}), "
        "but the values "
        f"are summed over axis {core.key_axes[0]} of the weights ({symbol_or_number(key, subject.numbers)}, the keys)",
        at=core.softmax.ref,
        hint="take the softmax over the key axis: dim=-1 for scores of shape (…, Lq, Lk)",
        evidence="changed the weights at one index at a time before the product with the values",
    )


def _at_value(measured: MeasuredCore, axis: int) -> int | None:
    """Return the axis of the weights in the value product that corresponds to an axis of the softmax."""
    core, mapping = measured.core, measured.weights_map
    made = core.softmax.event.values[0]
    if mapping is not None and mapping.elementwise:
        return axis_after(mapping, tuple(made.shape), axis)
    return axis if made.ndim == core.weights.ndim else None


def _sums_to_one(core: Core) -> bool:
    sums = core.weights.sum(core.key_axes)
    sums = sums[torch.isfinite(sums) & (sums != 0)]
    return bool(torch.isclose(sums, torch.ones_like(sums), atol=1e-4).all())


def _rows(subject: Subject, measured: MeasuredCore) -> Outcome | None:
    """Return why rows of weights don't sum to one in the value product, None if they do."""
    core, mapping = measured.core, measured.weights_map
    chain = between(subject.graph, core.softmax.ref, core.value.sources(core.weights_place))
    dropout = any(event.name in DROPOUTS for event in chain)
    if core.softmax.late or _sums_to_one(core):
        return None
    if not core.softmax.axes and core.softmax.event.name not in SOFTMAXES:
        message = "rows of weights don't sum to one over any axis"
        return _violation("AS302", message, core.softmax.ref, "divide by the sum over the keys")
    if core.softmax.event.name in LOG_SOFTMAXES:
        return _violation("AS302", "the weights are logarithms, from log_softmax", core.softmax.ref, "use softmax")
    sums = distinct((core.weights.sum(core.key_axes) * 1e6).round() / 1e6)
    if len(sums) == len(core.key_axes) == 1 and sums[0] >= _TWO_SOFTMAXES and not dropout:
        made = chain[-1].refs[0] if chain else core.softmax.ref
        hint = "take one softmax over all keys together"
        return _violation("AS302", f"rows of weights sum to {sums[0]:.4g}", made, hint)
    if mapping is None or not mapping.elementwise:
        return Undecided("rows of weights", "the code between the softmax and the values mixes weights")
    added = mapping.added[torch.isfinite(mapping.added)]
    if bool((added != 0).any()) or not bool(torch.isfinite(mapping.added).all()):
        return _added(subject, core, chain, added)
    factors = distinct(mapping.factor[torch.isfinite(mapping.factor)])
    if len(factors) == 2 and factors[0] == 0:
        return _masked(subject, core, chain) if factors[1] == 1 else None
    if len(factors) == 1 and factors[0] != 1 and not dropout:
        at = _first(chain, SCALINGS, core)
        event = subject.base.event(at)
        if len(event.given) == 1 or min(one.numel() for one in event.given) == 1:
            message = f"rows of weights sum to {factors[0]:.4g}: they are multiplied after the softmax"
            return _violation("AS302", message, at, "scale the scores before the softmax")
    if factors and factors[0] == 0:
        return _masked(subject, core, chain) if not dropout else None
    return None


def _added(subject: Subject, core: Core, chain: list[ReplayedCall], added: torch.Tensor) -> Violation:
    at = _first(chain, ADDITIONS | SUBTRACTIONS | _MASKS, core)
    if subject.base.event(at).name in _MASKS or not added.numel() or float(added.min()) < -1e3:
        return _violation("AS303", "the mask is applied after the softmax: rows of weights don't sum to one", at, _MASK)
    hint = "add it to the scores before the softmax"
    return _violation("AS304", "the bias is added after the softmax: rows of weights don't sum to one", at, hint)


def _masked(subject: Subject, core: Core, chain: list[ReplayedCall]) -> Violation | None:
    claims = subject.claims.arguments
    at = _first(chain, SCALINGS | _MASKS, core)
    event = subject.base.event(at)
    origins = {name for sources in event.sources for name in subject.graph.origins(sources)}
    if any(claims.get(name) == "dropout" for name in origins):
        return None
    message = "the mask is applied after the softmax: rows of weights sum to less than one"
    return _violation("AS303", message, at, _MASK)


def _first(chain: list[ReplayedCall], names: frozenset[str], core: Core) -> OutputRef:
    return next((event.refs[0] for event in chain if event.name in names), core.softmax.ref)


def _violation(code: str, message: str, at: OutputRef, hint: str) -> Violation:
    return Violation(
        code=code,
        message=message,
        at=at,
        hint=hint,
        evidence="replaced the softmax's weights by 0 and 1, and read them at the product with the values",
    )


def _dropout_before(subject: Subject, core: Core) -> Iterator[Violation]:
    """Yield a violation for each dropout, or pattern of it that was drawn beforehand, before the softmax."""
    for event in between(subject.graph, core.scores.ref, core.softmax.sources):
        names = {name for sources in event.sources for name in sources if isinstance(name, str)}
        drawn = any(subject.claims.arguments.get(name) == "dropout" for name in names)
        if drawn or (event.name in DROPOUTS and _drops(event)):
            yield Violation(
                code="AS305",
                message="dropout comes before the softmax: a dropped score becomes 0, and its key still gets weight",
                at=event.refs[0],
                hint="apply dropout to the weights, after the softmax",
                evidence="found the dropout between the product and the softmax",
            )


def _drops(event: ReplayedCall) -> bool:
    """Return whether a dropout drops anything in training mode."""
    rate = event.keywords.get("p", event.args[1] if len(event.args) > 1 else 0.5)
    return isinstance(rate, (int, float)) and rate > 0

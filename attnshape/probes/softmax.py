"""Whether the softmax runs over the keys, and what is done to the weights behind it."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from attnshape.attention.chain import between
from attnshape.attention.core import Core
from attnshape.attention.measured import MeasuredCore, axis_behind, distinct
from attnshape.attention.outcome import Mistake, NotExamined, Outcome, Proved
from attnshape.attention.subject import Subject
from attnshape.inference.kinds import DROPOUT
from attnshape.replaying.bench import Change
from attnshape.replaying.letters import in_words
from attnshape.replaying.replay import Address, Event

CODES = ("AS301", "AS302", "AS303", "AS304", "AS305")
WHAT = "softmax"
_MULTIPLIES = {"mul", "mul_", "multiply", "div", "div_", "true_divide"}
_TWICE = 2
"""What rows sum to at least where several softmaxes are joined or added."""
_VALUES = {"v", "value", "values"}
_EXPONENTIALS = {"exp", "exp_", "exp2", "exp2_"}
_MAXIMA = {"amax", "max", "maximum", "logsumexp"}
_ADDS = {"add", "add_", "sub", "sub_"}
_MASKS = {"masked_fill", "masked_fill_", "where", "__setitem__"}


def examine(subject: Subject) -> Iterator[Outcome]:
    """Read along which axis the weights sum to one, and what known numbers become behind the softmax."""
    if not subject.measured and not subject.fused:
        yield from _by_blocks(subject)
        return
    if not subject.measured:
        fused = "it is part of torch's own fused attention, over the keys" if subject.fused else "none was found"
        yield Proved("softmax over the keys") if subject.fused else NotExamined(WHAT, fused)
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
        yield Proved("softmax over the keys, each row of weights sums to one")


def _by_blocks(subject: Subject) -> Iterator[Outcome]:
    """Judge a softmax that is taken block by block: with values of one everywhere, every result must be one."""
    names = [name for name in subject.inputs if name.rpartition(".")[2].lower() in _VALUES]
    made = {event.name for event in subject.base.events}
    if not made & _EXPONENTIALS or not made & _MAXIMA or len(names) != 1 or subject.base.state:
        yield NotExamined(WHAT, "none was found")
        return
    run = subject.bench.run(Change(inputs={names[0]: torch.ones_like}))
    if not run.follows(subject.base) or len(run.returned) != 1:
        yield NotExamined(WHAT, "it is taken block by block")
        return
    result = run.returned[0][1]
    if bool(torch.isclose(result, torch.ones_like(result), rtol=1e-5).all()):
        yield Proved("each row of weights sums to one, block by block")
        return
    last = next(event for event in reversed(subject.base.events) if event.name in _MULTIPLIES | _EXPONENTIALS)
    yield Mistake(
        code="AS302",
        message=f"rows of weights don't sum to one: with values of one a result is {float(result.flatten()[0]):.4g}",
        at=last.addresses[0],
        hint="with each new maximum, shrink both the sum and the output by exp(old - new)",
        evidence=f"put 1 everywhere in {names[0]}",
    )


def _axis(subject: Subject, measured: MeasuredCore) -> Outcome | None:
    core = measured.core
    weights = core.softmax.event.values[0]
    if not core.softmax.axes or not core.key_axes:
        return None
    axes = {_at_value(measured, axis) for axis in core.softmax.axes}
    if None in axes:
        return NotExamined(WHAT, "what lies between it and the values mixes the weights")
    if axes & set(core.key_axes) or _sums_to_one(core):
        return None
    over = min(core.softmax.axes)
    key = core.weights.shape[core.key_axes[0]]
    return Mistake(
        code="AS301",
        message=f"softmax runs over axis {over} ({in_words(weights.shape[over], subject.numbers)}), but the values are "
        f"summed over axis {core.key_axes[0]} of the weights ({in_words(key, subject.numbers)}, the keys)",
        at=core.softmax.address,
        hint="take the softmax over the axis of the keys: dim=-1 where scores are (…, queries, keys)",
        evidence="changed one index at a time of the weights in the value product",
    )


def _at_value(measured: MeasuredCore, axis: int) -> int | None:
    """Return which axis of the weights, as they go into the value product, one of the softmax stands for."""
    core, way = measured.core, measured.behind
    made = core.softmax.event.values[0]
    if way is not None and way.elementwise:
        return axis_behind(way, tuple(made.shape), axis)
    return axis if made.ndim == core.weights.ndim else None


def _sums_to_one(core: Core) -> bool:
    sums = core.weights.sum(core.key_axes)
    sums = sums[torch.isfinite(sums) & (sums != 0)]
    return bool(torch.isclose(sums, torch.ones_like(sums), atol=1e-4).all())


def _rows(subject: Subject, measured: MeasuredCore) -> Outcome | None:
    """Say why rows of weights don't sum to one, as they go into the value product."""
    core, way = measured.core, measured.behind
    chain = between(subject.flow, core.softmax.address, core.value.sources(core.weights_place))
    dropped = any(event.name in DROPOUT for event in chain)
    if core.softmax.late or _sums_to_one(core):
        return None
    if not core.softmax.axes and core.softmax.event.name not in ("softmax", "_safe_softmax"):
        at = core.softmax.address
        return _mistake(
            "AS302", "rows of weights don't sum to one over any axis", at, "divide by the sum over the keys"
        )
    if core.softmax.event.name == "log_softmax":
        return _mistake("AS302", "the weights are logarithms: log_softmax", core.softmax.address, "use softmax")
    sums = distinct((core.weights.sum(core.key_axes) * 1e6).round() / 1e6)
    if len(sums) == len(core.key_axes) == 1 and sums[0] >= _TWICE and not dropped:
        made = chain[-1].addresses[0] if chain else core.softmax.address
        return _mistake(
            "AS302", f"rows of weights sum to {sums[0]:.4g}", made, "take one softmax over all keys together"
        )
    if way is None or not way.elementwise:
        return NotExamined("rows of weights", "what lies between the softmax and the values mixes the weights")
    added = way.added[torch.isfinite(way.added)]
    if bool((added != 0).any()) or not bool(torch.isfinite(way.added).all()):
        return _added(subject, core, chain, added)
    factors = distinct(way.factor[torch.isfinite(way.factor)])
    dropout = [event for event in chain if event.name in DROPOUT]
    if len(factors) == 2 and factors[0] == 0:
        return _masked(subject, core, chain) if factors[1] == 1 else None
    if len(factors) == 1 and factors[0] != 1 and not dropout:
        at = _first(chain, _MULTIPLIES, core)
        event = subject.base.event(at)
        if len(event.given) == 1 or min(one.numel() for one in event.given) == 1:
            return _mistake(
                "AS302",
                f"rows of weights sum to {factors[0]:.4g}: they are multiplied behind the softmax",
                at,
                "scale the scores, before the softmax",
            )
    if factors and factors[0] == 0:
        return _masked(subject, core, chain) if not dropout else None
    return None


def _added(subject: Subject, core: Core, chain: list[Event], added: torch.Tensor) -> Mistake:
    at = _first(chain, _ADDS | _MASKS, core)
    if subject.base.event(at).name in _MASKS or not added.numel() or float(added.min()) < -1e3:
        return _mistake(
            "AS303",
            "the mask is applied behind the softmax: rows of weights don't sum to one",
            at,
            "mask the scores with -inf before the softmax",
        )
    return _mistake(
        "AS304",
        "the bias is added behind the softmax: rows of weights don't sum to one",
        at,
        "add it to the scores, before the softmax",
    )


def _masked(subject: Subject, core: Core, chain: list[Event]) -> Mistake | None:
    claims = subject.claims.arguments
    at = _first(chain, _MULTIPLIES | _MASKS, core)
    event = subject.base.event(at)
    origins = {name for sources in event.sources for name in subject.flow.origins(sources)}
    if any(claims.get(name) == "dropout" for name in origins):
        return None
    return _mistake(
        "AS303",
        "the mask is applied behind the softmax: rows of weights sum to less than one",
        at,
        "mask the scores with -inf before the softmax",
    )


def _first(chain: list[Event], names: set[str], core: Core) -> Address:
    return next((event.addresses[0] for event in chain if event.name in names), core.softmax.address)


def _mistake(code: str, message: str, at: Address, hint: str) -> Mistake:
    return Mistake(
        code=code,
        message=message,
        at=at,
        hint=hint,
        evidence="put 0 and 1 in the place of the softmax's weights, and read them at the value product",
    )


def _dropout_before(subject: Subject, core: Core) -> Iterator[Mistake]:
    """Find dropout, or a pattern of it drawn beforehand, between the products and the softmax."""
    for event in between(subject.flow, core.scores.address, core.softmax.sources):
        claims = subject.claims.arguments
        drawn = {
            name
            for sources in event.sources
            for name in sources
            if isinstance(name, str) and claims.get(name) == "dropout"
        }
        if drawn or (event.name in DROPOUT and _drops(event)):
            yield Mistake(
                code="AS305",
                message="dropout comes before the softmax: a dropped score is 0, which gets weight all the same",
                at=event.addresses[0],
                hint="drop weights, behind the softmax",
                evidence="found the dropout between the products and the softmax",
            )


def _drops(event: Event) -> bool:
    """Say whether a dropout drops anything in training."""
    rate = event.keywords.get("p", event.args[1] if len(event.args) > 1 else 0.5)
    return isinstance(rate, (int, float)) and rate > 0

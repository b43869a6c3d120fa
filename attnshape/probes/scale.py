"""What the scores are multiplied by, from the projections to the softmax."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from attnshape.attention.chain import between
from attnshape.attention.core import Core, FusedCore
from attnshape.attention.operands import Operand, operands, projection
from attnshape.attention.outcome import Measured, Mistake, NotExamined, Outcome, Proved
from attnshape.attention.subject import Subject
from attnshape.inference.kinds import SCALE
from attnshape.probes.scales import Known, expected, known_scales
from attnshape.replaying.bench import Change
from attnshape.replaying.replay import Address, Event, Replace

CODES = ("AS201", "AS202", "AS203", "AS204", "AS205", "AS207")
WHAT = "scale of the scores"
_CLOSE = 1e-4
_FOLDED = 3
"""Kinds of score that may be added, each scaled so that their sum keeps its spread."""


def examine(subject: Subject) -> Iterator[Outcome]:
    """Put known numbers in the scores' place, and features of a known length in the projections'."""
    if not subject.measured and not subject.fused:
        yield NotExamined(WHAT, "no attention with a softmax was found")
        return
    seen: set[tuple[str, object]] = set()
    for core, at, alpha, why in _factors(subject):
        outcome = _judge(subject, core, at, alpha, why)
        place = subject.source(outcome.at) if isinstance(outcome, Mistake) else None
        key = (getattr(outcome, "code", str(outcome)), place)
        if key not in seen:
            seen.add(key)
            yield outcome


def _factors(subject: Subject) -> Iterator[tuple[Core | FusedCore, Address, float | None, str]]:
    """Yield each core with what its products are multiplied by behind them, or why that can't be told."""
    for measured in subject.measured:
        core = measured.core
        way = measured.before
        inner = _inner(core)
        if way is None or not way.elementwise:
            yield core, core.scores.address, None, "scores are no multiples of the products: capped, or mixed by heads"
        elif way.one_factor is None or inner is None:
            yield core, core.scores.address, None, "the factor isn't the same everywhere"
        else:
            yield core, core.scores.address, way.one_factor * inner * core.softmax.base, ""
    for fused in subject.fused:
        yield fused, fused.context, fused.scale, ""


def _inner(core: Core) -> float | None:
    """Return what the product itself multiplies by: baddbmm and addmm have a factor of their own."""
    made = core.scores
    if made.last.name not in ("baddbmm", "addmm"):
        return 1.0
    plain = torch.matmul(made.given(made.left), made.given(made.right))
    ratio = ((made.result - made.added) / plain).flatten()
    return float(ratio.median()) if bool(torch.isclose(ratio, ratio.median(), rtol=1e-5).all()) else None


def _judge(subject: Subject, core: Core | FusedCore, at: Address, alpha: float | None, why: str) -> Outcome:
    if alpha is None:
        return NotExamined(WHAT, why)
    own = [one for one in operands(subject) if one.core is core]
    query, key = own[0], own[1]
    if len(_contracted(query)) != 1:
        return NotExamined(WHAT, "scores sum over more than one axis")
    lengths = [_stretch(subject, query), _stretch(subject, key)]
    if any(length is None for length in lengths):
        return NotExamined(WHAT, "what is done to queries or keys on their way is no single factor")
    scale = abs(alpha) * math.prod(length for length in lengths if length is not None)
    width = query.value.shape[_contracted(query)[0]]
    widths = _widths_of(core, query)
    place = _place(subject, core, at, (query, key))
    claimed = expected(subject, width)
    if subject.claims.scale is not None:
        if math.isclose(scale, claimed, rel_tol=_CLOSE):
            return Proved(f"scale {subject.claims.scale}, as claimed")
    elif (m := _kinds(scale, widths)) is not None:
        return Measured(f"scale 1/sqrt({m}*Dk)" if m > 1 else "scale 1/sqrt(Dk)")
    if math.isclose(scale, 1.0, rel_tol=_CLOSE):
        return _unscaled(subject, place, width, claimed)
    found = next(
        (known for known in known_scales(subject, width) if math.isclose(scale, known.value, rel_tol=_CLOSE)), None
    )
    if found is None and subject.claims.scale is None:
        return Measured(f"scale {scale:.4g}, which is no known function of the sizes", place)
    return _mistake(subject, place, scale, claimed, found)


def _unscaled(subject: Subject, place: Address, width: int, claimed: float) -> Outcome:
    if subject.claims.scale is None:
        return Measured("no scale", place)
    return Mistake(
        code="AS204",
        message=f"scores are not scaled, expected {subject.claims.scale} = {claimed:.4g}",
        at=place,
        hint="divide by math.sqrt(Dk)",
        shown="reproduced",
        evidence="put 0, 1 and 2 in the place of the products, and read 0, 1 and 2 at the softmax",
    )


def _mistake(subject: Subject, place: Address, scale: float, claimed: float, found: Known | None) -> Outcome:
    said = subject.claims.scale or "1/sqrt(Dk)"
    text = f"{found.text} = {scale:.4g}" if found is not None else f"{scale:.4g}"
    return Mistake(
        code=found.code if found is not None else "AS207",
        message=f"scores are scaled by {text}, expected {said} = {claimed:.4g}",
        at=place,
        hint=found.hint if found is not None else f"multiply by {said}",
        shown="reproduced",
        evidence="put known numbers in the place of products and projections, and read them at the softmax",
    )


def _kinds(scale: float, widths: set[int]) -> int | None:
    """Return for how many kinds of score that are added together a scale is right, None where it isn't."""
    found = (
        m for m in range(1, _FOLDED + 1) for w in widths if math.isclose(scale, 1 / math.sqrt(m * w), rel_tol=_CLOSE)
    )
    return next(found, None)


def _widths_of(core: Core | FusedCore, query: Operand) -> set[int]:
    """Return the numbers of features that a score may be said to sum over: of one product, and of all together."""
    if isinstance(core, FusedCore):
        return {query.value.shape[-1]}
    every = [
        math.prod(one.given(one.left).shape[axis] for axis in one.contracted(one.left))
        for one in (core.scores, *core.more_scores)
    ]
    return {*every, sum(every)}


def _stretch(subject: Subject, operand: Operand) -> float | None:
    """Return how much longer a query or key is than what its projection made; None where that differs."""
    made = projection(subject, operand.sources)
    names = sorted(subject.flow.origins(operand.sources) & set(subject.inputs))
    if made is None and not names:
        return 1.0
    width = (subject.base.value(made) if made is not None else subject.base.inputs[names[0]]).shape[-1]
    head = subject.numbers.get("Dk", 0) or operand.value.shape[_contracted(operand)[0]]
    starts = (0, head, width // 3, width // 3 * 2, width - 2 * head, width - head)
    features = dict.fromkeys(feature for feature in starts if 0 <= feature < width)
    for feature in features:
        longer = _longer(feature)
        change = (
            Change(results={made: longer}) if made is not None else Change(inputs=dict.fromkeys(names, _first_longer))
        )
        run = subject.bench.run(change)
        if not run.follows(subject.base):
            return None
        difference = operand.of(run) - operand.value
        lengths = difference.double().square().sum(_contracted(operand)).sqrt().flatten()
        lengths = lengths[lengths > subject.bench.tolerance]
        if lengths.numel():
            same = bool(torch.isclose(lengths, lengths[0], rtol=1e-4).all())
            return float(lengths[0]) if same else None
    return None


def _contracted(operand: Operand) -> tuple[int, ...]:
    if isinstance(operand.core, FusedCore):
        return (operand.value.ndim - 1,)
    return operand.core.scores.contracted(operand.place)


def _first_longer(value: torch.Tensor) -> torch.Tensor:
    value[(0,) * value.ndim] += 1
    return value


def _longer(feature: int) -> Replace:
    def change(value: torch.Tensor) -> torch.Tensor:
        value[..., feature] += 1
        return value

    return change


def _place(subject: Subject, core: Core | FusedCore, at: Address, own: tuple[Operand, ...]) -> Address:
    """Return the call that scales: behind the product, else on the way of the queries or keys, else the product."""
    if isinstance(core, Core):
        chain = between(subject.flow, core.scores.address, core.softmax.sources)
        scaling = [event for event in chain if _scales(event)]
        if scaling:
            return scaling[0].addresses[0]
    for operand in own:
        made = projection(subject, operand.sources)
        chain = between(subject.flow, made, operand.sources) if made is not None else []
        if made is None:
            chain = list(subject.flow.upstream(operand.sources))
        scaling = [event for event in chain if _scales(event)]
        if scaling:
            return scaling[0].addresses[0]
    return at


def _scales(event: Event) -> bool:
    return event.name in SCALE and sum(one.numel() > 1 for one in event.given) == 1

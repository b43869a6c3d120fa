"""Are the scores scaled by 1/sqrt(Dk), from the projections to the softmax?

Scaled dot-product attention (Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, equation 1) is
softmax(Q Kᵀ / sqrt(Dk)) V. Disentangled attention (He et al. 2021, https://arxiv.org/abs/2006.03654, equation 4) adds
three kinds of score and divides by sqrt(3*Dk).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from attnshape.checks.attention.cores import Core, FusedCore, between
from attnshape.checks.attention.operands import AttentionOperand, operands, projection
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Intervention
from attnshape.checks.interventions.replay import OutputRef, ReplayedCall
from attnshape.checks.rules.protocol import Observation, Outcome, Undecided, Verification, Violation
from attnshape.options.claims import HEAD_WIDTH
from attnshape.tracing.operations import PRODUCTS_WITH_ADDEND, SCALINGS

_VALUES = re.compile(r"width of (v|values?)$")
_DIVIDE = "divide by math.sqrt(Dk), the width of one head"
_NOT_MULTIPLY = "divide by math.sqrt(Dk) instead of multiplying"


@dataclass(frozen=True)
class KnownFactor:
    """A factor that a known mistake makes."""

    code: str
    formula: str
    value: float
    hint: str


def known_factors(subject: Subject, width: int) -> Iterator[KnownFactor]:
    """Yield the factors of known mistakes, the likely ones first, for heads of a width."""
    sizes = subject.numbers
    yield KnownFactor("AS203", "1/Dk", 1 / width, "scale by 1/sqrt(Dk) once: either the scores or the queries")
    widths = _other_widths(subject, width)
    for name, size in widths.items():
        yield KnownFactor("AS207" if _VALUES.search(name) else "AS201", f"1/sqrt({name})", size**-0.5, _DIVIDE)
    for symbol in ("Lk", "L", "Lq", "Lp", *subject.lengths):
        if symbol in sizes:
            yield KnownFactor("AS202", f"1/sqrt({symbol})", sizes[symbol] ** -0.5, _DIVIDE)
            yield KnownFactor("AS202", f"1/{symbol}", 1 / sizes[symbol], _DIVIDE)
    if {"Lp", "L"} <= sizes.keys():
        yield KnownFactor("AS202", "1/sqrt(Lp+L)", (sizes["Lp"] + sizes["L"]) ** -0.5, _DIVIDE)
    yield KnownFactor("AS205", "sqrt(Dk)", math.sqrt(width), _NOT_MULTIPLY)
    yield KnownFactor("AS205", "Dk", float(width), _NOT_MULTIPLY)
    yield KnownFactor("AS203", "1/Dk**1.5", width**-1.5, "scale by 1/sqrt(Dk) once")
    for name, size in widths.items():
        yield KnownFactor("AS201", f"1/{name}", 1 / size, _DIVIDE)
        yield KnownFactor("AS201", f"1/sqrt(Dk*{name})", (width * size) ** -0.5, _DIVIDE)
        yield KnownFactor("AS205", f"sqrt({name})", math.sqrt(size), _NOT_MULTIPLY)
    for symbol in ("H", "Hkv", "B"):
        if sizes.get(symbol, 1) > 1:
            yield KnownFactor("AS207", f"1/sqrt({symbol})", sizes[symbol] ** -0.5, _DIVIDE)


def expected_scale(subject: Subject, width: int) -> float:
    """Return the claimed scale for heads of a width, 1/sqrt(Dk) if none is claimed.

    Raises AttnshapeError if the claim has no value at these sizes.
    """
    claimed = subject.claims.scale_at({HEAD_WIDTH: width, **subject.numbers})
    return claimed if claimed is not None else 1 / math.sqrt(width)


def _other_widths(subject: Subject, width: int) -> dict[str, int]:
    """Return the widths that a model may have besides that of one head, by name."""
    widths = {}
    if "D" in subject.numbers:
        widths["D"] = subject.numbers["D"]
    elif "H" in subject.numbers:
        widths["H*Dk"] = subject.numbers["H"] * width
    for name, value in subject.inputs.items():
        if value.ndim >= 2 and value.is_floating_point() and value.shape[-1] not in widths.values():
            widths[f"the width of {name}"] = value.shape[-1]
    return {name: number for name, number in widths.items() if number not in (width, 1)}


CODES: tuple[str, ...] = ("AS201", "AS202", "AS203", "AS204", "AS205", "AS207")
TOPIC = "scale of the scores"
_CLOSE = 1e-4
_MOST_KINDS = 3
"""The most kinds of score that are added, each scaled so that their sum keeps its standard deviation."""


def check(subject: Subject) -> Iterator[Outcome]:
    """Replace scores by known numbers, lengthen queries and keys by a known amount, and read the factor of both."""
    if not subject.measured and not subject.fused:
        yield Undecided(TOPIC, "no attention with a softmax was found", _claimed(subject))
        return
    outcomes: dict[object, Outcome] = {}
    for outcome in _outcomes(subject):
        place = subject.source(outcome.at) if isinstance(outcome, Violation) else None
        outcomes.setdefault((getattr(outcome, "code", str(outcome)), place), outcome)
    yield from outcomes.values()


def _claimed(subject: Subject) -> tuple[str, ...]:
    return ("scale",) if subject.claims.scale is not None else ()


def _outcomes(subject: Subject) -> Iterator[Outcome]:
    for measured in subject.measured:
        core, mapping = measured.core, measured.scores_map
        inner = _inner(core)
        if mapping is None or not mapping.elementwise:
            why = "the scores are not a multiple of the products: they are capped, or heads are mixed"
            yield Undecided(TOPIC, why, _claimed(subject))
        elif mapping.common_factor is None or inner is None:
            yield Undecided(TOPIC, "the factor differs between scores", _claimed(subject))
        else:
            yield _judge(subject, core, core.scores.ref, mapping.common_factor * inner * core.softmax.base)
    for fused in subject.fused:
        yield _judge(subject, fused, fused.context, fused.scale)


def _inner(core: Core) -> float | None:
    """Return the factor within the product itself: baddbmm and addmm have one."""
    scores = core.scores
    if scores.last.name not in PRODUCTS_WITH_ADDEND:
        return 1.0
    plain = torch.matmul(scores.operand(scores.left), scores.operand(scores.right))
    ratio = ((scores.result - scores.added) / plain).flatten()
    return float(ratio.median()) if bool(torch.isclose(ratio, ratio.median(), rtol=1e-5).all()) else None


def _judge(subject: Subject, core: Core | FusedCore, at: OutputRef, factor: float) -> Outcome:
    query, key, _ = (operand for operand in operands(subject) if operand.core is core)
    if len(query.contracted) != 1:
        return Undecided(TOPIC, "the product of queries and keys contracts more than one axis", _claimed(subject))
    lengths = _stretch(subject, query), _stretch(subject, key)
    if lengths[0] is None or lengths[1] is None:
        why = "queries or keys are not simply multiplied by one factor before their product"
        return Undecided(TOPIC, why, _claimed(subject))
    scale = abs(factor) * (lengths[0] * lengths[1])
    width = query.value.shape[query.contracted[0]]
    place = _place(subject, core, at, (query, key))
    claim, expected = subject.claims.scale, expected_scale(subject, width)
    claimed = claim.text if claim is not None else None

    def is_scale(number: float) -> bool:
        return math.isclose(scale, number, rel_tol=_CLOSE)

    if claimed is not None and is_scale(expected):
        return Verification(f"scores are scaled by {claimed}, as claimed", _claimed(subject))
    # how many kinds of score are added
    for kinds in range(1, _MOST_KINDS + 1) if claimed is None else ():
        if any(is_scale(1 / math.sqrt(kinds * width)) for width in _widths_of(core, query)):
            return Observation(f"scores are scaled by 1/sqrt({f'{kinds}*Dk' if kinds > 1 else 'Dk'})")
    if is_scale(1.0):
        if claimed is None:
            return Observation("scores are not scaled", place)
        message = f"scores are not scaled, expected {claimed} = {expected:.4g}"
        evidence = "replaced the products by 0, 1 and 2, and read 0, 1 and 2 at the softmax"
        return Violation(
            "AS204", message, place, "divide by math.sqrt(Dk)", evidence, "reproduced", claims=_claimed(subject)
        )
    known = next((known for known in known_factors(subject, width) if is_scale(known.value)), None)
    if known is None and claimed is None:
        return Observation(f"scores are scaled by {scale:.4g}, which is no known function of the sizes", place)
    known = known or KnownFactor("AS207", "", scale, f"multiply by {claimed}")
    by = f"{known.formula} = {scale:.4g}" if known.formula else f"{scale:.4g}"
    message = f"scores are scaled by {by}, expected {claimed or '1/sqrt(Dk)'} = {expected:.4g}"
    evidence = "replaced products and projections by known numbers, and read them at the softmax"
    return Violation(known.code, message, place, known.hint, evidence, "reproduced", claims=_claimed(subject))


def _widths_of(core: Core | FusedCore, query: AttentionOperand) -> set[int]:
    """Return how many features a score sums over: in each product, and in all products that are added."""
    if isinstance(core, FusedCore):
        return {query.value.shape[-1]}
    widths = [
        math.prod(product.operand(product.left).shape[axis] for axis in product.contracted(product.left))
        for product in (core.scores, *core.more_scores)
    ]
    return {*widths, sum(widths)}


def _stretch(subject: Subject, operand: AttentionOperand) -> float | None:
    """Return the factor between a projection and the query or key that enters the product; None if there isn't one."""
    ref = projection(subject, operand.sources)
    names = sorted(subject.graph.origins(operand.sources) & set(subject.inputs))
    if ref is None and not names:
        return 1.0
    width = (subject.base.value(ref) if ref is not None else subject.base.inputs[names[0]]).shape[-1]
    head = subject.numbers.get("Dk", 0) or operand.value.shape[operand.contracted[0]]
    starts = (0, head, width // 3, width // 3 * 2, width - 2 * head, width - head)
    features = dict.fromkeys(feature for feature in starts if 0 <= feature < width)
    for feature in features:
        change = Intervention(inputs=dict.fromkeys(names, _first_longer))
        if ref is not None:
            change = Intervention(results={ref: partial(_longer, feature)})
        run = subject.experiment.run(change)
        if not run.follows(subject.base):
            return None
        difference = operand.of(run) - operand.value
        lengths = difference.double().square().sum(operand.contracted).sqrt().flatten()
        lengths = lengths[lengths > subject.experiment.tolerance]
        if lengths.numel():
            same = bool(torch.isclose(lengths, lengths[0], rtol=1e-4).all())
            return float(lengths[0]) if same else None
    return None


def _first_longer(value: torch.Tensor) -> torch.Tensor:
    value[(0,) * value.ndim] += 1
    return value


def _longer(feature: int, value: torch.Tensor) -> torch.Tensor:
    value[..., feature] += 1
    return value


def _place(subject: Subject, core: Core | FusedCore, at: OutputRef, own: tuple[AttentionOperand, ...]) -> OutputRef:
    """Return the call that scales: after the product, else on the path of the queries or keys, else the product."""
    flow = subject.graph
    paths: list[Iterable[ReplayedCall]] = []
    if isinstance(core, Core):
        paths.append(between(flow, core.scores.ref, core.softmax.sources))
    for operand in own:
        ref = projection(subject, operand.sources)
        paths.append(between(flow, ref, operand.sources) if ref is not None else flow.upstream(operand.sources))
    scalings = (event for path in paths for event in path if event.name in SCALINGS)
    return next(
        (event.refs[0] for event in scalings if sum(value.numel() > 1 for value in event.operand_values) == 1), at
    )

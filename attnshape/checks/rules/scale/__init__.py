"""Are the scores scaled by 1/sqrt(Dk), from the projections to the softmax?

Scaled dot-product attention (Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, equation 1) is
softmax(Q Kᵀ / sqrt(Dk)) V. Disentangled attention (He et al. 2021, https://arxiv.org/abs/2006.03654, equation 4) adds
three kinds of score and divides by sqrt(3*Dk).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import EllipsisType

import torch
from torch import Tensor

from attnshape.checks.attention.cores import Core, FusedCore, between
from attnshape.checks.attention.definitions import number_definition
from attnshape.checks.attention.elementwise import HIDES, ElementwiseMap
from attnshape.checks.attention.operands import AttentionOperand, operands, projection
from attnshape.checks.attention.simultaneous import SimultaneousRun
from attnshape.checks.attention.subject import Subject, once
from attnshape.checks.attention.token_positions import token_axes
from attnshape.checks.interventions.experiment import Intervention, ReplayRun
from attnshape.checks.interventions.replay import OutputRef, Replace, ReplayedCall
from attnshape.checks.rules.protocol import Observation, Outcome, Undecided, Verification, Violation
from attnshape.checks.rules.scale.changed_scores import LateScale, factors_to_softmax, scale_after_cap
from attnshape.checks.rules.scale.readouts import readout
from attnshape.checks.rules.scale.running import running_scores
from attnshape.checks.rules.scale.spelled_norms import spelled_norm
from attnshape.checks.rules.scale.temperatures import check_temperatures
from attnshape.model.report import Level
from attnshape.options.claims import HEAD_WIDTH
from attnshape.tracing.operations import (
    ADDITIONS,
    CHANNEL_NORMS,
    CONVOLUTIONS,
    DATA_MOVEMENT,
    GATHERS,
    JOINS,
    PRODUCTS_WITH_ADDEND,
    SCALINGS,
    SUMS,
    TOKEN_NORMS,
)

_VALUES = re.compile(r"width of (v|values?)$")
_DIVIDE = "divide by math.sqrt(Dk), the width of one head"
_PRECEDENCE = "write Dk**-0.5 or math.sqrt(Dk): in Dk**-1/2 and Dk**1/2 the power comes before the division"
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
    for symbol in ("Lk", "L", "Lq", subject.past, *subject.lengths):
        if symbol in sizes:
            yield KnownFactor("AS202", f"1/sqrt({symbol})", sizes[symbol] ** -0.5, _DIVIDE)
            yield KnownFactor("AS202", f"1/{symbol}", 1 / sizes[symbol], _DIVIDE)
    if subject.past and "L" in sizes:
        together = subject.past_size + sizes["L"]
        yield KnownFactor("AS202", f"1/sqrt({subject.past}+L)", together**-0.5, _DIVIDE)
    yield KnownFactor("AS205", "sqrt(Dk)", math.sqrt(width), _NOT_MULTIPLY)
    yield KnownFactor("AS205", "Dk", float(width), _NOT_MULTIPLY)
    yield KnownFactor("AS203", "1/Dk**1.5", width**-1.5, "scale by 1/sqrt(Dk) once")
    for name, size in widths.items():
        yield KnownFactor("AS201", f"1/{name}", 1 / size, _DIVIDE)
        yield KnownFactor("AS201", f"1/sqrt(Dk*{name})", (width * size) ** -0.5, _DIVIDE)
        yield KnownFactor("AS205", f"sqrt({name})", math.sqrt(size), _NOT_MULTIPLY)
    for formula, value in (("1/(2*Dk)", 0.5 / width), ("2/Dk", 2 / width)):
        yield KnownFactor("AS207", formula, value, _PRECEDENCE)
    for symbol in ("H", "Hkv", "B"):
        if sizes.get(symbol, 1) > 1:
            yield KnownFactor("AS207", f"1/sqrt({symbol})", sizes[symbol] ** -0.5, _DIVIDE)


def expected_scale(subject: Subject, width: int) -> float:
    """Return the claimed scale for heads of a width, 1/sqrt(Dk) if none is claimed.

    Raises AttnshapeError if the claim has no value at these sizes.
    """
    # a head's width that only follows from other sizes may be that of another layer
    record = subject.experiment.target.sizes.records.get(HEAD_WIDTH)
    numbers = {HEAD_WIDTH: width, **subject.numbers}
    if record is not None and record.origin == "derived":
        numbers[HEAD_WIDTH] = width
    claimed = subject.claims.scale_at(numbers)
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
_EVIDENCE = "replaced products and projections by known numbers, and read them at the softmax"
_NO_FACTOR = "queries or keys are not simply multiplied by one factor before their product"
_OF_A_PAIR = 2
"""How many entries of a query or key a rotation makes of one."""
_BAGS = SUMS | {"mean"}
"""Calls that make one vector of the words of a token, for which a table has an entry each."""
_MOST_KINDS = 3
"""The most kinds of score that are added, each scaled so that their sum keeps its standard deviation."""


def check(subject: Subject) -> Iterator[Outcome]:
    """Replace scores by known numbers, lengthen queries and keys by a known amount, and read the factor of both."""
    yield from check_temperatures(subject)
    outcomes: dict[object, Outcome] = {}
    for outcome in _outcomes(subject):
        place = subject.source(outcome.at) if isinstance(outcome, Violation) else None
        # the number itself is wrong there; elsewhere it may be right, and used twice or on one side only
        if isinstance(outcome, Violation) and outcome.at is not None and outcome.code in ("AS201", "AS202"):
            outcome = replace(outcome, made=number_definition(subject, outcome.at))
        outcomes.setdefault((getattr(outcome, "code", str(outcome)), place), outcome)
    yield from outcomes.values()


def _claimed(subject: Subject) -> tuple[str, ...]:
    return ("scale",) if subject.claims.scale is not None else ()


def _outcomes(subject: Subject) -> Iterator[Outcome]:
    if not subject.measured and not subject.fused:
        yield from _of_exponentials(subject)
    for measured in subject.measured:
        core, mapping = measured.core, measured.scores_map
        inner = _inner(core)
        chain = between(subject.graph, core.scores.ref, core.softmax.sources)
        if any(event.name in CHANNEL_NORMS | TOKEN_NORMS for event in chain):
            # in evaluation a batch norm's statistics are constants, which in training follow from the scores
            yield Undecided(TOPIC, "the scores are normalised before the softmax", _claimed(subject))
        elif mapping is None or not mapping.elementwise:
            yield from _of_changed_scores(subject, core, inner)
        elif mapping.common_factor is None or inner is None:
            yield Undecided(TOPIC, "the factor differs between scores", _claimed(subject))
        else:
            kinds = _possible_kinds(core, mapping)
            factor = mapping.common_factor * inner * core.softmax.base
            yield from _of_core(subject, core, core.scores.ref, factor, kinds)
    for fused in subject.fused:
        yield from _of_core(subject, fused, fused.context, fused.scale, {1})


def _of_changed_scores(subject: Subject, core: Core, inner: float | None) -> Iterator[Outcome]:
    """Yield the outcome of scores that get more than a factor and a sum on their way to the softmax."""
    outcomes: list[Outcome] = []
    for found in factors_to_softmax(subject, core) if inner is not None else ():
        factor = found.number * (inner or 1.0) * core.softmax.base
        outcomes += map(found.told, _of_core(subject, core, core.scores.ref, factor, _possible_kinds(core, None)))
    right = [outcome for outcome in outcomes if isinstance(outcome, (Verification, Observation))]
    late = scale_after_cap(subject, core) if right else None
    if late is not None and not math.isclose(late.after, 1.0, rel_tol=_CLOSE) and inner is not None:
        factors = (late.inside * inner, late.inside * late.after * inner)
        inside, outside = (list(_of_core(subject, core, core.scores.ref, factor, {1})) for factor in factors)
        if any(isinstance(one, Violation) for one in inside) and not any(isinstance(one, Violation) for one in outside):
            yield _late_scale(subject, late)
            return
    # what is unusual without a claim may be meant, and the function after it made for it
    errors = [outcome for outcome in outcomes if isinstance(outcome, Violation) and outcome.level == "error"]
    errors.sort(key=lambda error: error.code == "AS207")  # a known mistake explains more than another number
    why = "the scores are not a multiple of the products: they are capped, or heads are mixed"
    yield from right[:1] or errors[:1] or [Undecided(TOPIC, why, _claimed(subject))]


def _late_scale(subject: Subject, late: LateScale) -> Violation:
    message = (
        f"the scores are capped before they are scaled: the cap of {late.cap:.4g} applies to the products of queries "
        f"and keys, and becomes {late.cap * late.after:.4g} by the scale of {late.after:.4g}"
    )
    hint = "scale the scores before the cap: cap * tanh(scores * scale / cap)"
    if subject.claims.scale is None:
        hint += "; to have it verified, claim the scale: --claim scale=1/sqrt(Dk)"
    level: Level = "notice" if subject.claims.scale is None else "error"
    return Violation("AS207", message, late.at, hint, _EVIDENCE, claims=_claimed(subject), level=level)


def _of_exponentials(subject: Subject) -> Iterator[Outcome]:
    """Yield the outcome of exponentials of scores that are divided by their sum elsewhere, if they can be measured."""
    none = Undecided(TOPIC, "no attention with a softmax was found", _claimed(subject))
    found = list(running_scores(subject))
    for scores in found:
        core = scores.core
        outcome = _judge(subject, core, core.scores.ref, scores.factor * core.softmax.base, {1}, scores.own)
        yield none if isinstance(outcome, Violation) and outcome.level != "error" else outcome
    if not found:
        yield _of_readout(subject) or none


def _of_readout(subject: Subject) -> Observation | None:
    """Return that queries read a state with the claimed factor; None if they don't, since keys may have it as well."""
    claim = subject.claims.scale
    found = readout(subject) if claim is not None else None
    if claim is None or found is None:
        return None
    if not math.isclose(found.factor, expected_scale(subject, found.width), rel_tol=_CLOSE):
        return None
    text = f"what queries read from the sums of keys and values is scaled by {claim.text}, as claimed"
    return Observation(text, claims=_claimed(subject))


def _possible_kinds(core: Core, mapping: ElementwiseMap | None) -> set[int]:
    """Return how many kinds of score may be added: products, some with positions, or other terms such as distances."""
    products = 1 + len(core.more_scores)
    others = mapping is not None and bool(((mapping.added != 0) & (mapping.added > HIDES)).any())
    is_sum = core.more_scores or core.positional
    return {1, products, products + len(core.positional), *(range(2, _MOST_KINDS + 1) if others and not is_sum else ())}


def _of_core(
    subject: Subject, core: Core | FusedCore, at: OutputRef, factor: float, kinds: set[int]
) -> Iterator[Outcome]:
    """Yield the outcome of one attention, and of one whose queries or keys have no factor what can still be said.

    `kinds` are the numbers of kinds of score that may be added.
    """
    query, key, _ = (operand for operand in operands(subject) if operand.core is core)
    outcome = _judge(subject, core, at, factor, kinds, (query, key))
    if isinstance(outcome, Undecided) and outcome.reason == _NO_FACTOR and not math.isclose(factor, 1.0):
        width = query.width
        is_usual = math.isclose(abs(factor), width**-0.5, rel_tol=_CLOSE)
        by = f"1/sqrt({_width_name(subject, width)})" if is_usual else f"{abs(factor):.4g}"
        text = f"scores are scaled by {by} after the product of queries and keys"
        yield Observation(text, attention=core.context)
    yield replace(outcome, attention=core.context) if isinstance(outcome, Observation) else outcome


def _inner(core: Core) -> float | None:
    """Return the factor within the product itself: baddbmm and addmm have one."""
    scores = core.scores
    if scores.last.name not in PRODUCTS_WITH_ADDEND:
        return 1.0
    plain = torch.matmul(scores.operand(scores.left), scores.operand(scores.right))
    ratio = ((scores.result - scores.added) / plain).flatten()
    return float(ratio.median()) if bool(torch.isclose(ratio, ratio.median(), rtol=1e-5).all()) else None


def _judge(
    subject: Subject,
    core: Core | FusedCore,
    at: OutputRef,
    factor: float,
    possible_kinds: set[int],
    own: tuple[AttentionOperand, AttentionOperand],
) -> Outcome:
    query = own[0]
    if len(query.contracted) != 1 and not _is_head_width_known(subject, query):
        return Undecided(TOPIC, "the product of queries and keys contracts more than one axis", _claimed(subject))
    ways = (_stretch, _stretch_behind_norm, _stretch_behind_call)
    lengths = [next(filter(None, (way(subject, operand) for way in ways)), None) for operand in own]
    if lengths[0] is None or lengths[1] is None:
        return Undecided(TOPIC, _NO_FACTOR, _claimed(subject))
    scale = abs(factor) * (lengths[0] * lengths[1])
    width = query.width
    place = _place(subject, core, at, own)
    claim, expected = subject.claims.scale, expected_scale(subject, width)
    claimed = claim.text if claim is not None else None

    def is_scale(number: float) -> bool:
        return math.isclose(scale, number, rel_tol=_CLOSE)

    if claimed is not None and is_scale(expected):
        return Verification(f"scores are scaled by {claimed}, as claimed", _claimed(subject))
    added = 1 + len(core.more_scores) if isinstance(core, Core) else 1
    for kinds in sorted(possible_kinds) if claimed is None else ():
        if any(is_scale(1 / math.sqrt(kinds * width)) for width in _widths_of(core, query)):
            return Observation(f"scores are scaled by 1/sqrt({_times(kinds)}{_width_name(subject, width)})")
    if is_scale(1.0):
        evidence = "replaced the products by 0, 1 and 2, and read 0, 1 and 2 at the softmax"
        violation = partial(Violation, "AS204", at=place, evidence=evidence, shown="reproduced")
        if claimed is None:
            hint = "divide by math.sqrt(Dk), or if it is meant, claim it: --claim scale=1"
            return violation("scores are not scaled", hint=hint, level="notice")
        message = f"scores are not scaled, expected {claimed} = {expected:.4g}"
        return violation(message, hint="divide by math.sqrt(Dk)", claims=_claimed(subject))
    known = next((known for known in known_factors(subject, width) if is_scale(known.value)), None)
    if known is None and claimed is None:
        terms = next((m for m in range(2, _MOST_KINDS + 1) if is_scale(1 / math.sqrt(m * width))), None)
        meant = f"1/sqrt({terms}*Dk)" if terms else f"{scale:.6g}"
        why = f"for a sum of {terms} products" if terms else "which is no function of the width of one head"
        by = f"{meant} = {scale:.4g}" if terms else meant
        message = f"scores are scaled by {by}, {why}, expected 1/sqrt({_times(added)}Dk) = {expected / added**0.5:.4g}"
        hint = f"{_DIVIDE}, or if it is meant, claim it: --claim scale={meant}"
        return Violation("AS207", message, place, hint, _EVIDENCE, "reproduced", level="notice")
    known = known or KnownFactor("AS207", "", scale, f"multiply by {claimed}")
    by = f"{known.formula} = {scale:.4g}" if known.formula else f"{scale:.4g}"
    message = f"scores are scaled by {by}, expected {claimed or '1/sqrt(Dk)'} = {expected:.4g}"
    return Violation(known.code, message, place, known.hint, _EVIDENCE, "reproduced", claims=_claimed(subject))


def _is_head_width_known(subject: Subject, query: AttentionOperand) -> bool:
    """Return whether a claimed scale needs no width from the product, since a symbol has that of one head."""
    sizes = [query.value.shape[axis] for axis in query.contracted]
    return subject.claims.scale is not None and subject.numbers.get(HEAD_WIDTH) in (*sizes, math.prod(sizes))


def _width_name(subject: Subject, width: int) -> str:
    """Return what is summed over in each score: a length where channels attend to channels, else the head's width."""
    lengths = (symbol for symbol in subject.lengths if subject.numbers[symbol] == width)
    return "Dk" if subject.numbers.get("Dk") == width else next(lengths, "Dk")


def _times(kinds: int) -> str:
    return f"{kinds}*" if kinds > 1 else ""


def _widths_of(core: Core | FusedCore, query: AttentionOperand) -> set[int]:
    """Return how many features a score sums over: in each product, and in all products that are added."""
    if isinstance(core, FusedCore):
        return {query.value.shape[-1]}
    widths = [
        math.prod(product.operand(product.left).shape[axis] for axis in product.contracted(product.left))
        for product in (core.scores, *core.more_scores)
    ]
    return {*widths, sum(widths)}


def _features(subject: Subject, operand: AttentionOperand, ref: OutputRef) -> list[int]:
    """Return the features of a projection to change, one after the other, until the query or key changes."""
    width = subject.base.value(ref).shape[_feature_axis(subject, ref)]
    head = subject.numbers.get("Dk", 0) or operand.width
    # the keys of a fused projection are mostly its second third; in a loop over heads each of them has its own features
    starts = (0, width // 3, head, width // 3 * 2, width - 2 * head, width - head, *range(2 * head, width, head))
    return list(dict.fromkeys(feature for feature in starts if 0 <= feature < width))


def _projection(subject: Subject, operand: AttentionOperand) -> OutputRef | None:
    """Return the last product or convolution with parameters from which a query or key comes, or its norm after it.

    Of several products that are added, as with low-rank updates (Hu et al. 2021, https://arxiv.org/abs/2106.09685),
    it is their sum.
    """
    ref = projection(subject, operand.sources)
    upstream = subject.graph.upstream(operand.sources)
    last = next((call for call in upstream if call.name in CONVOLUTIONS | TOKEN_NORMS), None)
    if last is not None and (ref is None or last.order > ref.order):
        ref = last.refs[0]
    ref = ref if ref is not None else _looked_up(subject, operand)
    if ref is None:
        return None
    others = subject.graph.depends_on_data - subject.graph.downstream_of(ref)
    sums = (
        call.refs[0]
        for call in between(subject.graph, ref, operand.sources)
        if call.name in ADDITIONS and any(not others.isdisjoint(sources) for sources in call.sources)
    )
    return next(sums, ref)


def _looked_up(subject: Subject, operand: AttentionOperand) -> OutputRef | None:
    """Return what a query or key is that comes from a table alone: the entry of its token, or the sum over its words.

    None if an entry is multiplied on its way, since that may be the scale of the table.
    """
    is_multiplied = False
    for call in subject.graph.upstream(operand.sources):
        if not call.values[0].is_floating_point() or call.refs[0] not in subject.graph.depends_on_data:
            continue
        if call.name in _BAGS:
            return call.refs[0]
        if call.name in GATHERS and not call.operand_values[-1].is_floating_point():
            return None if is_multiplied else call.refs[0]
        is_multiplied |= call.name in SCALINGS
    return None


def _feature_axis(subject: Subject, ref: OutputRef) -> int:
    """Return the axis of a projection's features, counted from the end; convolutions have them after the batch."""
    is_convolution = subject.base.event(ref).name in CONVOLUTIONS
    return 1 - subject.base.value(ref).ndim if is_convolution else -1


def _at_feature(subject: Subject, ref: OutputRef, feature: int) -> tuple[slice | int | EllipsisType, ...]:
    """Return the index of one feature of a projection, of all tokens."""
    return (..., feature, *[slice(None)] * (-1 - _feature_axis(subject, ref)))


@once
def _runs_together(subject: Subject) -> dict[int, SimultaneousRun]:
    """Return the runs made so far that change a feature of every projection of queries and keys, by the attempt."""
    return {}


def _changed_together(subject: Subject, attempt: int) -> SimultaneousRun:
    """Return the run of an attempt, in which the projections of all queries and keys are changed together."""
    runs = _runs_together(subject)
    if attempt not in runs:
        results: dict[OutputRef, Replace] = {}
        for operand in operands(subject):
            ref = _projection(subject, operand) if operand.role != "value" else None
            features = _features(subject, operand, ref) if ref is not None else []
            if ref is not None and attempt < len(features):
                results[ref] = _longer(*_at_feature(subject, ref, features[attempt]))
        runs[attempt] = subject.perturb_each(Intervention(results=results))
    return runs[attempt]


def _stretch(subject: Subject, operand: AttentionOperand) -> float | None:
    """Return the factor between a projection and the query or key that enters the product; None if there isn't one."""
    ref = _projection(subject, operand)
    if ref is None:
        origins = subject.graph.origins(operand.sources)
        names = sorted(origins & set(subject.inputs)) or sorted(origins & subject.base.state.keys())
        if not names:
            return 1.0
        names = [name for name in names if name not in subject.inputs or subject.inputs[name].is_floating_point()]
        return _stretch_from(subject, operand, names) if names else None
    for attempt, feature in enumerate(_features(subject, operand, ref)):
        together = _changed_together(subject, attempt)
        if together.is_apart(ref):
            run = together.run
        else:
            run = subject.experiment.run(Intervention(results={ref: _longer(*_at_feature(subject, ref, feature))}))
        difference = _difference(subject, operand, run)
        if difference is None:
            return None
        lengths = _lengths(subject, operand, difference)
        if not lengths.numel():
            continue
        changed = difference.abs().gt(subject.experiment.tolerance)
        entries = changed.sum(operand.contracted)
        every = bool((changed.all(operand.contracted) == (entries > 0)).all())
        if every or int(entries.max()) > _OF_A_PAIR or _are_repeated(difference.abs(), changed, operand.contracted):
            # the product sums over tokens, by themselves or beside features: the changes of all of them would add up
            shape = subject.base.value(ref).shape
            summed = {operand.value.shape[axis] for axis in operand.contracted}
            index: list[slice | int] = [0 if shape[0] in summed else slice(None), *[0] * (len(shape) - 1)]
            index[_feature_axis(subject, ref)] = feature
            return _stretch_of_one(subject, operand, partial(_of_result, ref), *index)
        return float(lengths[0]) if _are_close(lengths) else None
    return None


def _are_repeated(lengths: Tensor, changed: Tensor, axes: tuple[int, ...]) -> bool:
    """Return whether vectors change at several entries, all alike: those of other tokens, and no rotated pair's."""
    longest, shortest = lengths.amax(axes), lengths.where(changed, math.inf).amin(axes)
    several = changed.sum(axes) > 1
    return bool(several.any()) and bool(torch.isclose(longest, shortest)[several].all())


def _stretch_behind_norm(subject: Subject, operand: AttentionOperand) -> float | None:
    """Return the factor between a norm that is spelled out and the query or key, if a scale is claimed."""
    ref = spelled_norm(subject, operand) if subject.claims.scale is not None else None
    if ref is None:
        return None
    for feature in _features(subject, operand, ref):
        run = subject.experiment.run(Intervention(results={ref: _longer(..., feature)}))
        difference = _difference(subject, operand, run)
        lengths = _lengths(subject, operand, difference) if difference is not None else torch.empty(0)
        if lengths.numel():
            return float(lengths[0]) if _are_close(lengths) else None
    return None


def _stretch_behind_call(subject: Subject, operand: AttentionOperand) -> float | None:
    """Return the factor between the last call that does more than move and scale its numbers, and the query or key.

    So of the states of a recurrent network, if a scale is claimed: without a claim they needn't have one.
    """
    sources = operand.sources if subject.claims.scale is not None else ()
    while len(sources) == 1 and isinstance(ref := sources[0], OutputRef):
        event = subject.base.event(ref)
        if event.name not in DATA_MOVEMENT | SCALINGS or event.name in JOINS:
            return _stretch_of_one(subject, operand, partial(_of_result, ref))
        data = [one for one in event.sources if subject.graph.carries_data(one)]
        sources = data[0] if len(data) == 1 else ()
    return None


def _stretch_from(subject: Subject, operand: AttentionOperand, names: Sequence[str]) -> float | None:
    """Return the factor between inputs, or parameters and buffers, and the query or key that enters the product."""
    first = _stretch_of_one(subject, operand, lambda change: _named(subject, names, change))
    if first is not None or names[0] not in subject.inputs:
        return first
    # a chunk of the tokens may not have the first one
    values = [subject.inputs[name] for name in names]
    axes = next((found for value in values if (found := token_axes(subject, value)) is not None), None)
    if axes is None or any(value.shape != axes.shape for value in values) or operand.width in axes.sizes:
        return None
    index = [slice(None) if axis in axes.axes else 0 for axis in range(len(axes.shape))]
    return _stretch_of_one(subject, operand, lambda change: _named(subject, names, change), *index)


def _stretch_of_one(
    subject: Subject,
    operand: AttentionOperand,
    intervention: Callable[[Replace], Intervention],
    *index: slice | int,
) -> float | None:
    """Return the factor on one vector, in which one number is changed; None if it depends on the number."""
    found = []
    for amount in (1.0, 2.0):
        run = subject.experiment.run(intervention(_longer(*index, amount=amount)))
        difference = _difference(subject, operand, run)
        if difference is None:
            return None
        found.append(_lengths(subject, operand, difference) / amount)
    lengths = torch.cat(found)
    return float(lengths[0]) if lengths.numel() and _are_close(lengths) else None


def _of_result(ref: OutputRef, change: Replace) -> Intervention:
    """Return an intervention on one result."""
    return Intervention(results={ref: change})


def _named(subject: Subject, names: Sequence[str], change: Replace) -> Intervention:
    """Return an intervention on inputs, or on parameters and buffers."""
    changes = dict.fromkeys(names, change)
    return Intervention(inputs=changes) if names[0] in subject.inputs else Intervention(parameters=changes)


def _difference(subject: Subject, operand: AttentionOperand, run: ReplayRun) -> torch.Tensor | None:
    """Return by how much an operand differs in a run; None if the code takes another path in it."""
    return (operand.of(run) - operand.value).double() if run.follows(subject.base) else None


def _lengths(subject: Subject, operand: AttentionOperand, difference: torch.Tensor) -> torch.Tensor:
    """Return the lengths of an operand's vectors, those of zero left out."""
    lengths = difference.square().sum(operand.contracted).sqrt().flatten()
    return lengths[lengths > subject.experiment.tolerance]


def _are_close(numbers: torch.Tensor) -> bool:
    return bool(torch.isclose(numbers, numbers[0], rtol=1e-4).all())


def _longer(*index: slice | int | EllipsisType, amount: float = 1.0) -> Replace:
    """Return a replacement that adds an amount at an index, by default at the first number."""

    def change(value: torch.Tensor) -> torch.Tensor:
        value[index or (0,) * value.ndim] += amount
        return value

    return change


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

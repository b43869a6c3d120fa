"""Are the scores scaled by 1/sqrt(Dk), from the projections to the softmax?

Scaled dot-product attention (Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, equation 1) is
softmax(Q Kᵀ / sqrt(Dk)) V. Disentangled attention (He et al. 2021, https://arxiv.org/abs/2006.03654, equation 4) adds
three kinds of score and divides by sqrt(3*Dk).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from attnshape.checks.attention.cores import Core, FusedCore, between
from attnshape.checks.attention.definitions import number_definition
from attnshape.checks.attention.elementwise import HIDES, ElementwiseMap, MeasuredCore
from attnshape.checks.attention.operands import (
    AttentionOperand,
    AttentionOperands,
    by_attention,
    operands_of,
    projection,
)
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.replay import OutputRef, ReplayedCall
from attnshape.checks.rules.protocol import Observation, Outcome, Undecided, Verification, Violation
from attnshape.checks.rules.scale.changed_scores import LateScale, factors_to_softmax, scale_after_cap
from attnshape.checks.rules.scale.readouts import readout
from attnshape.checks.rules.scale.running import running_scores
from attnshape.checks.rules.scale.stretch import stretch
from attnshape.checks.rules.scale.temperatures import check_temperatures
from attnshape.checks.rules.scale.terms import inner_factor, unequal_terms
from attnshape.model.report import Level
from attnshape.options.claims import HEAD_WIDTH
from attnshape.tracing.operations import (
    CHANNEL_NORMS,
    SCALINGS,
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
    sizes = subject.experiment.target.sizes
    numbers = {HEAD_WIDTH: width, **subject.numbers}
    # a head's width that only follows from other sizes may be that of another layer
    record = sizes.records.get(HEAD_WIDTH)
    if record is not None and record.origin == "derived" and HEAD_WIDTH not in sizes.named:
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
    found = list(outcomes.values())
    contradicts = any(isinstance(outcome, Violation) and outcome.claims for outcome in found)
    yield from (outcome for outcome in found if not (contradicts and isinstance(outcome, Verification)))


def _claimed(subject: Subject) -> tuple[str, ...]:
    return ("scale",) if subject.claims.scale is not None else ()


def _outcomes(subject: Subject) -> Iterator[Outcome]:
    every = [*subject.measured, *subject.measured_learned]
    if not every and not subject.fused:
        yield from _of_exponentials(subject)
    for measured in every:
        core, mapping = measured.core, measured.scores_map
        inner = inner_factor(core.scores)
        chain = between(subject.graph, core.scores.ref, core.softmax.sources)
        if any(event.name in CHANNEL_NORMS | TOKEN_NORMS for event in chain):
            # in evaluation a batch norm's statistics are constants, which in training follow from the scores
            yield Undecided(TOPIC, "the scores are normalised before the softmax", _claimed(subject))
        elif mapping is None or not mapping.elementwise:
            yield from _of_changed_scores(subject, measured, inner)
        elif mapping.common_factor is None or inner is None:
            yield Undecided(TOPIC, "the factor differs between scores", _claimed(subject))
        else:
            kinds = _possible_kinds(core, mapping)
            factor = mapping.common_factor * inner * core.softmax.base
            own = operands_of(measured)
            outcomes = list(_of_core(subject, own, core.scores.ref, factor, kinds))
            outcomes = [_of_weights(subject, measured, own[0].width, outcome) for outcome in outcomes]
            is_right = core.more_scores and not any(isinstance(outcome, Violation) for outcome in outcomes)
            unequal = unequal_terms(subject, own, TOPIC) if is_right else None
            yield from outcomes if unequal is None else [unequal]
    for own in by_attention(subject):
        if isinstance(fused := own[0].core, FusedCore):
            yield from _of_core(subject, own, fused.context, fused.scale, {1})


def _of_weights(subject: Subject, measured: MeasuredCore, width: int, outcome: Outcome) -> Outcome:
    """Return that the weights are scaled instead of the scores, if that is the outcome; else what it was."""
    mapping = measured.weights_map
    factor = mapping.common_factor if mapping is not None and mapping.elementwise else None
    if not isinstance(outcome, Violation) or outcome.code != "AS204" or factor is None:
        return outcome
    scales = {"Dk": width, **_other_widths(subject, width)}
    names = [name for name, size in scales.items() if math.isclose(factor, size**-0.5, rel_tol=_CLOSE)]
    if not names:
        return outcome
    core = measured.core
    path = between(subject.graph, core.softmax.ref, core.value.sources(core.weights_place))
    at = next((event.refs[0] for event in path if event.name in SCALINGS), core.softmax.ref)
    message = f"the weights are scaled by 1/sqrt({names[0]}) = {factor:.4g} after the softmax, and the scores are not"
    hint = "scale the scores before the softmax: each row of weights has to sum to one"
    return replace(outcome, message=message, at=at, hint=hint, level="error")


def _of_changed_scores(subject: Subject, measured: MeasuredCore, inner: float | None) -> Iterator[Outcome]:
    """Yield the outcome of scores that get more than a factor and a sum on their way to the softmax."""
    core, own = measured.core, operands_of(measured)
    outcomes: list[Outcome] = []
    for found in factors_to_softmax(subject, core) if inner is not None else ():
        factor = found.number * (inner or 1.0) * core.softmax.base
        outcomes += map(found.told, _of_core(subject, own, core.scores.ref, factor, _possible_kinds(core, None)))
    right = [outcome for outcome in outcomes if isinstance(outcome, (Verification, Observation))]
    late = scale_after_cap(subject, core) if right else None
    if late is not None and not math.isclose(late.after, 1.0, rel_tol=_CLOSE) and inner is not None:
        factors = (late.inside * inner, late.inside * late.after * inner)
        inside, outside = (list(_of_core(subject, own, core.scores.ref, factor, {1})) for factor in factors)
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
    subject: Subject, own: AttentionOperands, at: OutputRef, factor: float, kinds: set[int]
) -> Iterator[Outcome]:
    """Yield the outcome of one attention, and of one whose queries or keys have no factor what can still be said.

    `kinds` are the numbers of kinds of score that may be added.
    """
    query, key, _ = own
    core = query.core
    outcome = _judge(subject, core, at, factor, kinds, (query, key))
    if isinstance(outcome, Undecided) and outcome.reason == _NO_FACTOR and not math.isclose(factor, 1.0):
        width = query.width
        is_usual = math.isclose(abs(factor), width**-0.5, rel_tol=_CLOSE)
        by = f"1/sqrt({_width_name(subject, width)})" if is_usual else f"{abs(factor):.4g}"
        text = f"scores are scaled by {by} after the product of queries and keys"
        yield Observation(text, attention=core.context)
    yield replace(outcome, attention=core.context) if isinstance(outcome, Observation) else outcome


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
    lengths = [stretch(subject, operand) for operand in own]
    if lengths[0] is None or lengths[1] is None:
        return Undecided(TOPIC, _NO_FACTOR, _claimed(subject))
    scale = abs(factor) * (lengths[0] * lengths[1])
    width = query.width
    place = _place(subject, core, at, own)
    claim, expected = subject.claims.scale, expected_scale(subject, width)
    claimed = claim.text if claim is not None else None

    def is_scale(number: float) -> bool:
        return math.isclose(scale, number, rel_tol=_CLOSE)

    # a claim may count a head's width as the model has it, where scores sum several parts of that width
    of_model = subject.claims.scale_at({HEAD_WIDTH: width, **subject.numbers})
    is_usual = is_scale(1 / math.sqrt(width)) and of_model is not None and is_scale(of_model)
    if claimed is not None and (is_scale(expected) or is_usual):
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

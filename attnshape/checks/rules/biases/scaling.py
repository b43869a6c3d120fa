"""Do the slopes of linear biases reach the softmax as they are, or scaled along with the scores?"""

from __future__ import annotations

import math
from fractions import Fraction

from attnshape.checks.attention.cores import Core, FusedCore
from attnshape.checks.attention.subject import Subject
from attnshape.checks.attention.visibility import VisibleKeys
from attnshape.checks.interventions.replay import OutputRef
from attnshape.checks.rules.biases.published import are_published, counts
from attnshape.checks.rules.biases.slopes import additions, slopes_of, sums
from attnshape.checks.rules.biases.terms import behind, product_map, term_map
from attnshape.checks.rules.protocol import Undecided, Violation

_SAME = 1e-5
_PRECISION = 2e-6
"""The relative error of a slope that was computed in single precision."""
_LARGEST_DENOMINATOR = 32


def check_scaling(subject: Subject, visible: VisibleKeys, topic: str) -> Violation | Undecided | None:
    """Compare the slopes at the softmax with those that are added; None if they aren't scaled by the width."""
    core = visible.core
    if isinstance(core, FusedCore):  # torch adds the mask to scores that are scaled already
        return None
    slopes = slopes_of(visible, core.softmax.base)
    added = list(additions(subject, core, visible))
    if slopes is None or len(added) != 1:
        return None
    ((ref, bias),) = added
    if not subject.experiment.parameters.isdisjoint(behind(subject, bias)):
        return None  # whatever scales learned slopes, training makes up for it
    is_product = ref == core.scores.ref
    mapping = product_map(subject, visible) if is_product else term_map(subject, visible, ref)
    factor = mapping.common_factor if mapping is not None else None
    if factor is None:
        return None
    factor *= core.softmax.base
    scale = _width_scale(subject, core, factor)
    if scale is None:
        return None
    heads = subject.numbers.get("H", len(slopes))
    given = [slope / abs(factor) for slope in slopes]
    are_made_up_for = all(_is_free_of_widths(slope, heads) for slope in slopes) and not are_published(given, heads)
    if are_made_up_for:
        return None
    if not all(_is_free_of_widths(slope, heads) for slope in given):
        reason = "the bias is scaled along with the scores, and its own numbers may make up for it"
        return Undecided(topic, reason, ("alibi",))
    message = f"the bias is scaled along with the scores: its slopes reach the softmax times {scale} = {factor:.4g}"
    hint = "scale the product of queries and keys first, and then add the bias"
    evidence = "replaced the sum of scores and bias by numbers, and read them at the softmax"
    return Violation("AS713", message, ref, hint, evidence)


def zero_bias(subject: Subject, visible: VisibleKeys) -> OutputRef | None:
    """Return the call that makes what is added to the scores, if it is zero everywhere."""
    if isinstance(visible.core, FusedCore):
        return None
    for _, place, event in sums(subject, visible.core):
        value = event.operand_values[place]
        if value.is_floating_point() and value.ndim > 1 and not bool(value.any()):
            made = [call for call in subject.graph.upstream(event.sources[place]) if not bool(call.values[0].any())]
            return made[-1].refs[0] if made else event.refs[0]
    return None


def _width_scale(subject: Subject, core: Core, factor: float) -> str | None:
    """Return a factor as a function of the width of a head or of the model, if it is one."""
    product = core.scores
    widths = {"Dk": math.prod([product.operand(product.left).shape[axis] for axis in product.contracted(product.left)])}
    widths["D"] = subject.numbers.get("D", 0)
    for name, width in widths.items():
        for power, text in ((-0.5, f"1/sqrt({name})"), (-1.0, f"1/{name}")):
            if width > 1 and math.isclose(abs(factor), width**power, rel_tol=_SAME):
                return text
    return None


def _is_free_of_widths(slope: float, heads: int) -> bool:
    """Return whether a slope is a simple number: a power of two as ALiBi's, or a quotient of small integers."""
    near = float(Fraction(slope).limit_denominator(_LARGEST_DENOMINATOR))
    if near > 0 and math.isclose(slope, near, rel_tol=_PRECISION):
        return True
    exponents = [math.log2(slope) * count for count in counts(heads)]
    return any(abs(exponent - round(exponent)) < 10 * _PRECISION for exponent in exponents)

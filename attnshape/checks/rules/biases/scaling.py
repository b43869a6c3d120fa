"""Do the slopes of linear biases reach the softmax as they are, or scaled along with the scores?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

import torch
from torch import Tensor

from attnshape.checks.attention.cores import Core, FusedCore, between
from attnshape.checks.attention.subject import Subject
from attnshape.checks.attention.visibility import VisibleKeys
from attnshape.checks.interventions.replay import OutputRef, Producer, ReplayedCall
from attnshape.checks.rules.biases.terms import behind, product_map, term_map
from attnshape.checks.rules.protocol import Undecided, Violation
from attnshape.tracing import operations as ops

_SAME = 1e-5
_PRECISION = 2e-6
"""The relative error of a slope that was computed in single precision."""
_LARGEST_DENOMINATOR = 32
_ADDS = ops.ADDITIONS | ops.SUBTRACTIONS | ops.REVERSED_SUBTRACTIONS


def check_scaling(subject: Subject, visible: VisibleKeys, topic: str) -> Violation | Undecided | None:
    """Compare the slopes at the softmax with those that are added; None if they aren't scaled by the width."""
    core = visible.core
    if isinstance(core, FusedCore):  # torch adds the mask to scores that are scaled already
        return None
    slopes = _slopes(visible, core.softmax.base)
    additions = list(_additions(subject, core, visible))
    if slopes is None or len(additions) != 1:
        return None
    ((ref, bias),) = additions
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
    are_made_up_for = all(_is_free_of_widths(slope, heads) for slope in slopes) and not _are_published(given, heads)
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
    for _, place, event in _sums(subject, visible.core):
        value = event.operand_values[place]
        if value.is_floating_point() and value.ndim > 1 and not bool(value.any()):
            made = [call for call in subject.graph.upstream(event.sources[place]) if not bool(call.values[0].any())]
            return made[-1].refs[0] if made else event.refs[0]
    return None


def _slopes(visible: VisibleKeys, base: float) -> list[float] | None:
    """Return the size of the step from key to key in each head that has a bias; None if a head's steps differ.

    It is that of the natural exponential.
    """
    both = visible.keys[..., 1:] & visible.keys[..., :-1]
    steps = (visible.added[..., 1:] - visible.added[..., :-1]).abs()
    slopes: list[float] = []
    for head in range(both.shape[1]):
        sizes = steps[:, head][both[:, head]]
        if not sizes.numel() or float(sizes.max() - sizes.min()) > _SAME * float(sizes.max()):
            return None
        slopes.append(float(sizes.mean()) * base)
    return [slope for slope in slopes if slope > 0] or None


def _sums(subject: Subject, core: Core) -> Iterator[tuple[OutputRef, int, ReplayedCall]]:
    """Yield the additions of something else to the scores, with its place among the operands."""
    graph = subject.graph
    if core.scores.last.name in ops.PRODUCTS_WITH_ADDEND:
        yield core.scores.ref, 0, core.scores.last
    scores = graph.downstream_of(core.scores.ref)
    for event in between(graph, core.scores.ref, core.softmax.sources):
        if event.name in _ADDS and len(event.operand_values) == 2:
            of_scores = [not scores.isdisjoint(sources) for sources in event.sources]
            if of_scores.count(False) == 1:
                yield event.refs[0], of_scores.index(False), event


def _additions(subject: Subject, core: Core, visible: VisibleKeys) -> Iterator[tuple[OutputRef, tuple[Producer, ...]]]:
    """Yield the sums of the scores and what differs between the visible keys of a query, with its producers."""
    for ref, place, event in _sums(subject, core):
        bias = visible.laid_out(event.operand_values[place].double())
        if bias is not None and _differs(bias, visible.keys):
            yield ref, event.sources[place]


def _differs(bias: Tensor, keep: Tensor) -> bool:
    most = bias.masked_fill(~keep, -torch.inf).amax(-1)
    least = bias.masked_fill(~keep, torch.inf).amin(-1)
    return bool((most - least > _SAME)[keep.any(-1)].any())


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
    exponents = [math.log2(slope) * count for count in _counts(heads)]
    return any(abs(exponent - round(exponent)) < 10 * _PRECISION for exponent in exponents)


def _are_published(slopes: list[float], heads: int) -> bool:
    """Return whether slopes are those of the paper for a number of heads, or of its code if that's no power of two."""
    own, power, twice = (_geometric(count) for count in _counts(heads))
    given = sorted(slopes)
    return any(
        len(given) == len(expected)
        and all(math.isclose(a, b, rel_tol=_PRECISION) for a, b in zip(given, sorted(expected), strict=True))
        for expected in (own, power + twice[::2][: heads - len(power)])
    )


def _geometric(count: int) -> list[float]:
    return [2.0 ** (-8 * (head + 1) / count) for head in range(count)]


def _counts(heads: int) -> tuple[int, ...]:
    """Return the numbers of heads for which slopes may have been made: powers of two serve other numbers."""
    power = 2 ** int(math.log2(heads)) if heads > 0 else 1
    return heads, power, 2 * power

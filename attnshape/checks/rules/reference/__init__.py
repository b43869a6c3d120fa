"""Compares the target's numbers with an independent computation from the same queries, keys and values."""

from __future__ import annotations

import string
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from attnshape.checks.attention.cores import FusedCore
from attnshape.checks.attention.elementwise import MeasuredCore
from attnshape.checks.attention.products import Product
from attnshape.checks.attention.subject import Subject
from attnshape.checks.rules.protocol import Outcome, Undecided, Verification


@dataclass(frozen=True)
class OracleMismatch:
    """A result that differs from the independent computation."""

    result: str
    """Scores, weights or context."""
    difference: float
    """The largest difference."""


def compare_with_oracle(measured: MeasuredCore, tolerance: float) -> OracleMismatch | str | None:
    """Return the first result that differs from the oracle's, why it has none, or None if all agree."""
    core, before, after = measured.core, measured.scores_map, measured.weights_map
    scores = einsum_product(core.scores)
    if scores is None:
        return "the axes of the scores' product can't be told apart"
    if before is None or after is None or not before.elementwise or not after.elementwise:
        return "scores or weights are changed on their way by more than a factor and a sum"
    raw_scores = core.scores.result.double() - core.scores.added
    # the factor that the product's own call applies, such as the alpha of baddbmm
    ratio = (raw_scores / scores).flatten()
    mismatch = _mismatch("scores", scores * ratio[torch.isfinite(ratio)].median(), raw_scores, tolerance)
    if mismatch is not None:
        return mismatch
    logits = _rearrange(raw_scores, before.source, before.factor) + before.added
    if len(core.softmax.axes) != 1 or core.softmax.deferred:
        return "the softmax isn't one call over one axis"
    axis = next(iter(core.softmax.axes))
    exponentials = (logits - logits.amax(axis, keepdim=True)).mul(core.softmax.base).exp()
    weights = exponentials / exponentials.sum(axis, keepdim=True)
    mismatch = _mismatch("weights", weights, core.softmax.event.values[0].double(), tolerance)
    if mismatch is not None:
        return mismatch
    context = einsum_product(core.value)
    if context is None:
        return "the axes of the value product can't be told apart"
    return _mismatch("context", context, core.value.result.double() - core.value.added, tolerance)


def compare_fused_with_oracle(core: FusedCore, tolerance: float) -> OracleMismatch | None:
    """Compare the context of fused attention with the oracle's; return None if they agree."""
    query, key, value = (core.tensor(name).double() for name in ("query", "key", "value"))
    if core.arguments.get("enable_gqa"):
        key, value = (t.repeat_interleave(query.shape[-3] // t.shape[-3], -3) for t in (key, value))
    logits = torch.einsum("...id,...jd->...ij", query, key) * core.scale + core.added
    exponentials = (logits - logits.amax(-1, keepdim=True)).exp()
    weights = (exponentials / exponentials.sum(-1, keepdim=True)).nan_to_num()  # zeros for a row without keys
    context = torch.einsum("...ij,...jd->...id", weights, value)
    return _mismatch("context", context, core.event.values[0].double(), tolerance)


def einsum_product(observed: Product) -> Tensor | None:
    """Compute a product with einsum over the axes observed; return None if they are ambiguous."""
    symbols = iter(string.ascii_letters)
    out = {axis: next(symbols) for axis in range(observed.result.ndim)}
    contracted = {place: list(observed.contracted(place)) for place in observed.places}
    sizes = {place: [observed.operand(place).shape[a] for a in axes] for place, axes in contracted.items()}
    if sizes[observed.left] != sizes[observed.right] or len(set(sizes[observed.left])) != len(sizes[observed.left]):
        return None
    shared = [next(symbols) for _ in contracted[observed.left]]
    terms = []
    for place in observed.places:
        term = ""
        for axis, remaining in enumerate(observed.axes[place]):
            if axis in contracted[place]:
                term += shared[contracted[place].index(axis)]
            elif len(remaining) == 1:
                term += out[next(iter(remaining))]
            elif observed.operand(place).shape[axis] == 1:
                term += next(symbols)
            else:
                return None
        terms.append(term)
    output_axes = [axis for axis in out if out[axis] in terms[0] + terms[1]]
    if any(observed.result.shape[axis] != 1 for axis in out if axis not in output_axes):
        return None
    left, right = observed.operand(observed.left).double(), observed.operand(observed.right).double()
    result = torch.einsum(f"{terms[0]},{terms[1]}->{''.join(out[axis] for axis in output_axes)}", left, right)
    return result.reshape(observed.result.shape)


def _rearrange(value: Tensor, source: Tensor, factor: Tensor) -> Tensor:
    """Multiply and rearrange values as a map does, without the term that it adds; 0 for elements that it ignores."""
    arranged = value.flatten()[source.clamp(min=0)]
    return torch.where(source >= 0, arranged * factor.nan_to_num(), torch.zeros_like(arranged))


def _mismatch(result: str, expected: Tensor, actual: Tensor, tolerance: float) -> OracleMismatch | None:
    rtol, atol = max(tolerance, 1e-7), max(tolerance, 1e-9)
    if expected.shape == actual.shape and torch.allclose(expected, actual, rtol=rtol, atol=atol, equal_nan=True):
        return None
    differences = expected - actual
    # the weights of an empty row are NaN on one side only
    return OracleMismatch(result, float((differences.nan_to_num() if result == "weights" else differences).abs().max()))


CODES: tuple[str, ...] = ()
TOPIC = "attention as a whole"


def check(subject: Subject) -> Iterator[Outcome]:
    """Compute scores, weights and contexts independently in float64, and compare."""
    if not subject.measured and not subject.fused:
        why = "no attention with a softmax was found, so only inputs could be changed and results compared"
        yield Undecided(TOPIC, why)
        return
    tolerance = subject.experiment.tolerance
    verdicts = [compare_with_oracle(measured, tolerance) for measured in subject.measured]
    for fused in subject.fused:
        hidden = "a mask has no tensor to read" if fused.hides_its_mask else None
        verdicts.append(hidden or compare_fused_with_oracle(fused, tolerance))
    if all(verdict is None for verdict in verdicts):
        yield Verification("scores, weights and contexts agree with an independent computation in float64")
    for verdict in dict.fromkeys(verdicts):
        if isinstance(verdict, str):
            yield Undecided(TOPIC, verdict)
        elif verdict is not None:
            problem = f"the {verdict.result} differ from an independent computation by up to {verdict.difference:.3g}"
            yield Undecided(TOPIC, f"{problem}, and no known mistake explains it")

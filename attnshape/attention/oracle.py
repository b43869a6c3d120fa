"""Attention computed anew from what went into it: by sums over the axes that were found, in float64."""

from __future__ import annotations

import string
from dataclasses import dataclass

import torch
from torch import Tensor

from attnshape.attention.core import FusedCore
from attnshape.attention.measured import MeasuredCore
from attnshape.attention.products import Product


@dataclass(frozen=True)
class Parted:
    """Where the numbers part from those of the oracle."""

    what: str
    """Scores, weights or context."""
    most: float
    """The largest difference."""


def parted(measured: MeasuredCore, tolerance: float) -> Parted | str | None:
    """Return where the numbers of a core part from the oracle's, None where they don't, or why it has none."""
    core, before, behind = measured.core, measured.before, measured.behind
    scores = product(core.scores)
    if scores is None:
        return "the axes of the scores' product can't be told apart"
    if before is None or behind is None or not before.elementwise or not behind.elementwise:
        return "scores or weights are changed on their way by more than a factor and a sum"
    plain = core.scores.result.double() - core.scores.added
    scores = scores * _factor(plain, scores)
    if not _same(scores, plain, tolerance):
        return Parted("scores", float((scores - plain).abs().max()))
    logits = _along(plain, before.source, before.factor) + before.added
    if len(core.softmax.axes) != 1 or core.softmax.late:
        return "the softmax isn't one call over one axis"
    axis = next(iter(core.softmax.axes))
    powers = (logits - logits.amax(axis, keepdim=True)).mul(core.softmax.base).exp()
    weights = powers / powers.sum(axis, keepdim=True)
    made = core.softmax.event.values[0].double()
    if not _same(weights, made, tolerance):
        return Parted("weights", float((weights - made).nan_to_num().abs().max()))
    context = product(core.value)
    if context is None:
        return "the axes of the value product can't be told apart"
    actual = core.value.result.double() - core.value.added
    return None if _same(context, actual, tolerance) else Parted("context", float((context - actual).abs().max()))


def parted_fused(core: FusedCore, tolerance: float) -> Parted | None:
    """Return where a fused attention's context parts from the oracle's, None where it doesn't."""
    query, key, value = (core.tensor(name).double() for name in ("query", "key", "value"))
    if core.arguments.get("enable_gqa"):
        key, value = (t.repeat_interleave(query.shape[-3] // t.shape[-3], -3) for t in (key, value))
    logits = torch.einsum("...id,...jd->...ij", query, key) * core.scale + core.added
    powers = (logits - logits.amax(-1, keepdim=True)).exp()
    weights = (powers / powers.sum(-1, keepdim=True)).nan_to_num()  # a row without keys is zeros
    context = torch.einsum("...ij,...jd->...id", weights, value)
    actual = core.event.values[0].double()
    return None if _same(context, actual, tolerance) else Parted("context", float((context - actual).abs().max()))


def product(made: Product) -> Tensor | None:
    """Return a product computed by einsum from its operands and what their axes were found to be."""
    letters = iter(string.ascii_letters)
    out = {axis: next(letters) for axis in range(made.result.ndim)}
    summed = {place: list(made.contracted(place)) for place in (made.left, made.right)}
    sizes = {place: [made.given(place).shape[a] for a in axes] for place, axes in summed.items()}
    if sizes[made.left] != sizes[made.right] or len(set(sizes[made.left])) != len(sizes[made.left]):
        return None
    shared = [next(letters) for _ in summed[made.left]]
    terms = []
    for place in (made.left, made.right):
        term = ""
        for axis, stays in enumerate(made.axes[place]):
            if axis in summed[place]:
                term += shared[summed[place].index(axis)]
            elif len(stays) == 1:
                term += out[next(iter(stays))]
            elif made.given(place).shape[axis] == 1:
                term += next(letters)
            else:
                return None
        terms.append(term)
    wanted = [axis for axis in out if out[axis] in terms[0] + terms[1]]
    if any(made.result.shape[axis] != 1 for axis in out if axis not in wanted):
        return None
    left, right = made.given(made.left).double(), made.given(made.right).double()
    result = torch.einsum(f"{terms[0]},{terms[1]}->{''.join(out[axis] for axis in wanted)}", left, right)
    return result.reshape(made.result.shape)


def _factor(plain: Tensor, scores: Tensor) -> Tensor:
    """Return what a product is multiplied by within its own call, as baddbmm's alpha."""
    ratio = (plain / scores).flatten()
    return ratio[torch.isfinite(ratio)].median()


def _along(value: Tensor, source: Tensor, factor: Tensor) -> Tensor:
    """Return the numbers as a way leaves them, without what it adds; 0 where a number no longer matters."""
    moved = value.flatten()[source.clamp(min=0)]
    return torch.where(source >= 0, moved * factor.nan_to_num(), torch.zeros_like(moved))


def _same(a: Tensor, b: Tensor, tolerance: float) -> bool:
    return a.shape == b.shape and bool(
        torch.isclose(a, b, rtol=max(tolerance, 1e-7), atol=max(tolerance, 1e-9), equal_nan=True).all()
    )

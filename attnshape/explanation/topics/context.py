"""The context: the weighted average of the values, and how far it is from the plain one."""

from __future__ import annotations

from math import prod

import torch

from attnshape.explanation.attention import Attention, code_of, each_of
from attnshape.explanation.sentences import axis_label, tensor_axes
from attnshape.explanation.writing import SectionWriter
from attnshape.model.explanation import Section


def context(attention: Attention) -> Section | None:
    """Explain the product of weights and values."""
    if attention.traced.is_fused:
        return None
    step = attention.context
    text = SectionWriter("context", "Average the values: context", attention.of("context"))
    record, pairs = step.outputs[0].tensor, attention.pairs
    if pairs is None or not record.shape:
        text.what(f"{code_of(step)} sums the values by their weights, and gives `{record.signature}`.")
        return text.section()
    queries, keys = map(axis_label, pairs)
    features = tensor_axes(record)[-1]
    count = text.counted("weighted sums", prod(record.shape[:-1]), f"`{record.signature}` without its last axis")
    own = tensor_axes(record)[:-1]
    is_combined = attention.scores is not None and attention.scores.values is None
    repeated = each_of([axis for axis in own if axis != pairs[0]] if is_combined else attention.repeated)
    text.what(
        f"{code_of(step)} multiplies the value of each of {keys} keys by its weight and adds them up, for each of "
        f"{queries} queries{' and ' if repeated else ''}{repeated}: {count} vectors of {axis_label(features)} "
        "features.",
    )
    text.why(
        "Here information moves from token to token: a query gets the values of the keys that it attends to. The "
        "rows are those of the queries; the keys are summed away."
    )
    _observed(attention, text)
    return text.section()


def _observed(attention: Attention, text: SectionWriter) -> None:
    """Say how far the context is from what equal weights would give."""
    scores = attention.scores
    if scores is None or scores.values is None or scores.beside is not None:
        return
    product, place = scores.values, scores.weights_place
    visible = (~scores.hidden).double()
    equal, weights = visible / visible.sum(scores.keys, keepdim=True), scores.normalized(scores.read)
    plain, found = (
        product.with_operands({place: one.to(product.operand(place).dtype)}).double() for one in (equal, weights)
    )
    if not bool(torch.isfinite(plain).all()) or not bool(torch.isfinite(found).all()) or not bool(found.any()):
        return
    distance = text.observed_share(
        "distance from the plain average",
        float((found - plain).norm() / found.norm()),
        "norm of the difference between the context and the plain average of visible values, by the norm of the "
        "context; without dropout",
    )
    values = "the values that it can see" if bool(scores.hidden.any()) else "all values"
    apart = ", dropout apart," if _drops(attention) else ""
    text.without(
        f"With equal weights each query would get the plain average of {values}, whatever it asks for. In this run the "
        f"context{apart} differs from that average by {distance} of its size."
    )


def _drops(attention: Attention) -> bool:
    return any(step.outputs[0].tensor.storage.kind != "same" for step in attention.of("dropout"))

"""The softmax: along which axis the weights sum to 1, and what they would be along another one."""

from __future__ import annotations

from math import prod

import torch

from attnshape.checks.attention.cores import Core
from attnshape.explanation.attention import Attention, code_of, what_it_does
from attnshape.explanation.sentences import axis_label, axis_position, tensor_axes
from attnshape.explanation.topics.difference import combining
from attnshape.explanation.writing import SectionWriter
from attnshape.model.explanation import Section


def softmax(attention: Attention) -> Section | None:
    """Explain how scores become weights."""
    step = attention.first("softmax", "softmax")
    if step is None:
        return None
    combined = combining(attention)
    steps = [one for one in attention.of("softmax") if one not in combined]
    text = SectionWriter("softmax", "Turn scores into weights: softmax", steps)
    pairs, scores = attention.pairs, attention.scores
    if pairs is None or scores is None:
        text.what(what_it_does(attention.trace, step))
        _mismatch(attention, text)
        return text.section()
    keys = axis_label(pairs[1])
    shape = step.outputs[0].tensor.shape
    signature = step.outputs[0].tensor.signature
    rows = text.counted("rows of weights", prod(shape) // shape[scores.keys], f"`{signature}` without the keys")
    others = scores.beside.shape[scores.keys] if scores.beside is not None else 0
    more = (
        f" and {text.counted('scores of no key', others, 'what the softmax reads besides the scores of keys')} more "
        f"{'scores' if others > 1 else 'score'}"
        if others
        else ""
    )
    shared = "" if others else ": a query's attention, shared out among the keys"
    text.what(
        f"{code_of(step)} takes the exponential of each score and divides it by the sum over the {keys} keys{more}. In "
        f"each of {rows} rows, one for each query, the weights are at least 0 and sum to 1{shared}."
    )
    read = scores.read[~scores.hidden]
    negative = text.observed_share("negative scores", float((read < 0).double().mean()), "share of the visible scores")
    is_masked = bool(scores.hidden.any())
    of_them = "of the visible ones" if is_masked else "of them"
    text.why(
        f"A weighted average needs weights that are at least 0 and sum to 1. Scores are neither: {negative} {of_them} "
        "are negative in this run. The exponential keeps their order, and what counts is only by how much a score "
        "exceeds the others."
    )
    _raw_scores(attention, text)
    is_along_keys = scores.queries is not None and scores.products.shape[scores.queries] > 1
    if is_along_keys and scores.beside is None:
        _other_axis(attention, text)
    rows_with_choice = scores.rows.select(scores.keys, 0)
    equal_weights = (1 / ((~scores.hidden).sum(scores.keys) + others).double())[rows_with_choice]
    how = "mean over rows with at least two visible keys"
    largest = text.observed("largest weight of a row", scores.largest(scores.factor), how)
    equal = text.observed("weight of a key if all were equal", float(equal_weights.mean()), how)
    which = "" if scores.every_row_chooses else ", where a query sees more than one key"
    alike = "scores were equal" if others else "keys had the same weight"
    text.note(
        f"The largest weight of a row is {largest} on average{which}. If all {'visible ' if is_masked else ''}{alike}, "
        f"it would be {equal}."
    )
    return text.section()


def _mismatch(attention: Attention, text: SectionWriter) -> None:
    """Say so where the weights sum to 1 along another axis than the one over which the values are summed."""
    core, step = attention.core, attention.first("softmax", "softmax")
    if not isinstance(core, Core) or step is None or not core.softmax.axes or len(core.key_axes) != 1:
        return
    weights, record = core.softmax.event.values[0], step.outputs[0].tensor
    if (
        weights.shape != core.weights.shape
        or len(record.shape) != weights.ndim
        or core.key_axes[0] in core.softmax.axes
    ):
        return
    axes = tensor_axes(record)
    summed = " and ".join(axis_position(axis, weights.ndim) for axis in sorted(core.softmax.axes))
    text.note(
        f"The weights sum to 1 along {summed}. The values are summed over another one, "
        f"{axis_position(core.key_axes[0], weights.ndim)} ({axis_label(axes[core.key_axes[0]])}): along the keys the "
        "weights of a query don't sum to 1."
    )


def _raw_scores(attention: Attention, text: SectionWriter) -> None:
    """Say what rows would sum to if the scores themselves were the weights."""
    scores = attention.scores
    assert scores is not None
    sums = scores.read.masked_fill(scores.hidden, 0.0).sum(scores.keys)
    how = "sum of a query's visible scores"
    least = text.observed("least sum of the scores of a row", float(sums.min()), how)
    most = text.observed("largest sum of the scores of a row", float(sums.max()), how)
    visible = " visible" if bool(scores.hidden.any()) else ""
    subtracted = ", and some values would be subtracted"
    text.without(
        "The scores themselves would be the weights: a query's"
        f"{visible} scores sum to anything from {least} to {most} in this run"
        f"{subtracted if bool((scores.read < 0)[~scores.hidden].any()) else ''}."
    )


def _other_axis(attention: Attention, text: SectionWriter) -> None:
    """Say what rows would sum to if the softmax went along the queries."""
    scores = attention.scores
    assert scores is not None and scores.queries is not None
    sums = scores.read.softmax(scores.queries).sum(scores.keys)
    sums = sums[torch.isfinite(sums)]
    if not sums.numel():
        return
    how = "sum of a query's weights if the softmax went along the queries"
    least = text.observed("least sum of a row along the queries", float(sums.min()), how)
    most = text.observed("largest sum of a row along the queries", float(sums.max()), how)
    text.without(
        "The axis matters as well: along the queries, the weights of each key would sum to 1, and those of a query to "
        f"anything from {least} to {most}. Every shape would be the same."
    )

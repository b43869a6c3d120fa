"""The mask: which keys it hides, why it comes before the softmax, what it broadcasts over, how low its fill must be."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attnshape.checks.attention.elementwise import HIDES
from attnshape.explanation.attention import Attention, code_of, codes_of
from attnshape.explanation.broadcasting import broadcast_sentence
from attnshape.explanation.observed import ObservedScores
from attnshape.explanation.writing import SectionWriter
from attnshape.model.explanation import Section
from attnshape.model.trace import Step
from attnshape.tracing import operations as ops

_MOST_DRAWN = 32
"""How many queries or keys a picture has at most."""
_SMALLEST_EXPONENT = math.log(2.0**-150)
"""Below it the exponential rounds to 0 in float32, whose smallest number is 2**-149."""


def mask(attention: Attention) -> Section | None:
    """Explain how keys are hidden, if any are in this run."""
    scores = attention.scores
    if scores is None or not bool(scores.hidden.any()):
        return None
    hiding = [step for step in attention.added if hides(attention, step)]
    steps = sorted((*attention.makers(hiding), *hiding), key=lambda step: step.index)
    text = SectionWriter("mask", "Hide keys: the mask", steps)
    _what(attention, text, scores, hiding)
    _picture(text, scores)
    for step in hiding:
        text.what(broadcast_sentence(attention, step, text))
    _before_softmax(text, scores)
    _fill(attention, text, scores, hiding)
    return text.section()


def hides(attention: Attention, step: Step) -> bool:
    """Return whether a step on the way from the product to the softmax hides a key in this run."""
    after = attention.numbers(step)
    if after is None or not after.is_floating_point():
        return False
    place = attention.place_of_scores(step)
    before = attention.values.operand(step, place) if attention.values is not None and place is not None else None
    if before is None or before.shape != after.shape:
        return bool((after <= HIDES).any()) and not (before is not None and bool((before <= HIDES).any()))
    return bool(((after <= HIDES) & (before > HIDES)).any())


def _what(attention: Attention, text: SectionWriter, scores: ObservedScores, hiding: list[Step]) -> None:
    share = text.observed_share(
        "hidden pairs", float(scores.hidden.double().mean()), "share of the pairs of a query and a key that are hidden"
    )
    by = codes_of(hiding) if hiding else code_of(attention.context)
    text.what(
        f"{by} hide{'' if len(hiding) > 1 else 's'} {share} of all pairs of a query and a key.", _pattern(text, scores)
    )


def _hidden_pairs(scores: ObservedScores) -> Tensor | None:
    """Return which keys are hidden, (sequences and heads, queries, keys); None if the queries' axis is unknown."""
    if scores.queries is None:
        return None
    return scores.hidden.movedim((scores.queries, scores.keys), (-2, -1)).flatten(0, -3)


def _picture(text: SectionWriter, scores: ObservedScores) -> None:
    """Draw which keys each query sees, if they are few, and the same in all sequences and heads."""
    hidden = _hidden_pairs(scores)
    if hidden is None:
        return
    if max(hidden.shape[-2:]) <= _MOST_DRAWN and bool((hidden == hidden[:1]).all()):
        rows = ("".join("." if one else "#" for one in row) for row in hidden[0].tolist())
        text.grid("Which keys (columns) each query (row) sees:", rows)


def _pattern(text: SectionWriter, scores: ObservedScores) -> str:
    """Return which keys a query sees, in words; empty if there is no simple rule."""
    hidden = _hidden_pairs(scores)
    if hidden is None:
        return ""
    queries, keys = hidden.shape[-2:]
    offset = int((~hidden[0, 0]).sum()) - 1
    later = torch.ones(queries, keys, dtype=torch.bool).triu(1 + offset)
    if queries > 1 and offset >= 0 and bool((hidden == later).all()):
        if offset == keys - queries:
            earlier = text.counted("earlier keys", offset, "number of keys minus that of queries") if offset else ""
            last = f"i + {earlier}" if earlier else "i"
            return f"Query i sees the keys 0 to {last}, its own and those before it: the mask is causal."
        first = text.observed("keys after the first of query 0", offset, "keys that query 0 sees, less one")
        unseen = max(keys - queries - offset, 0)
        more = (
            f" The last {text.observed('keys that no query sees', unseen, 'keys hidden from every query')} keys are "
            "seen by no query."
            if unseen
            else ""
        )
        return f"Query i sees the keys 0 to {f'i + {first}' if offset else 'i'}.{more}"
    if queries > 1 and bool((hidden == hidden[:, :1]).all()):
        return "It hides the same keys from every query, as padding does."
    seen = (~hidden).sum(-1)
    fewest = text.observed("fewest visible keys", int(seen.min()), "least number of keys that a query sees")
    most = text.observed("most visible keys", int(seen.max()), "largest number of keys that a query sees")
    return f"A query sees {fewest} keys." if fewest == most else f"A query sees {fewest} to {most} keys."


def _before_softmax(text: SectionWriter, scores: ObservedScores) -> None:
    unmasked = scores.normalized(scores.factor * scores.products + scores.added.masked_fill(scores.hidden, 0.0))
    masked_rows = scores.hidden.any(scores.keys) & ~scores.hidden.all(scores.keys)
    left = (unmasked * ~scores.hidden).sum(scores.keys)[masked_rows]
    rest = "" if scores.beside is not None else ", and the weights of the others sum to 1"
    text.why(
        f"The softmax divides by the sum over all keys. A key that is hidden before takes no part in that sum{rest}."
    )
    if not left.numel():
        return
    mean = text.observed(
        "sum of the visible weights if masked afterwards",
        float(left.mean()),
        "mean sum of the visible weights of a softmax over all keys, in rows that hide a key",
    )
    least = text.observed(
        "least sum of the visible weights if masked afterwards",
        float(left.min()),
        "least sum of the visible weights of a softmax over all keys, in rows that hide a key",
    )
    text.without(
        "If the weights of these keys were set to 0 after the softmax instead, their scores would still be part of the "
        f"divisor: the rows that hide a key would sum to {mean} on average, the least of them to {least}.",
        _with_mask(text, scores, masked_rows),
    )


def _with_mask(text: SectionWriter, scores: ObservedScores, rows: Tensor) -> str:
    """Return what rows that hide a key sum to as it is, if the softmax reads more than the scores of keys."""
    if scores.beside is None:
        return ""
    sums = scores.normalized(scores.read).sum(scores.keys)[rows]
    mean = text.observed("sum of the visible weights", float(sums.mean()), "mean sum of a row that hides a key")
    return f"As it is they sum to {mean}."


def _fill(attention: Attention, text: SectionWriter, scores: ObservedScores, hiding: list[Step]) -> None:
    weights = _weights(attention, scores)
    if weights is None:
        return
    some_visible = (~scores.hidden).any(scores.keys, keepdim=True)
    at_hidden = weights[scores.hidden & some_visible]
    if not at_hidden.numel():
        return
    largest = text.observed(
        "largest weight of a hidden key", float(at_hidden.max()), "in rows in which the query sees another key"
    )
    fills = scores.added[scores.hidden]
    lowest, highest = float(fills.min()), float(fills.max())
    with_zero = scores.normalized(scores.scores(scores.factor).masked_fill(scores.hidden, 0.0))
    rows = scores.hidden.any(scores.keys) & ~scores.hidden.all(scores.keys)
    kept = text.observed_share(
        "weight of hidden keys with a fill of 0",
        float((with_zero * scores.hidden).sum(scores.keys)[rows].mean()),
        "mean sum of the weights of hidden keys if their scores were 0, in rows that hide a key",
    )
    names = {"masked_fill", "where"} & {ops.base_name(step.operation) for step in hiding}
    if math.isinf(highest):
        fill = text.observed("score of a hidden key", -math.inf, "what is added to it, or takes its place")
        text.why(
            f"A hidden key's score is {fill}. Its exponential is exactly 0, whatever the other scores are, and so is "
            f"its weight: the largest weight of a hidden key is {largest} in this run."
        )
    elif lowest == highest:
        fill = text.observed("score of a hidden key", highest, "what is added to it, or takes its place")
        threshold = ""
        if attention.trace.dtype == "float32":
            least = text.computed("exponent that rounds to 0", _SMALLEST_EXPONENT, "log(2**-150)")
            threshold = f" In float32, exp(x) is 0 for x below {least}, and {fill} is far lower than that."
        text.why(
            f"A hidden key's score is {fill}. Its weight is the exponential of how far it lies below the largest "
            f"score, divided by the sum: the largest weight of a hidden key is {largest} in this run.{threshold}"
        )
    text.without(
        f"A fill of 0 would be a score like any other: hidden keys would keep {kept} of the weight on average."
    )
    if scores.beside is None and math.isinf(highest):
        text.note(
            "A row in which every key is hidden has no finite score left, and its weights are NaN. So each query "
            "must see at least one key."
        )
    elif scores.beside is None and names:
        text.note(
            "A row in which every key is hidden has equal scores, and so equal weights: an average over keys that "
            "should not be seen, without any error."
        )


def _weights(attention: Attention, scores: ObservedScores) -> Tensor | None:
    """Return the weights as the softmax returned them in this run."""
    if attention.traced.is_fused:
        return scores.weights(scores.factor)
    if scores.beside is not None:
        return scores.normalized(scores.read)
    weights = attention.numbers(attention.first("softmax", "softmax"))
    return weights if weights is not None and weights.shape == scores.hidden.shape else None

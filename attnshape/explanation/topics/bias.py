"""What is added to the scores besides a mask, such as a bias for the distance between tokens."""

from __future__ import annotations

import math

import torch

from attnshape.explanation.attention import Attention, code_of
from attnshape.explanation.broadcasting import broadcast_sentence
from attnshape.explanation.observed import ObservedScores
from attnshape.explanation.topics.mask import hides
from attnshape.explanation.writing import SectionWriter
from attnshape.model.explanation import Section
from attnshape.model.trace import Step
from attnshape.tracing import operations as ops


def bias(attention: Attention) -> Section | None:
    """Explain what is added to the scores of visible keys, if anything is in this run."""
    scores = attention.scores
    adding = [
        step
        for step in attention.added
        if ops.base_name(step.operation) in ops.ADDITIONS | ops.SUBTRACTIONS and not hides(attention, step)
    ]
    if scores is None or not adding:
        return None
    added = scores.added[~scores.hidden]
    if not bool((added != 0).any()):
        return None
    steps = sorted((*attention.makers(adding), *adding), key=lambda step: step.index)
    text = SectionWriter("bias", "Add to the scores", steps)
    for step in adding:
        text.what(f"{code_of(step)} adds to the scores.", broadcast_sentence(attention, step, text))
    least = text.observed("least number added", float(added.min()), "least number that is added to a visible score")
    most = text.observed("largest number added", float(added.max()), "largest number that is added to a visible score")
    from_data = any(_depends_on_data(attention, step) for step in adding)
    whatever = ", and follows from the inputs as the scores do" if from_data else ", whatever the inputs are"
    text.what(f"What is added lies between {least} and {most} in this run{whatever}.")
    text.why("The softmax multiplies the weight of a key by the exponential of what is added to its score.")
    _without(text, scores)
    return text.section()


def _depends_on_data(attention: Attention, step: Step) -> bool:
    """Return whether what a step adds depends on the inputs that are attended over."""
    call, place = attention.values.call(step) if attention.values is not None else None, attention.place_of_scores(step)
    if call is None or attention.values is None:
        return True
    graph = attention.values.subject.graph
    return any(graph.carries_data(sources) for at, sources in enumerate(call.sources) if at != place)


def _without(text: SectionWriter, scores: ObservedScores) -> None:
    """Say how much of the weights would go to other keys."""
    without = scores.normalized((scores.factor * scores.products).masked_fill(scores.hidden, -math.inf))
    distance = (scores.weights(scores.factor) - without).abs().sum(scores.keys) / 2
    distance = distance[torch.isfinite(distance)]
    if distance.numel():
        moved = text.observed_share(
            "weight that goes to other keys",
            float(distance.mean()),
            "mean over rows of half the sum of absolute differences between the weights with and without what is added",
        )
        text.without(f"On average {moved} of a query's attention would go to other keys.")

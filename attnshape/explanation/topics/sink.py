"""Sinks: scores of no key, which take part in the softmax, so that the weights of the keys sum to less than 1."""

from __future__ import annotations

from attnshape.explanation.attention import Attention, codes_of
from attnshape.explanation.sentences import axis_label
from attnshape.explanation.writing import SectionWriter
from attnshape.model.explanation import Section
from attnshape.tracing import operations as ops


def sink(attention: Attention) -> Section | None:
    """Explain what the softmax reads besides the scores of the keys, if it does."""
    scores, pairs = attention.scores, attention.pairs
    if scores is None or scores.beside is None or pairs is None:
        return None
    joining = [step for step in attention.on_the_way if ops.base_name(step.operation) in ops.JOINS]
    cutting = [step for step in attention.of("softmax") if step.role != "softmax"]
    steps = sorted((*attention.makers(joining), *joining), key=lambda step: step.index)
    text = SectionWriter("sink", "A score of no key: the sink", steps)
    number = scores.beside.shape[scores.keys]
    count = text.counted("scores of no key", number, "what the softmax reads besides the scores of keys")
    more = f"{count} more {'scores' if number > 1 else 'score'}"
    gives = f"{codes_of(joining)} gives each query" if joining else "Each query has"
    dropped = f" {codes_of(cutting)} leaves out {'their' if number > 1 else 'its'} weight." if cutting else ""
    text.what(f"{gives} {more} besides those of its {axis_label(pairs[1])} keys. No value belongs to it.{dropped}")
    low, high = (
        text.observed(f"{which} score of a sink", float(value), "score of no key")
        for which, value in (("least", scores.beside.min()), ("largest", scores.beside.max()))
    )
    between = f"lies between {low} and {high}" if low != high else f"is {low}"
    weights = scores.normalized(scores.read).sum(scores.keys)
    mean, least = (
        text.observed(f"{which} sum of the keys' weights", float(value), f"{which} over rows")
        for which, value in (("mean", weights.mean()), ("least", weights.min()))
    )
    text.what(
        f"In this run that score {between}, and the weights of the keys of a query sum to {mean} on average, and "
        f"to {least} at least. The sink takes the rest."
    )
    text.why(
        "A softmax shares out all of a query's attention, also where no key fits. The sink takes what no key should "
        "get: since it has no value, the context of such a query is small."
    )
    rest = text.observed_share("share of the sink", float(1 - weights.mean()), "mean weight that isn't a key's")
    text.without(
        f"The weights of the keys would sum to 1: {rest} of the attention would go to keys that don't get it now, and "
        "some key would have to take it even where none fits."
    )
    return text.section()

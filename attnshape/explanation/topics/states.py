"""Attention that keeps a sum of keys times values: why features, why this order of the products, why corrections."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import prod

from msgspec import UNSET

from attnshape.explanation.attention import code_of, codes_of, each_of, given_records
from attnshape.explanation.sentences import AxisSize, axis_label, tensor_axes
from attnshape.explanation.stages import StepLinks
from attnshape.explanation.states import CorrectedState, SummedAxes, SummedFirst
from attnshape.explanation.summary import collected
from attnshape.explanation.writing import SectionWriter
from attnshape.model.explanation import Section
from attnshape.model.formatting import format_count
from attnshape.model.trace import Quantity, Step, Trace
from attnshape.tracing import operations as ops

_AGAIN = 10
"""How often the last token is written once more: `ten` in the text."""


def features(found: SummedFirst) -> Section | None:
    """Explain the functions that make features of queries and keys, if there are any and they are never negative."""
    least = min(float(found.queries.min()), float(found.keys.min()))
    if not found.maps or found.raw is None or least < 0:
        return None
    text = SectionWriter("features", "Make features of queries and keys", _ordered(*found.maps))
    last = [one[-1] for one in found.maps]
    change = "changes" if code_of(last[0]) == code_of(last[1]) else "change"
    text.what(
        f"{codes_of(last)} {change} each number of the queries and keys by itself. The "
        "results are their features. The weight of a key is the product of its features and those of the query, "
        "divided by the sum of these products over the keys; no softmax is computed."
    )
    lowest = text.observed("least feature", least, "least number among the features of queries and keys")
    text.why(
        f"An average needs weights that aren't negative. The features of this run are at least {lowest}, so that no "
        "product of a query and a key is negative.",
        "A softmax needs the score of each pair before it can give weights. Features are made of queries and keys one "
        "by one, so that the products can then be summed in either order.",
    )
    products = found.raw[0] @ found.raw[1].mT
    seen = found.weights(products.new_ones(products.shape[-2], 1), products.new_ones(products.shape[-1], 1)) > 0
    negative = text.observed_share(
        "negative products without the features",
        float((products[..., seen] < 0).double().mean()),
        "share of the products of visible queries and keys themselves",
    )
    sums = [found.weights(*pair).sum(-1) for pair in (found.raw, (found.queries, found.keys))]
    near, far = (
        text.observed(name, float(one.abs().min()), "least absolute value of a query's sum over its keys")
        for name, one in zip(("sum nearest to 0 without the features", "least sum"), sums, strict=True)
    )
    text.without(
        f"{negative} of the products of the queries and keys themselves are negative. A query's sum of them, by which "
        f"its context is divided, comes as near to 0 as {near}; with the features it is at least {far}."
    )
    return text.section()


def summed_first(trace: Trace, links: StepLinks, found: SummedFirst) -> Section | None:
    """Explain the order of the products, and what it saves or costs."""
    axes = _axes(trace, found)
    counted = _together([step for step in (found.outer, found.running, found.read) if step is not None])
    if axes is None or counted is None:
        return None
    batch, queries, keys, own, wide = axes
    text = SectionWriter("order", "Sum keys times values first", _inside(links, found))
    repeated = each_of(batch)
    size = f"{axis_label(own)} × {axis_label(wide)}"
    if found.running is None:
        text.what(
            f"{code_of(found.outer)} multiplies the features of each key by its value, and sums over "
            f"{axis_label(keys)} keys: one state of {size} numbers{repeated and ' '}{repeated}. {code_of(found.read)} "
            f"multiplies the features of {axis_label(queries)} queries by it."
        )
    else:
        text.what(
            f"{code_of(found.outer)} multiplies the features of each key by its value, and {code_of(found.running)} "
            f"adds the results up, token by token: a state of {size} numbers after each of {axis_label(keys)} tokens"
            f"{repeated and ', '}{repeated}. {code_of(found.read)} multiplies the features of each query by the state "
            "of its token, so that it sees no later key."
        )
    done = f"{code_of(found.division)} divides by"
    if found.division is found.read:
        done = "The same call multiplies by the inverse of"
    elif ops.base_name(found.division.operation) in ops.MULTIPLICATIONS:
        done = f"{code_of(found.division)} multiplies by the inverse of"
    text.what(f"{done} the sum of the query's weights, so that the weights sum to 1 without ever being computed.")
    other = _pairs_first(batch, queries, keys, own, wide)
    first = text.computed("FLOPs of the order of the code", counted.value, counted.expression or "")
    pairs = text.computed("FLOPs with the scores first", other.value, other.expression or "")
    every = prod(number for _, number in (*batch, queries, keys))
    scores = text.computed("scores that aren't computed", every, _product([*batch, queries, keys]))
    text.why(
        "Each number of the context is a sum of products of a query's, a key's and a value's numbers. Either the query "
        "and the key may be multiplied first, or the key and the value. The order of the code takes "
        f"{first} = `{counted.expression}` operations; with the scores first the two products would take "
        f"{pairs} = `{other.expression}`, and there would be {scores} = `{_product([*batch, queries, keys])}` scores."
    )
    if queries == keys:
        length = other.value / keys[1]
        crossing = text.computed(
            "length from which the order saves operations",
            counted.value / length,
            f"{keys[0]} * FLOPs of the order of the code / FLOPs with the scores first",
            format_count(round(counted.value / length)),
        )
        text.without(
            f"With the scores first the cost would grow with {keys[0]}*{keys[0]}; in this order it grows with "
            f"{keys[0]}. From about {keys[0]} = {crossing} on, this order takes fewer operations."
        )
    else:
        text.without(
            f"With the scores first the cost would grow with {queries[0]}*{keys[0]}; in this order it grows with "
            f"{queries[0]}+{keys[0]}."
        )
    return text.section()


def correction(links: StepLinks, found: CorrectedState) -> Section | None:
    """Explain why the old value is read before the new one is written."""
    steps = [found.read, found.difference, found.outer, found.update]
    inside = links.upstream(found.update, frozenset(step.index for step in links.upstream(found.read).values()))
    inside = {index: step for index, step in inside.items() if index > found.read.index}
    text = SectionWriter(
        "correction", "Read the old value, write the new one", _ordered([found.read, *inside.values()])
    )
    state = tensor_axes(found.update.outputs[0].tensor)
    text.what(
        f"{code_of(found.read)} reads what the state, {axis_label(state[-2])} × {axis_label(state[-1])} numbers, "
        f"returns for the key of a token. {code_of(found.difference)} is what the token's value differs by from it; "
        f"{codes_of(steps[2:])} add the key times this difference, times a rate, to the state."
    )
    length = text.observed("mean square length of a key", float(found.keys.square().sum(-1).mean()), "mean over tokens")
    rate = text.observed("mean rate", float(found.rates.mean()), "factor of the differences, mean over tokens")
    text.why(
        "What a state returns for a key is what was written under that key, and under all keys that aren't orthogonal "
        "to it. Writing the difference replaces that by the new value: fully where the rate times the square of the "
        f"key's length is 1, in part where it is less. In this run that square is {length} on average, and the rate "
        f"{rate}."
    )
    last = len(found.decays) - 1
    ends = []
    for correct in (True, False):
        again = found.final(found.decays)
        for _ in range(_AGAIN):
            again = found.written(again, last, correct=correct)
        value = found.values[last]
        ends.append(float((found.returned(again, last) - value).norm() / value.norm()))
    near, far = (
        text.observed(f"distance after writing again{name}", end, "norm of the difference from the value, by its norm")
        for name, end in zip(("", " without the subtraction"), ends, strict=True)
    )
    text.without(
        "Values under the same key would add up. If the last token of this run were written ten more times, what the "
        f"state returns for its key would differ from its value by {far} times the value's size; with the subtraction "
        f"it differs by {near} times."
    )
    return text.section()


def decay(links: StepLinks, found: CorrectedState) -> Section | None:
    """Explain the factor by which the state is multiplied before each token; None if there is none below 1."""
    factors = found.decays[1:]
    if found.decay is None or not bool((factors >= 0).all()) or not bool((factors < 1).any()) or factors.max() > 1:
        return None
    text = SectionWriter("decay", "Let the state decay", [found.decay])
    low, high = (
        text.observed(f"{name} factor of the state", float(value), "factor from one token to the next")
        for name, value in (("least", factors.min()), ("largest", factors.max()))
    )
    text.what(
        f"{code_of(found.decay)} multiplies the state by a factor before each token: between {low} and {high} in this "
        "run."
    )
    tokens = text.counted("tokens", len(found.decays), "iterations of the loop")
    left = text.observed_share(
        "share of the first token that is left", float(factors.prod(0).mean()), "mean product of the factors"
    )
    text.why(
        "A state has as many numbers after many tokens as after one. What it forgets makes room: what the first of "
        f"{tokens} tokens wrote has been multiplied by {left} on average at the end."
    )
    ends = [found.final(one).norm() for one in (found.decays, found.decays.new_ones(found.decays.shape))]
    with_, without = (
        text.observed(f"norm of the last state{name}", float(end), "root of the sum of its squares")
        for name, end in zip(("", " without the factors"), ends, strict=True)
    )
    text.without(
        "What is written would stay until a similar key overwrites it. The norm of the last state of this run would be "
        f"{without} instead of {with_}."
    )
    return text.section()


def sections(
    trace: Trace, links: StepLinks, summed: SummedFirst | None, corrected: CorrectedState | None
) -> Iterator[Section]:
    """Yield what there is to say about states, in the order of the data."""
    found = []
    if summed is not None:
        found += [features(summed), summed_first(trace, links, summed)]
    if corrected is not None:
        found += [decay(links, corrected), correction(links, corrected)]
    yield from (section for section in found if section is not None)


def _ordered(*steps: list[Step] | tuple[Step, ...]) -> list[Step]:
    return sorted({step.index: step for some in steps for step in some}.values(), key=lambda step: step.index)


def _inside(links: StepLinks, found: SummedFirst) -> list[Step]:
    """Return the steps between the features and the division."""
    made = frozenset(chain[-1].index for chain in found.maps)
    ends = made if made else frozenset(step.index for step in (*links.inputs(found.outer),))
    inside = links.upstream(found.division, ends)
    return _ordered([step for index, step in inside.items() if index not in ends])


def _axes(trace: Trace, found: SummedFirst) -> SummedAxes | None:
    """Return the axes of the batch, the queries, the keys, the features and the values; None if some are unknown."""
    if found.axes is not None:
        return found.axes
    state, read = (tensor_axes(step.outputs[0].tensor) for step in (found.outer, found.division))
    given = given_records(trace, found.outer)
    if len(state) < 2 or len(read) < 2 or any(one is None for one in given):
        return None
    if found.running is not None:
        batch, keys = state[:-3], state[-3]
    else:
        batch, keys = state[:-2], next(tensor_axes(one.tensor)[-1] for one in given if one is not None)
    axes = (batch, read[-2], keys, state[-2], state[-1])
    if found.running is not None and found.keys.shape[-1] != axes[3][1]:
        return None
    return axes


def _together(steps: list[Step]) -> Quantity | None:
    """Return the operations of steps with a formula; None where one is unknown."""
    costs = [step.cost.flops if step.cost is not UNSET else None for step in steps]
    known = [one for one in costs if one is not None and one.expression is not None]
    if len(known) < len(costs):
        return None
    terms = Counter(one.expression or "" for one in known)
    return Quantity(sum(one.value for one in known), "+".join(collected(terms)))


def _pairs_first(batch: list[AxisSize], queries: AxisSize, keys: AxisSize, own: AxisSize, wide: AxisSize) -> Quantity:
    factors = [[*batch, queries, keys, one] for one in (own, wide)]
    value = sum(2 * prod(number for _, number in some) for some in factors)
    return Quantity(value, "+".join(f"2*{_product(some)}" for some in factors))


def _product(axes: list[AxisSize]) -> str:
    return "*".join(f"({text})" if not text.replace("*", "").isalnum() else text for text, _ in axes)

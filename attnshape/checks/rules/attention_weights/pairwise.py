"""Softmaxes whose scores are sums of what two tokens give, not products of queries and keys: do they run over the keys?

Such are additive attention and attention over a dense adjacency. A softmax of other scores is left alone: one that
assigns tokens to clusters runs over the clusters, while the tokens of each are summed.
"""

from __future__ import annotations

from collections.abc import Iterator

from attnshape.checks.attention.cores import Softmax, softmaxes, sum_to_one, value_product
from attnshape.checks.attention.definitions import module_definition, number_definition
from attnshape.checks.attention.products import Product
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.small_sizes import symbol_or_number
from attnshape.checks.rules.protocol import Outcome, Verification, Violation
from attnshape.tracing import operations as ops


def check_pairwise(subject: Subject) -> Iterator[Outcome]:
    """Check that such weights sum to one over the axes over which the values are summed."""
    with_products = {core.softmax.ref for core in subject.cores}
    outcomes = [
        outcome
        for softmax in softmaxes(subject.graph)
        if softmax.ref not in with_products and _scores_pairs(subject, softmax)
        if (outcome := _judge(subject, softmax)) is not None
    ]
    wrong = [outcome for outcome in outcomes if isinstance(outcome, Violation)]
    yield from wrong or outcomes[:1]


def _scores_pairs(subject: Subject, softmax: Softmax) -> bool:
    """Return whether an addition makes the scores that gives more numbers than it reads in either of its operands."""
    graph = subject.graph
    for event in graph.upstream(softmax.sources):
        if event.name in ops.SOFTMAXES:
            return False
        if event.name in ops.ADDITIONS | ops.SUBTRACTIONS and len(event.sources) == 2:
            largest = max(value.numel() for value in event.operand_values)
            if event.numel > largest and all(map(graph.carries_data, event.sources)):
                return True
    return False


def _judge(subject: Subject, softmax: Softmax) -> Outcome | None:
    found = value_product(softmax, subject.graph)
    if found is None or not softmax.axes:
        return None
    product, place = found
    weights, keys = product.operand(place), product.contracted(place)
    over_keys = sum_to_one(weights, keys) if keys else None
    if over_keys:
        return Verification("the softmax runs over the keys, and each row of weights sums to one")
    others = [axis for axis in range(weights.ndim) if axis not in keys and weights.shape[axis] > 1]
    if over_keys is None or not any(sum_to_one(weights, axis) for axis in others):
        return None
    return _violation(subject, softmax, product, keys[0], place)


def _violation(subject: Subject, softmax: Softmax, product: Product, key: int, place: int) -> Violation:
    axis, shape = min(softmax.axes), softmax.event.values[0].shape
    size = symbol_or_number(shape[axis], subject.numbers)
    key_size = symbol_or_number(product.operand(place).shape[key], subject.numbers)
    reduction = f"are summed over axis {key} of the weights ({key_size}, the keys)"
    message = f"the softmax runs over axis {axis} ({size}), but the values {reduction}"
    hint = "take the softmax over the axis over which the values are summed"
    evidence = "changed the weights at one index at a time before the product with the values"
    made = module_definition(subject, softmax.ref) or number_definition(subject, softmax.ref)
    return Violation("AS301", message, softmax.ref, hint, evidence, made=made)

"""The scores: which products are made, over what they are repeated, and why the keys are turned first."""

from __future__ import annotations

from math import prod

from attnshape.explanation.attention import Attention, code_of, codes_of, each_of, given_records, is_matmul
from attnshape.explanation.sentences import AxisSize, axis_label, tensor_axes
from attnshape.explanation.writing import SectionWriter
from attnshape.model.explanation import Section
from attnshape.model.trace import Step
from attnshape.tracing import operations as ops


def scores(attention: Attention) -> Section | None:
    """Explain the product of queries and keys."""
    product, pairs, width = attention.product, attention.pairs, attention.width
    if product is None or attention.traced.is_fused:
        return None
    text = SectionWriter("scores", "Compare queries and keys: scores", attention.of("scores"))
    if pairs is not None and attention.scores is not None and not attention.scores.compared:
        _of_network(attention, text, product, pairs)
        return text.section()
    if pairs is None or width is None:
        text.what(f"{code_of(product)} makes the scores, `{product.outputs[0].tensor.signature}`.")
        return text.section()
    queries, keys = map(axis_label, pairs)
    features = axis_label(width)
    repeated = each_of(attention.repeated)
    count = text.counted("scores", prod(product.outputs[0].tensor.shape), f"`{product.outputs[0].tensor.signature}`")
    iterations = attention.iterations
    times = f" In a loop this is done {axis_label(iterations)} times." if iterations is not None else ""
    products = attention.products
    makes = "make one score together" if len(products) > 1 else "makes one score"
    text.what(
        f"{codes_of(products)} {makes} for each pair of a query and a key{', ' if repeated else ''}{repeated}: "
        f"{queries} queries × {keys} keys, {count} scores in all.{times}",
        f"A score is the sum of {features} products, one for each feature: the dot product of a query and a key.",
    )
    if len(products) > 1:
        number_of_parts = text.counted("products that are added", len(products), "steps whose results are summed")
        text.what(
            f"The features are in {number_of_parts} parts, and the dot products of the parts are added. That is the "
            "same number as the dot product of the whole vectors."
        )
    alone = "" if attention.of("added") else " What a token attends to is decided by these numbers alone."
    text.why(f"A dot product is large where two vectors point the same way. This is where a query meets a key.{alone}")
    text.without(
        "The weights could not depend on what the tokens hold: each query would average the values in a way that is "
        "fixed in advance."
    )
    _turn(attention, text, product)
    return text.section()


def _of_network(attention: Attention, text: SectionWriter, product: Step, pairs: tuple[AxisSize, AxisSize]) -> None:
    """Explain scores that a learned vector makes of each pair of a query and a key."""
    queries, keys = map(axis_label, pairs)
    given = next((one for one in given_records(attention.trace, product) if one is not None), None)
    repeated = each_of(attention.repeated)
    count = text.counted("scores", prod(product.outputs[0].tensor.shape), f"`{product.outputs[0].tensor.signature}`")
    text.what(
        f"{code_of(product)} makes one score for each pair of a query and a key{', ' if repeated else ''}{repeated}: "
        f"{queries} queries × {keys} keys, {count} scores in all.",
        f"It multiplies {axis_label(tensor_axes(given.tensor)[-1])} features of each pair by learned numbers, and adds "
        "them up."
        if given is not None and given.tensor.shape
        else "",
    )
    bending = [step for step in attention.of("operands") if ops.base_name(step.operation) in ops.NONLINEARITIES]
    if len(bending) != 1 or given is None:
        text.why("The parameters are learned, so that the network itself finds which keys fit a query.")
        return
    sizes = [size for _, size in pairs]
    size = text.counted("numbers of all pairs", prod(given.tensor.shape), f"`{given.tensor.signature}`")
    fewer = text.counted(
        "numbers of queries and keys",
        prod(given.tensor.shape) // prod(sizes) * sum(sizes),
        f"those of {queries} queries and {keys} keys, one by one",
    )
    text.why(
        "A small network compares a query and a key in place of a dot product: both may have any width, and the "
        "parameters are learned, so that the network itself finds which keys fit a query."
    )
    text.without(
        f"Without {code_of(bending[0])}, a score would be a sum of what the query gives and what the key gives. The "
        "query's part is the same for all keys, and the softmax cancels it: each query would have the same weights."
    )
    text.note(
        f"The price is a vector for each pair: {size} numbers, where dot products need only the {fewer} of the queries "
        "and the keys themselves."
    )


def _turn(attention: Attention, text: SectionWriter, product: Step) -> None:
    """Say why the keys are turned before the product."""
    turned = next((step for step in attention.of("scores", "heads") if _turns_keys(attention, step)), None)
    query, key, pairs, width = attention.query_record, attention.key_record, attention.pairs, attention.width
    if turned is None or not is_matmul(product) or query is None or key is None or pairs is None or width is None:
        return
    rows, columns = tensor_axes(query)[-2:], tensor_axes(key)[-2:]
    text.what(
        f"{code_of(turned)} turns the keys to {axis_label(columns[0])} × {axis_label(columns[1])}.",
        "That is a view: no number moves." if turned.outputs[0].tensor.storage.kind == "view" else "",
    )
    text.why(
        "A matrix product sums over the last axis of its first operand and the second-to-last axis of its second. To "
        f"sum over {axis_label(width)}, the features of the keys must become rows."
    )
    tokens = columns[1]
    if tokens[1] == width[1]:
        text.without(
            f"Here {axis_label(tokens)} is as many as {axis_label(width)}, so that the product would run all the "
            "same, and sum over tokens."
        )
    else:
        text.without(
            f"Queries of {axis_label(rows[0])} × {axis_label(rows[1])} can't be multiplied by keys of "
            f"{axis_label(tokens)} × {axis_label(columns[0])}: {axis_label(rows[1])} isn't {axis_label(tokens)}, and "
            "torch raises an error. Where the two happen to be equal, the product runs, and sums over tokens."
        )


def _turns_keys(attention: Attention, step: Step) -> bool:
    """Return whether a step puts the features of what becomes the keys before its tokens."""
    key, call = attention.operands.get("key"), attention.values.call(step) if attention.values is not None else None
    given = given_records(attention.trace, step)
    if step.role != "transpose" or key is None or call is None or not given or given[0] is None:
        return False
    before, after = tensor_axes(given[0].tensor), tensor_axes(step.outputs[0].tensor)
    return call.refs[0] in key.sources and len(after) > 1 and before[-1] == after[-2]

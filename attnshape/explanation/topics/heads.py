"""The heads: how features are split, why each head becomes a matrix of its own, and what a wrong order would do."""

from __future__ import annotations

from math import prod

from attnshape.explanation.attention import (
    Attention,
    code_of,
    codes_of,
    each_of,
    given_records,
    is_matmul,
    what_it_does,
)
from attnshape.explanation.memory_layout import can_view, memory_table
from attnshape.explanation.sentences import GROUPED_HEADS, HEADS, AxisSize, axis_label, tensor_axes
from attnshape.explanation.writing import SectionWriter
from attnshape.model.explanation import Section
from attnshape.model.trace import Step, TensorRecord
from attnshape.tracing import operations as ops


def heads(attention: Attention) -> Section | None:
    """Explain the split into heads, and the transposes that follow it."""
    steps = attention.of("heads")
    modules = attention.loop_modules()
    if not steps and modules is None:
        return None
    text = SectionWriter("heads", "Split into heads" if steps else "One module for each head", steps)
    parts = [step for step in steps if ops.base_name(step.operation) in ops.SPLITS and len(step.outputs) > 1]
    split = _split(attention)
    _cut(text, [step for step in parts if split is None or step.index < split.index])
    if split is not None:
        _what(attention, text, split)
    elif attention.joins_modules:
        _of_modules(attention, text)
    reshaped = [step for step in steps if step.role == "split" and step not in parts]
    for step in reshaped if split is None else ():
        text.what(what_it_does(attention.trace, step))
    axes = _head_axes(attention)
    if axes and (split is not None or not reshaped):
        _why(attention, text, axes)
    if split is not None:
        _transposes(attention, text, split)
        _cut(text, [step for step in parts if step.index > split.index])
    return text.section()


def _cut(text: SectionWriter, parts: list[Step]) -> None:
    """Say what the steps do that cut one result into several."""
    for step in parts:
        count = text.counted(f"parts of step {step.index}", len(step.outputs), "results of the call")
        are_views = all(output.tensor.storage.kind == "view" for output in step.outputs)
        which = ", which are views: nothing is copied" if are_views else ""
        text.what(f"{code_of(step)} cuts one result into {count} parts{which}.")


def _split(attention: Attention) -> Step | None:
    """Return the first step that splits an axis into heads and features."""
    for step in attention.of("heads"):
        given = given_records(attention.trace, step)
        before = given[0].tensor if given and given[0] is not None else None
        if step.role != "split" or before is None or len(step.outputs) != 1:
            continue
        if _split_axes(before, step.outputs[0].tensor) is not None:
            return step
    return None


def _split_axes(before: TensorRecord, after: TensorRecord) -> tuple[AxisSize, list[AxisSize]] | None:
    """Return the axis that a split takes apart, and its parts, heads among them; None if other axes change too."""
    old, new = tensor_axes(before), tensor_axes(after)
    start = next((place for place, pair in enumerate(zip(old, new, strict=False)) if pair[0] != pair[1]), len(old))
    more = len(new) - len(old)
    if start >= len(old) or more < 1 or old[start + 1 :] != new[start + more + 1 :]:
        return None
    parts = new[start : start + more + 1]
    whole = prod(size for _, size in parts) == old[start][1]
    return (old[start], parts) if whole and any(axis in HEADS for axis, _ in parts) else None


def _what(attention: Attention, text: SectionWriter, split: Step) -> None:
    given = given_records(attention.trace, split)[0]
    found = _split_axes(given.tensor, split.outputs[0].tensor) if given is not None else None
    assert found is not None
    whole, parts = found
    into = (
        f"{axis_label(parts[0])} heads of {axis_label(parts[1])} features each"
        if len(parts) == 2 and parts[0][0] in HEADS
        else " × ".join(map(axis_label, parts))
    )
    copied = "No data is copied: the result is a view with other strides."
    text.what(
        f"{code_of(split)} reads the {axis_label(whole)} features of a token as {into}.",
        copied if split.outputs[0].tensor.storage.kind == "view" else "",
    )


def _of_modules(attention: Attention, text: SectionWriter) -> None:
    modules, around = attention.loop_modules(), attention.iterations
    if modules is None or around is None:
        return
    width = attention.width
    each = f" of {axis_label(width)} features" if width is not None else ""
    text.what(
        f"The steps up to {code_of(attention.context)} run {axis_label(around)} times, in `{modules[0]}` … "
        f"`{modules[1]}`: one module for each head, with projections of its own to a query and a key{each}. No axis of "
        "any tensor stands for the heads."
    )
    text.why("Each head has a softmax of its own, so that a token can look at several tokens in several ways at once.")


def _head_axes(attention: Attention) -> list[int]:
    """Return the axes of the scores that count heads, and have several."""
    axes, scores = attention.score_axes, attention.scores
    if axes is None or scores is None:
        return []
    return [place for place, axis in enumerate(axes) if axis[0] in GROUPED_HEADS and scores.products.shape[place] > 1]


def _why(attention: Attention, text: SectionWriter, axes: list[int]) -> None:
    scores, every = attention.scores, attention.score_axes
    assert scores is not None and every is not None
    chosen = scores.weights(scores.factor).argmax(scores.keys, keepdim=True)
    rows = scores.rows.narrow(scores.keys, 0, 1)
    first = chosen
    for axis in axes:
        first = first.narrow(axis, 0, 1)
    differ = (chosen != first) & rows
    for axis in axes:
        differ, rows = differ.any(axis, keepdim=True), rows.any(axis, keepdim=True)
    if not bool(rows.any()):
        return
    share = text.observed_share(
        "queries whose heads prefer different keys",
        float(differ[rows].double().mean()),
        "share of queries with two visible keys or more for which the largest weights of all heads aren't at one key",
    )
    count = " × ".join(axis_label(every[axis]) for axis in axes)
    text.why(
        "A softmax gives each query one set of weights. Each head has a softmax of its own over its own features, so "
        f"that {count} sets of weights serve one token. For {share} of the queries of this run, the heads don't all "
        "give their largest weight to the same key."
    )
    text.without(
        "One softmax over all features would give each token a single average of the values, for every purpose at once."
    )


def _transposes(attention: Attention, text: SectionWriter, split: Step) -> None:
    product = attention.product
    every = [step for step in attention.of("heads") if step.role == "transpose"]
    before = tensor_axes(split.outputs[0].tensor)
    turned = [step for step in every if _puts_heads_first(attention, step)]
    for step in every:
        if step not in turned:
            text.what(what_it_does(attention.trace, step))
    if product is None or not turned:
        return
    compares_last_axes = is_matmul(product) or attention.traced.is_fused
    if not compares_last_axes and not is_matmul(attention.context):
        for step in turned:
            text.what(what_it_does(attention.trace, step))
        return
    after = tensor_axes(turned[0].outputs[0].tensor)
    parts = _parts(after)
    text.what(
        f"{codes_of(turned)} put{'s' if len({code_of(step) for step in turned}) == 1 else ''} the heads before the "
        f"tokens: {each_of([axis for axis in after[:-2] if axis not in parts])} the last two axes are a matrix, with a "
        f"row for each token and a column for each of {axis_label(after[-1])} features. Only the strides change.",
        f"The axis of {axis_label(after[0])} comes first, so that each of its parts is a tensor of its own."
        if after[0] in parts
        else "",
    )
    memory_table(text, f"after {code_of(turned[0])}", turned[0].outputs[0].tensor)
    text.why(
        "A matrix product works on the last two axes and repeats that for all axes before them, as a loop would. What "
        "is to be compared, tokens by features, must come last; what is only repeated comes first."
    )
    given = given_records(attention.trace, split)[0]
    old, new = ([axis for axis in axes if axis not in parts] for axes in (before, after))
    if given is not None and len(old) == 4 and new == [old[0], old[2], old[1], old[3]]:
        query = attention.query_record
        if compares_last_axes and query is not None and tensor_axes(query) == new:
            _without_transpose(attention, text, old)
        _without_order(text, given.tensor, old, after)


def _parts(axes: list[AxisSize]) -> list[AxisSize]:
    """Return the axes of a split that count parts, such as queries, keys and values: their sizes are constant."""
    return [axis for axis in axes if axis[0].isdecimal() and axis[1] > 1]


def _puts_heads_first(attention: Attention, step: Step) -> bool:
    """Return whether a step swaps tokens and the heads behind them, before the features of a head.

    An axis of parts, such as queries, keys and values side by side, may move as well.
    """
    given = given_records(attention.trace, step)
    before = tensor_axes(given[0].tensor) if given and given[0] is not None else []
    after = tensor_axes(step.outputs[0].tensor)
    parts = _parts(before)
    old, new = ([axis for axis in axes if axis not in parts] for axes in (before, after))
    if len(old) < 3 or len(parts) > 1 or new != [*old[:-3], old[-2], old[-3], old[-1]] or after[-3:] != new[-3:]:
        return False
    return old[-2][0] in HEADS and step.outputs[0].tensor.storage.kind == "view"


def _without_transpose(attention: Attention, text: SectionWriter, before: list[AxisSize]) -> None:
    """Say what the product would compare if the heads stayed behind the tokens."""
    batch, tokens, head, _ = before
    if min(tokens[1], head[1]) < 2:
        return
    if attention.pairs is not None and attention.pairs[0] == attention.pairs[1]:
        compared = [batch, tokens, head, head]
        shape = " ".join(
            text.counted(f"axis {place} without the transpose", size, f"`{expression}`")
            for place, (expression, size) in enumerate(compared)
        )
        text.without(
            "The product would compare the heads of each token with each other: its result would have the shape "
            f"{shape}, `{' '.join(expression for expression, _ in compared)}`, and no token would see another."
        )
    elif attention.pairs is not None:
        queries, keys = map(axis_label, attention.pairs)
        text.without(
            f"The product would be repeated over tokens, and compare heads. With {queries} queries and {keys} keys "
            "that is an error; with as many of both it would run, and no token would see another."
        )


def _without_order(text: SectionWriter, whole: TensorRecord, before: list[AxisSize], after: list[AxisSize]) -> None:
    """Say what heads would hold if the features were cut into the axes of the result at once."""
    _, tokens, head, width = before
    if min(tokens[1], head[1]) < 2:
        return
    first, last = (
        text.counted("first feature of the wrong row", width[1], f"`{width[0]}`"),
        text.counted("last feature of the wrong row", 2 * width[1] - 1, f"`2*{width[0]}-1`"),
    )
    kind = "view" if can_view(whole, [size for _, size in after]) else "reshape"
    text.without(
        f"A {kind} straight to `{' '.join(expression for expression, _ in after)}` would have the right shape and the "
        f"wrong numbers, because it cuts each token into rows: row 1 of head 0 would hold features {first} to {last} "
        "of token 0 instead of the first features of token 1."
    )

"""The scale: why scores are divided by the root of the heads' width, and what the softmax does without it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from attnshape.checks.attention.cores import Core
from attnshape.explanation.attention import Attention, code_of
from attnshape.explanation.observed import ObservedScores
from attnshape.explanation.sentences import AxisSize, axis_label, factor_of
from attnshape.explanation.writing import SectionWriter, equals
from attnshape.model.explanation import Section
from attnshape.model.formatting import join_words
from attnshape.model.trace import Step
from attnshape.tracing import operations as ops

_CLOSE = 1e-3
_NEAR = 0.25
"""The relative difference up to which the observed spread counts as the expected one."""
_PARTS = 4
"""Into how many parts the features are cut to show how the spread grows."""


def scale(attention: Attention) -> Section | None:
    """Explain the scale of the scores, if one was observed."""
    scores, width = attention.scores, attention.width
    if (
        scores is None
        or width is None
        or not scores.width
        or scores.factor <= 0
        or math.isclose(scores.factor, 1.0, rel_tol=_CLOSE)
    ):
        return None
    steps = attention.of("scale") or [step for step in attention.on_the_way[1:] if _is_scale(attention, step)][:1]
    text = SectionWriter("scale", "Scale the scores", steps)
    is_near_root = math.isclose(scores.factor, scores.width**-0.5, rel_tol=_CLOSE)
    is_root = is_near_root and not _names_other_root(steps, width)
    how = "what the softmax reads, divided by the product of a query and a key"
    factor = text.observed("factor of the scores", scores.factor, how)
    formula = f" {equals(scores.width**-0.5)} 1/sqrt({width[0]})" if is_root else ""
    reads = f": the softmax reads {factor}{formula} times the product of a query and a key"
    text.what(f"{_done(attention, text)}{'' if _names_factor(steps, scores.factor) else reads}.")
    _why(text, scores, width, is_root)
    if not is_near_root and len(scores.compared) < 2 and not _adds_products(attention):
        usual = text.computed("usual factor", scores.width**-0.5, f"1/sqrt({width[0]})")
        text.note(
            f"The usual factor is 1/sqrt({width[0]}) {equals(scores.width**-0.5)} {usual}, which keeps the spread of "
            "the scores independent of the width. This code uses another one."
        )
    _compare(text, scores, width[0])
    return text.section()


def _adds_products(attention: Attention) -> bool:
    """Return whether further products, such as those with positions, are added to the scores."""
    core = attention.core
    return isinstance(core, Core) and bool(core.more_scores)


def _names_other_root(steps: Sequence[Step], width: AxisSize) -> bool:
    """Return whether a scale is the root of something that isn't the width, though it is as large in this run."""
    factors = [factor for step in steps if (factor := factor_of(step)) is not None and factor[0]]
    return any("sqrt(" in name and f"sqrt({width[0]})" not in name for name, _ in factors)


def _names_factor(steps: Sequence[Step], factor: float) -> bool:
    """Return whether there is one step, which multiplies by the factor itself."""
    named = [factor_of(step) for step in steps if ops.base_name(step.operation) in ops.MULTIPLICATIONS]
    return len(steps) == 1 and [math.isclose(one[1], factor, rel_tol=_CLOSE) for one in named if one] == [True]


def _done(attention: Attention, text: SectionWriter) -> str:
    """Return what scales the scores, in words."""
    steps = attention.of("scale")
    if steps:
        return join_words(list(_deeds(attention, text, steps)))
    if attention.traced.is_fused:
        return f"{code_of(attention.context)} scales the scores itself"
    alone = [step for step in attention.on_the_way[1:] if _is_scale(attention, step)]
    return (
        join_words(list(_deeds(attention, text, alone[:1])))
        if alone
        else "The steps up to the softmax scale the scores"
    )


def _is_scale(attention: Attention, step: Step) -> bool:
    """Return whether a step alone does what all together do to the scores."""
    ratio = attention.values.ratio(step) if attention.values is not None else None
    return (
        ratio is not None
        and attention.scores is not None
        and math.isclose(ratio, attention.scores.factor, rel_tol=_CLOSE)
    )


def _deeds(attention: Attention, text: SectionWriter, steps: Sequence[Step]) -> Iterator[str]:
    passed = attention.on_the_way
    for step in steps:
        what = "the scores" if step in passed else "what the product reads"
        factor = factor_of(step)
        verb = "divides" if ops.base_name(step.operation) in ops.DIVISIONS else "multiplies"
        if factor is None:
            yield f"{code_of(step)} scales {what}"
            continue
        number = text.argument(f"number in step {step.index}", factor[1], factor[0] or "argument of the call")
        yield f"{code_of(step)} {verb} {what} by {f'{factor[0]} {equals(factor[1])} ' if factor[0] else ''}{number}"


def _why(text: SectionWriter, scores: ObservedScores, width: AxisSize, is_root: bool) -> None:
    symbol = width[0]
    root = f" Dividing by sqrt({symbol}) takes exactly that out." if is_root else ""
    text.why(
        f"A score is the sum of {axis_label(width)} products. Where the entries of queries and keys are independent, "
        f"with mean 0, their variances add up: the variance of a score is {symbol} times that of one product, and its "
        f"standard deviation grows with sqrt({symbol}).{root}"
    )
    raw = scores.spread(1.0)
    observed = text.observed("spread without the scale", raw, _SPREAD)
    if math.isclose(raw, scores.expected_spread, rel_tol=_NEAR):
        predicted = text.observed(
            "expected spread without the scale",
            scores.expected_spread,
            f"sqrt({symbol}) times the root mean squares of the entries of queries and of keys",
        )
        text.why(
            "From the entries of the queries and keys of this run the rule predicts a standard deviation of "
            f"{predicted}; observed is {observed}."
        )
    few_features = scores.partial_spread(scores.width // _PARTS)
    half = scores.partial_spread(scores.width // 2)
    if few_features is not None and half is not None and scores.width % _PARTS == 0:
        few, many = scores.width // _PARTS, scores.width // 2
        first, second = (
            text.counted(name, features, f"`{formula}`")
            for name, features, formula in (
                ("a quarter of the features", few, f"{symbol}/4"),
                ("half of the features", many, f"{symbol}/2"),
            )
        )
        small, middle = (
            text.observed(
                f"spread of sums over {features} features",
                spread,
                "standard deviation of the visible unscaled scores if only the first features are summed",
            )
            for features, spread in ((few, few_features), (many, half))
        )
        text.why(
            f"Summed over the first {first} features only, it is {small}, over the first {second} it is {middle}, and "
            f"over all of them {observed}."
        )


_SPREAD = "standard deviation of the scores"
_LARGEST = "mean of the largest weight of a row"
_SLOPE = "mean of w*(1-w) over all weights w, which is the derivative of a weight by its own score"


def _compare(text: SectionWriter, scores: ObservedScores, symbol: str) -> None:
    """Say what the softmax does with the scale and without it."""
    measures = {"spread": scores.spread, "largest weight": scores.largest, "slope": scores.slope}
    definitions = {"spread": _SPREAD, "largest weight": _LARGEST, "slope": _SLOPE}
    factors = {"with": scores.factor, "without": 1.0}
    found = {(name, which): measures[name](factor) for name in measures for which, factor in factors.items()}
    if not all(map(math.isfinite, found.values())):
        return
    shown = {
        (name, which): text.observed(f"{name} {which} the scale", value, definitions[name])
        for (name, which), value in found.items()
    }
    text.table(
        ("observed in this run", "with the scale", "without it"),
        [(definitions[name], shown[name, "with"], shown[name, "without"]) for name in measures],
    )
    if not scores.every_row_chooses:
        text.note(
            "The rows in which a query sees a single key are left out of both means: that key's weight is always 1."
        )
    if found["largest weight", "without"] <= found["largest weight", "with"]:
        return
    sentences = [
        f"The scores would spread by {shown['spread', 'without']} instead of {shown['spread', 'with']}, and the "
        f"softmax would be closer to saturation: its largest weight would be {shown['largest weight', 'without']} on "
        f"average instead of {shown['largest weight', 'with']}."
    ]
    if found["slope", "without"] < found["slope", "with"]:
        ratio = text.observed(
            "loss of slope without the scale",
            found["slope", "with"] / found["slope", "without"],
            "the slope with the scale divided by the slope without it",
        )
        sentences.append(
            "The closer one weight is to 1 and the others to 0, the less the weights react to the scores, and the less "
            f"gradient the softmax passes back to them: its derivative would be {shown['slope', 'without']} on average "
            f"instead of {shown['slope', 'with']}, {ratio} times smaller. The larger {symbol}, the worse."
        )
    text.without(*sentences)

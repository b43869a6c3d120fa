"""Dropout of the weights: how many it sets to zero, and why it scales up the others."""

from __future__ import annotations

import math

import torch

from attnshape.checks.interventions.replay import ReplayedCall
from attnshape.explanation.attention import Attention, code_of
from attnshape.explanation.observed import RunValues
from attnshape.explanation.writing import SectionWriter, equals
from attnshape.model.explanation import Section
from attnshape.model.trace import Step


def dropout(attention: Attention) -> Section | None:
    """Explain the dropout between softmax and context."""
    step = attention.first("dropout", "dropout")
    if step is None:
        return None
    text = SectionWriter("dropout", "Drop weights at random", attention.of("dropout"))
    is_off = step.outputs[0].tensor.storage.kind == "same"
    if is_off:
        text.what(f"{code_of(step)} returns its input unchanged in this run: dropout is off outside training.")
    _observed(attention, text, step, is_off)
    return text.section()


def _observed(attention: Attention, text: SectionWriter, step: Step, is_off: bool) -> None:
    run: RunValues | None = attention.training
    before = run.operand(step) if run is not None else None
    after = run.result(step) if run is not None else None
    if before is None or after is None or before.shape != after.shape:
        return
    keys = attention.scores.keys if attention.scores is not None else before.ndim - 1
    rows = before.double().sum(keys)
    known = (before > 0) & torch.isfinite(before)
    kept = known & (after != 0)
    probability = _probability(run.call(step)) if run is not None else None
    if is_off and probability == 0.0 and torch.equal(before, after):
        text.what("It does so in training mode too, since its probability is 0.")
    if not bool(kept.any()) or bool(torch.equal(before, after)):
        return
    ratio = float((after.double() / before.double())[kept].median())
    dropped = text.observed_share(
        "dropped weights",
        1 - float(kept.sum()) / float(known.sum()),
        "share of the weights above 0 that become 0 in a training run",
    )
    factor = text.observed(
        "factor of the others", ratio, "weights after dropout divided by those before it, where not 0"
    )
    formula = ""
    if probability is not None and math.isclose(ratio, 1 / (1 - probability), rel_tol=1e-3):
        given = text.argument("p", probability, "argument of the call")
        formula = f" {equals(1 / (1 - probability))} 1/(1-p) with p = {given}"
    where = "In training mode it" if is_off else code_of(step)
    text.what(
        f"{where} sets each weight to 0 with the same probability, and multiplies the others by {factor}{formula}. In "
        f"a training run it dropped {dropped} of the weights."
    )
    text.why(
        "In training no query can rely on any single key. The factor keeps the sum of a row at 1 in expectation, so "
        "that the context is as large in training as in use, where nothing is dropped."
    )
    sums = after.double().sum(keys)[torch.isfinite(rows)]
    how = "mean sum of the weights of a row in a training run"
    without = text.observed(
        "sum of a row without the factor", float(sums.mean()) / ratio, f"{how}, divided by the factor"
    )
    full = text.observed("sum of a row after dropout", float(sums.mean()), how)
    text.without(f"If the other weights kept their size, a row would sum to {without} on average instead of {full}.")


def _probability(call: ReplayedCall | None) -> float | None:
    """Return the probability that a call of dropout gets; None if it isn't known."""
    given = call.keywords.get("p", next(iter(call.args[1:]), None)) if call is not None else None
    return float(given) if isinstance(given, (int, float)) and not isinstance(given, bool) else None

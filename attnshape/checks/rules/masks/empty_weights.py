"""Judges softmaxes whose visible keys aren't known otherwise, where the claimed masks hide every key.

Such are additive scores over a dense adjacency, and pooling with learned scores. The masks in the input are replaced,
so that no row of the softmax has a visible key: weights that are NaN must not reach a result.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from attnshape.checks.attention.cores import Softmax, value_product
from attnshape.checks.attention.elementwise import HIDES
from attnshape.checks.attention.perturbation import PerturbationDiff, other_numbers
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import UNCHANGED, Intervention, ReplayRun
from attnshape.checks.interventions.replay import OutputRef
from attnshape.checks.rules.masks.empty_rows import hide_all
from attnshape.checks.rules.masks.weights import unexplained_softmaxes
from attnshape.checks.rules.protocol import Observation, Outcome, Undecided, Verification, Violation
from attnshape.model.formatting import join_words

_CLAIM = ("zero-masked-rows",)
_Row = Literal["zero", "NaN", "the mean of all values", "unknown"]
"""What a query without any visible key gets, as far as a result depends on it."""


@dataclass(frozen=True)
class _HiddenRun:
    """The run in which the claimed masks hide every key."""

    subject: Subject
    change: Intervention
    run: ReplayRun

    def is_empty(self, softmax: Softmax, keys: int) -> bool:
        """Return whether every row of a softmax is without a visible key, and its scores are no NaN themselves."""
        scores = self.run.event(OutputRef(softmax.owner.order)).operand_values[softmax.place]
        if bool(torch.isnan(scores).any()):
            return False
        if not softmax.masked:
            return scores.ndim > keys and not bool((scores > HIDES).any())
        weights = self.run.value(softmax.ref)
        return bool((torch.isnan(weights) | (weights == 0)).all())

    def row(self, softmax: Softmax) -> _Row:
        """Return what each query gets."""
        found = value_product(softmax, self.subject.graph)
        ref = found[0].ref if found is not None else softmax.ref
        context = self.run.value(ref)
        if not bool((context != 0).any()):
            return "zero"
        if bool(torch.isnan(context).any()):
            reaches = any(bool(torch.isnan(value).any()) for _, value in self.run.returned)
            return "NaN" if reaches else "zero" if found is not None else "unknown"
        if found is None:
            return "unknown"
        return "the mean of all values" if self._reaches(ref) else "zero"

    def _reaches(self, ref: OutputRef) -> bool:
        changed = self.subject.experiment.run(replace(self.change, results={ref: other_numbers}))
        moved = PerturbationDiff(self.run, changed, self.subject.experiment.tolerance)
        return any(bool(mask.any()) for _, mask in moved.returned())


def judge_empty_weights(subject: Subject, topic: str) -> Iterator[Outcome]:
    """Judge what queries get in such softmaxes if no key is visible: zeros, if that is claimed, and never NaN."""
    masks = set(subject.claims.masks) & subject.base.inputs.keys()
    claimed = subject.claims.zero_masked_rows
    # what queries get whose scores are products is judged by the claim alone
    left_out = set() if claimed else {core.softmax.ref for core in subject.cores}
    of_masks = [
        (softmax, keys, names)
        for softmax, keys in unexplained_softmaxes(subject)
        if softmax.ref not in left_out and (names := sorted(masks & subject.graph.origins((softmax.ref,))))
    ]
    change = hide_all(subject)
    # without the claim, NaN in the unchanged run has a finding of its own
    if not of_masks or change is UNCHANGED or (subject.base.has_nan and not claimed):
        return
    hidden = _HiddenRun(subject, change, subject.experiment.run(change))
    follows = hidden.run.follows(subject.base)
    for softmax, keys, names in of_masks:
        row = hidden.row(softmax) if follows and hidden.is_empty(softmax, keys) else "unknown"
        if row == "NaN" or (row == "the mean of all values" and claimed):
            yield _finding(subject, softmax, names, row)
            return
        if row == "zero" and claimed:
            yield Verification("a query without any visible key gets zeros", _CLAIM)
        elif row == "unknown" and claimed:
            why = "what a query without any visible key gets from the softmax can't be told"
            yield Undecided(topic, why, _CLAIM)


def _finding(subject: Subject, softmax: Softmax, names: list[str], row: _Row) -> Outcome:
    """Return what is wrong with rows that aren't zero; a notice or a fact if it isn't claimed that they are."""
    message = f"a query without any visible key gets {row}"
    claimed = subject.claims.zero_masked_rows
    pairs = any(_has_queries(subject, subject.base.inputs[name]) for name in names)
    if not claimed and not pairs:
        # a sequence of nothing but padding is seldom meant to be possible
        return Observation(message, softmax.ref)
    hint = "set the weights of such rows to 0 after the softmax: weights.masked_fill(~mask, 0)"
    if claimed:
        message += ", expected zeros"
    else:
        hint += ", and claim it: --claim zero-masked-rows"
    evidence = f"hid every key by {join_words(names)}"
    level: Literal["error", "notice"] = "error" if claimed else "notice"
    return Violation("AS406", message, softmax.ref, hint, evidence, claims=_CLAIM if claimed else (), level=level)


def _has_queries(subject: Subject, mask: Tensor) -> bool:
    """Return whether each query has its own keys: a mask has two axes besides those of the batch and of heads."""
    return len([size for size in mask.shape if size not in {1, subject.batch_size, *subject.head_sizes}]) > 1

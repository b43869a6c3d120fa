"""Judges what a query gets that sees no key: zeros, if that is claimed. No query sees one if masks hide all."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from attnshape.checks.attention.cores import FusedCore
from attnshape.checks.attention.elementwise import HIDES
from attnshape.checks.attention.mistake_lines import MaskLines
from attnshape.checks.attention.perturbation import PerturbationDiff, is_pattern, other_numbers
from attnshape.checks.attention.subject import Subject
from attnshape.checks.attention.visibility import EVIDENCE, ExplainedVisibility
from attnshape.checks.interventions.experiment import UNCHANGED, Intervention, ReplayRun
from attnshape.checks.interventions.replay import OutputRef, Replace
from attnshape.checks.rules.protocol import Outcome, Undecided, Verification, Violation

_CLAIM = ("zero-masked-rows",)


def judge_empty_rows(subject: Subject, explanation: ExplainedVisibility, topic: str) -> Outcome:
    """Judge whether queries without any visible key have a context of zeros, or one that reaches no result."""
    if explanation.context is None or explanation.wanted is None:
        return Undecided(topic, "the contexts of queries can't be told apart", _CLAIM)
    ref, shape = explanation.visible.core.context, explanation.context.shape
    change, run, empty = next(_runs_with_empty_rows(subject, explanation), (UNCHANGED, subject.base, None))
    if empty is None:
        return Undecided(topic, "every query has a visible key, and no argument was found that hides all keys", _CLAIM)
    contexts = run.value(ref).reshape(shape)
    # NaN differs from 0 too
    if not bool((contexts[empty] != 0).any()) or not _reaches(subject, ref, empty, change, run):
        return Verification("a query without any visible key gets zeros", _CLAIM)
    lines = MaskLines(subject, explanation.visible.core)
    what = "NaN" if bool(torch.isnan(contexts[empty]).any()) else "the mean of all values"
    names = [name for name, _ in explanation.right.masks]
    at = lines.last_change(names[0]) if names and isinstance(explanation.visible.core, FusedCore) else lines.softmax
    message = f"a query without any visible key gets {what}, expected zeros"
    hint = "set the weights of such rows to 0 after the softmax: weights.masked_fill(~mask, 0)"
    return Violation("AS406", message, at, hint, EVIDENCE, shown="reproduced", claims=_CLAIM)


def judge_hidden_whole(subject: Subject, explanation: ExplainedVisibility) -> Violation | None:
    """Return the violation if no query sees a key, though no argument is a mask: the code hides all of them itself.

    A finite number in every score of a row leaves its weights equal, so that each query sees every key after all.
    """
    visible = explanation.visible
    given = MaskLines(subject, visible.core).inputs_that_hide()
    is_given = any(is_pattern(subject.base.inputs[name]) for name in given & subject.base.inputs.keys())
    if not bool(visible.empty.all()) or is_given or subject.claims.masks:
        return None
    message = "every key is hidden from every query: what the masks leave has no key in common, or one is inverted"
    hint = "look at which keys each of the masks keeps: together they have to keep a key for each query"
    return Violation("AS406", message, MaskLines(subject, visible.core).last_hiding(), hint, EVIDENCE)


def _runs_with_empty_rows(
    subject: Subject, explanation: ExplainedVisibility
) -> Iterator[tuple[Intervention, ReplayRun, Tensor]]:
    """Yield changes after which queries see no key, with their runs and these queries, (B, H, queries)."""
    visible, wanted = explanation.visible, explanation.wanted
    assert wanted is not None
    empty = ~wanted.any(-1) | visible.empty
    if bool(empty.any()):
        yield UNCHANGED, subject.base, empty
    for change in _hiding_changes(subject):
        run = subject.experiment.run(change)
        if not run.follows(subject.base):
            continue
        if change.inputs.keys() & set(subject.claims.masks):
            yield change, run, torch.ones_like(empty)
        elif (scores := visible.scores_in(run)) is not None and bool((empty := ~(scores > HIDES).any(-1)).any()):
            yield change, run, empty


def _hiding_changes(subject: Subject) -> Iterator[Intervention]:
    """Yield the change that makes the claimed masks hide every key, then those of other arguments that may do so."""
    if (hide := hide_all(subject)) is not UNCHANGED:
        yield hide
    for name, value in subject.base.inputs.items():
        varies = name not in subject.unvaried and name not in subject.claims.arguments and name not in subject.inputs
        # lengths, numbers of segments, flags: what isn't data may decide which keys are visible
        if varies and not value.is_floating_point() and not value.is_complex():
            fills = (False, True) if value.dtype == torch.bool else (0, 1, int(value.max()))
            for fill in fills:
                yield Intervention(inputs={name: partial(torch.full_like, fill_value=fill)})


def hide_all(subject: Subject) -> Intervention:
    """Return the intervention that makes the claimed masks hide every key; `UNCHANGED` if no mask is claimed."""
    hide: dict[str, Replace] = {}
    for name in subject.claims.masks:
        if name in subject.base.inputs:
            fill = {"keep": 0.0, "drop": 1.0, "add": -math.inf}[subject.claims.arguments[name]]
            least = subject.base.inputs[name].double().min()
            fill = float(least) if fill < least < HIDES else fill
            hide[name] = partial(torch.full_like, fill_value=fill)
    return Intervention(inputs=hide) if hide else UNCHANGED


def _reaches(subject: Subject, ref: OutputRef, empty: Tensor, change: Intervention, run: ReplayRun) -> bool:
    """Return whether the contexts of such rows reach the target's results, in the run that a change made."""
    context = run.value(ref)
    rows = empty.reshape(*context.shape[:-1], 1).expand_as(context)
    if bool(torch.isnan(context[rows]).any()):
        return any(bool(torch.isnan(value).any()) for _, value in run.returned)
    others = replace(change, results={ref: lambda t: torch.where(rows, other_numbers(t), t)})
    moved = PerturbationDiff(run, subject.experiment.run(others), subject.experiment.tolerance)
    return any(bool(mask.any()) for _, mask in moved.returned())

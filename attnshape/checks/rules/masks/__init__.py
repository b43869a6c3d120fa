"""Do the claimed masks hide the keys that they should?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from attnshape.checks.attention.cores import Core, FusedCore
from attnshape.checks.attention.elementwise import HIDES, distinct
from attnshape.checks.attention.mistake_lines import MaskLines
from attnshape.checks.attention.perturbation import PerturbationDiff, is_pattern, other_numbers
from attnshape.checks.attention.subject import Subject
from attnshape.checks.attention.visibility import (
    EVIDENCE,
    READ,
    Explanation,
    Hypothesis,
    MaskMistake,
    explain_visibility,
)
from attnshape.checks.interventions.experiment import UNCHANGED, Intervention, ReplayRun
from attnshape.checks.interventions.replay import OutputRef, Replace
from attnshape.checks.rules.masks.rolled import judge_rolled
from attnshape.checks.rules.protocol import Outcome, Undecided, Verification, Violation
from attnshape.checks.rules.unused_scores import unread_calls
from attnshape.tracing.operations import ELEMENT_WRITES, MASKS, MULTIPLICATIONS, TRIANGLES

CODES: tuple[str, ...] = ("AS401", "AS402", "AS403", "AS404", "AS405", "AS406", "AS407", "AS408", "AS410")
TOPIC = "masks"
_REPLACES = MASKS | MULTIPLICATIONS | TRIANGLES | ELEMENT_WRITES
"""What may put another number in the place of a score."""
_SLIPS: dict[MaskMistake, tuple[str, str, str]] = {
    "inverted": ("AS401", "is inverted: it hides the keys that it should keep", "invert it: ~mask, or mask == 0"),
    "on queries": (
        "AS402",
        "is aligned with the query axis instead of the key axis",
        "put the key axis last: mask[:, None, None, :]",
    ),
    "transposed": ("AS402", "is transposed: its query axis hides keys", "remove the transpose"),
    "batch order": (
        "AS403",
        "is repeated in a different order than batch and heads are folded in",
        "use repeat_interleave(H, dim=0) for an axis (B H), and repeat(H, 1, 1) for (H B)",
    ),
    "batch order, heads outside": (
        "AS403",
        "is repeated in a different order than heads and batch are folded in",
        "use repeat(H, 1, 1) for an axis (H B), and repeat_interleave(H, dim=0) for (B H)",
    ),
    "ignored": (
        "AS404",
        "has no effect: queries attend to every key that it should hide",
        "apply it to the scores before the softmax",
    ),
}


def check(subject: Subject) -> Iterator[Outcome]:
    """Set the scores to 0, and read at the softmax which keys are hidden."""
    explained, unseen = explain_visibility(subject)
    masks = subject.claims.masks
    for why in unseen:
        yield Undecided(TOPIC, why, masks)
    if not explained and not unseen:
        yield Undecided(TOPIC, "no attention with a softmax was found")
    elif not masks and any(map(is_pattern, subject.base.inputs.values())):
        yield Undecided(TOPIC, "say what a mask means: --claim mask=keep, mask=drop or mask=add")
    for name in masks:
        if name not in subject.base.inputs:
            yield Undecided(TOPIC, f"{name} is claimed, but no tensor is given for it", (name,))
    for explanation in explained:
        yield from _of_core(subject, explanation)
    yield from judge_rolled(subject, explained)


def _of_core(subject: Subject, explanation: Explanation) -> Iterator[Outcome]:
    core, hypothesis = explanation.visible.core, explanation.hypothesis
    lines = MaskLines(subject, core)
    weak = _too_small(subject, explanation, lines)
    if weak is not None:
        yield replace(weak, claims=tuple(explanation.alone))
        return
    if subject.claims.zero_masked_rows:
        yield _empty_rows(subject, explanation, lines)
    if hypothesis is None:
        if explanation.right == Hypothesis() and any(map(is_pattern, subject.base.inputs.values())):
            yield Undecided(TOPIC, "something that isn't claimed hides keys")
        elif explanation.right == Hypothesis():
            message = "keys are hidden, which nothing claims"
            hint = "claim what is meant: --claim causal, --claim window=W or --claim mask=keep; --pattern shows what is"
            yield Violation("AS408", message, lines.triangle(), hint, READ, "reproduced", level="notice")
        for name, _ in explanation.right.masks:
            yield _unexplained(name, explanation, lines)
        return
    for name, slip in hypothesis.masks:
        if slip is None:
            yield Verification(f"{name} hides exactly the keys that it should", (name,))
        elif slip != "ignored" or isinstance(core, FusedCore) or not any(unread_calls(subject, core)):
            code, what, hint = _SLIPS[slip]
            yield _violation(code, f"{name} {what}", _line(lines, name, slip), hint, claims=(name,))


def _unexplained(name: str, explanation: Explanation, lines: MaskLines) -> Outcome:
    """Judge a mask that hides other keys than claimed, in a way that no known mistake explains."""
    leaks = explanation.leaks(name)
    if leaks is None:
        return Undecided(TOPIC, f"the shape of {name} doesn't determine the meaning of its axes", (name,))
    if not bool(leaks.any()):
        return Undecided(TOPIC, f"more keys are hidden than {name} and the other claims hide", (name,))
    batch, head, query, key = leaks.nonzero()[0].tolist()
    where = f"query {query} attends to key {key} in batch element {batch}, head {head}"
    message = f"{name} doesn't hide every key that it should: {where}"
    hint = f"follow {name} to the scores: the order of its axes, its values, and what is combined with it"
    at = lines.first_wrong(name, lambda value: explanation.is_mask(value, name))
    return _violation("AS407", message, at, hint, claims=(name,))


def _line(lines: MaskLines, name: str, slip: MaskMistake) -> OutputRef:
    if slip == "ignored":
        return lines.softmax
    find = {"inverted": lines.last_change, "transposed": lines.last_transpose, "on queries": lines.first_rearrangement}
    return find.get(slip, lines.repetition)(name)


def _too_small(subject: Subject, explanation: Explanation, lines: MaskLines) -> Violation | None:
    """Return a violation if a fill value, or an added number, leaves masked keys with weight."""
    visible, expected = explanation.visible, explanation.wanted
    if "dropout" in subject.claims.arguments.values():
        return None  # a dropped score is not a masked one
    if visible.is_weak and _is_constant(subject, explanation):
        fills = distinct(visible.added[visible.weak])
        at = next((event.refs[0] for event in lines.applications if event.name in _REPLACES), lines.softmax)
        message = f"masked scores become {fills[0]:.4g}, which still gives their keys weight"
        return _violation("AS405", message, at, "fill with -inf: scores.masked_fill(~mask, -torch.inf)")
    if expected is None or explanation.hypothesis == explanation.right:
        return None
    hidden = ~expected & ~visible.empty.unsqueeze(-1) & expected.any(-1, keepdim=True)
    if not bool(hidden.any()) or not bool(visible.keys[hidden].all()):
        return None
    fills, kept = distinct(visible.added[hidden]), distinct(visible.added[expected])
    if len(fills) != 1 or len(kept) != 1 or not HIDES < fills[0] < kept[0]:
        return None
    names = [name for name, _ in explanation.right.masks]
    at = lines.last_change(names[0]) if names else lines.triangle()
    message = f"masked scores get {fills[0]:.4g} added, which still gives their keys weight"
    return _violation("AS405", message, at, "add -inf, or the dtype's smallest number: torch.finfo(scores.dtype).min")


def _is_constant(subject: Subject, explanation: Explanation) -> bool:
    """Return whether the replaced scores are the same number for all inputs."""
    core = explanation.visible.core
    fills = distinct(explanation.visible.added[explanation.visible.weak])
    if not isinstance(core, Core) or len(fills) != 1:
        return False
    run = subject.experiment.run(Intervention(inputs=dict.fromkeys(subject.inputs, other_numbers)))
    if not run.follows(subject.base):
        return False
    before, after = core.softmax.scores, run.events[core.softmax.owner.order - 1].operand_values[core.softmax.place]
    same = torch.isclose(before, after, rtol=1e-9, atol=1e-12)
    return bool((same & torch.isclose(before.double(), torch.tensor(fills[0], dtype=torch.float64))).any())


_ZERO_ROWS = ("zero-masked-rows",)


def _empty_rows(subject: Subject, explanation: Explanation, lines: MaskLines) -> Outcome:
    """Judge whether queries without any visible key have a context of zeros, or one that reaches no result."""
    if explanation.context is None or explanation.wanted is None:
        return Undecided(TOPIC, "the contexts of queries can't be told apart", _ZERO_ROWS)
    ref = explanation.visible.core.context
    empty, contexts, change, run = ~explanation.wanted.any(-1), explanation.context, UNCHANGED, subject.base
    if not bool(empty.any()):
        change = _hide_all(subject)
        if change is UNCHANGED or not (run := subject.experiment.run(change)).follows(subject.base):
            return Undecided(TOPIC, "every query has a visible key, and the masks can't hide all keys", _ZERO_ROWS)
        empty, contexts = torch.ones_like(empty), run.value(ref).reshape(contexts.shape)
    # NaN differs from 0 too
    if not bool((contexts[empty] != 0).any()) or not _reaches(subject, ref, empty, change, run):
        return Verification("a query without any visible key gets zeros", _ZERO_ROWS)
    what = "NaN" if bool(torch.isnan(contexts[empty]).any()) else "the mean of all values"
    names = [name for name, _ in explanation.right.masks]
    at = lines.last_change(names[0]) if names and isinstance(explanation.visible.core, FusedCore) else lines.softmax
    message = f"a query without any visible key gets {what}, expected zeros"
    hint = "set the weights of such rows to 0 after the softmax: weights.masked_fill(~mask, 0)"
    return _violation("AS406", message, at, hint, claims=_ZERO_ROWS)


def _hide_all(subject: Subject) -> Intervention:
    """Return the intervention that makes the masks hide every key; `UNCHANGED` if no mask is claimed."""
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


_violation = partial(Violation, evidence=EVIDENCE, shown="reproduced")

"""Do the claimed masks hide the keys that they should?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor

from attnshape.checks.attention.cores import Core, FusedCore
from attnshape.checks.attention.mistake_lines import MaskLines, masks_of_others
from attnshape.checks.attention.perturbation import is_pattern
from attnshape.checks.attention.subject import Subject
from attnshape.checks.attention.visibility import (
    EVIDENCE,
    ExplainedVisibility,
    Hypothesis,
    MaskMistake,
    explain_visibility,
    undecidable_visibility,
)
from attnshape.checks.interventions.replay import OutputRef
from attnshape.checks.rules.masks.cancelled import judge_cancelled
from attnshape.checks.rules.masks.chosen import judge_chosen
from attnshape.checks.rules.masks.empty_rows import judge_empty_rows, judge_hidden_whole
from attnshape.checks.rules.masks.empty_weights import judge_empty_weights
from attnshape.checks.rules.masks.fills import too_small
from attnshape.checks.rules.masks.forgotten import judge_forgotten
from attnshape.checks.rules.masks.hidden_tokens import hidden_from_every_query
from attnshape.checks.rules.masks.pooling import judge_pooling
from attnshape.checks.rules.masks.reach import describe_attentions, is_meant_for_others
from attnshape.checks.rules.masks.results import judge_by_results
from attnshape.checks.rules.masks.rolled import judge_rolled
from attnshape.checks.rules.masks.unclaimed import judge_inverted, judge_unclaimed, judge_unclaimed_arguments
from attnshape.checks.rules.masks.weights import masked_weights, unplaced_weights
from attnshape.checks.rules.protocol import Observation, Outcome, Undecided, Verification, Violation
from attnshape.checks.rules.unused_scores import unread_calls

CODES: tuple[str, ...] = (
    "AS303",
    "AS401",
    "AS402",
    "AS403",
    "AS404",
    "AS405",
    "AS406",
    "AS407",
    "AS408",
    "AS410",
    "AS412",
    "AS707",
)
TOPIC = "masks"
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
    if not masks:
        yield from (Undecided(TOPIC, why) for why in unseen)
    is_found = bool(explained or unseen or masked_weights(subject))
    if not is_found:
        yield Undecided(TOPIC, "no attention with a softmax was found")
    for name in masks:
        if name not in subject.base.inputs:
            yield Undecided(TOPIC, f"{name} is claimed, but no tensor is given for it", (name,))
    hiding: dict[str, list[OutputRef]] = {name: [] for name in masks}
    is_unclaimed = False
    for explanation in explained:
        if (hidden_whole := judge_hidden_whole(subject, explanation)) is not None:
            yield hidden_whole
        for outcome in _of_core(subject, explanation):
            if isinstance(outcome, str):
                hiding[outcome].append(explanation.visible.core.context)
            else:
                is_unclaimed |= isinstance(outcome, Violation) and outcome.code == "AS408"
                yield outcome
    if is_found and not masks and not is_unclaimed and any(map(is_pattern, subject.base.inputs.values())):
        yield Undecided(TOPIC, "say what a mask means: --claim mask=keep, mask=drop or mask=add")
    for name in {name: None for explanation in explained for name in _of_other_shape(subject, explanation)}:
        why = f"the shape of {name} doesn't determine the meaning of its axes"
        yield judge_by_results(subject, name) or Undecided(TOPIC, why, (name,))
    for name, contexts in hiding.items():
        if name in subject.base.inputs:
            yield from _everywhere(subject, name, contexts)
            hidden = hidden_from_every_query(subject, name)
            yield from filter(None, (judge_pooling(subject, name, one) for one in hidden))
    yield from judge_cancelled(subject)
    yield from judge_chosen(subject)
    yield from judge_empty_weights(subject, TOPIC)
    # whether a map is round is claimed with the keys that are visible
    yield from judge_rolled(subject, [explanation for explanation in explained if explanation.positions is None])


def _everywhere(subject: Subject, name: str, contexts: Sequence[OutputRef]) -> Iterator[Outcome]:
    """Judge a mask where visible keys don't tell, and yield where it hides the keys that it should.

    `contexts` are the attentions whose visible keys are those that the mask keeps.
    """
    unseen, weighed = undecidable_visibility(subject), [one for one in masked_weights(subject) if one.name == name]
    every, hiding = [core.context for core in subject.attentions], list(contexts)
    of_weights = {core.softmax.ref: core.context for core in subject.cores}
    every += sorted({of_weights.get(ref, ref) for ref in unplaced_weights(subject, name)} - set(every))
    for weights in weighed:
        at = of_weights.get(weights.softmax.ref, weights.softmax.ref)
        if at not in every:
            every.append(at)
        if weights.judgement == "hides":
            hiding.append(at)
            unseen.pop(at, None)
        elif weights.judgement in ("gives weight", "ignored", "hides late"):
            unseen.pop(at, None)
            yield weights.violation()
        elif not contexts:
            unseen.setdefault(at, f"which keys {name} hides in the softmax can't be told")
    cores = {core.context: core for core in subject.attentions}
    others = [at for at in unseen if at in cores and is_meant_for_others(subject, name, cores[at])]
    yield from filter(None, (judge_forgotten(subject, name, cores[at]) for at in others))
    open_questions = [why for at, why in unseen.items() if at not in others]
    # weights that hidden keys get may leave no trace of these in the results
    gives_weight = any(weights.judgement == "unknown" for weights in weighed)
    by_results = judge_by_results(subject, name) if not gives_weight and (open_questions or not every) else None
    if by_results is not None:
        yield by_results
    else:
        yield from (Undecided(TOPIC, why, (name,)) for why in open_questions)
    if hiding:
        where = "" if len(hiding) == len(every) else f", {describe_attentions(subject, hiding, every)}"
        yield Verification(f"{name} hides exactly the keys that it should{where}", (name,))


def _of_core(subject: Subject, explanation: ExplainedVisibility) -> Iterator[Outcome | str]:
    """Yield what is wrong in one attention, and the name of each mask that hides exactly the keys that it should."""
    core, hypothesis = explanation.visible.core, explanation.hypothesis
    lines = MaskLines(subject, core)
    weak = too_small(subject, explanation)
    if weak is not None:
        yield replace(weak, claims=tuple(explanation.alone))
        return
    if subject.claims.zero_masked_rows:
        yield judge_empty_rows(subject, explanation, TOPIC)
    if hypothesis is None:
        inverted = judge_inverted(explanation, lines) if explanation.right == Hypothesis() else None
        if inverted is not None:
            yield inverted
        elif explanation.right == Hypothesis() and any(map(is_pattern, subject.base.inputs.values())):
            yield judge_unclaimed_arguments(subject, lines) or Undecided(
                TOPIC, "something that isn't claimed hides keys"
            )
        elif explanation.right == Hypothesis() and not (
            _hides_by_claimed(subject, lines) or _hides_other_sequences(subject, explanation)
        ):
            yield judge_unclaimed(subject, explanation, lines)
        for name, _ in explanation.right.masks:
            leaks = explanation.leaks(name)
            if is_meant_for_others(subject, name, core):
                yield judge_forgotten(subject, name, core) or _not_applied(name, core)
            elif leaks is not None:
                yield _hidden_from_results(subject, explanation, name) or _unexplained(name, leaks, explanation, lines)
        return
    for name, slip in hypothesis.masks:
        verified = _hidden_from_results(subject, explanation, name) if slip is not None else None
        if slip is None and name in masks_of_others(subject, core) and _hides_nothing(explanation, name):
            yield _not_applied(name, core)
        elif slip is None:
            yield name
        elif verified is not None:
            yield verified
        elif slip == "ignored" and is_meant_for_others(subject, name, core):
            yield judge_forgotten(subject, name, core) or _not_applied(name, core)
        elif slip is not None and (
            slip != "ignored" or isinstance(core, FusedCore) or not any(unread_calls(subject, core))
        ):
            code, what, hint = _SLIPS[slip]
            yield _violation(code, f"{name} {what}", _line(lines, name, slip), hint, claims=(name,))


def _hidden_from_results(subject: Subject, explanation: ExplainedVisibility, name: str) -> Verification | None:
    """Return that a mask of tokens hides them from the results, if it does, whatever weight their keys get."""
    outcome = judge_by_results(subject, name) if name in explanation.by_tokens else None
    return outcome if isinstance(outcome, Verification) else None


def _not_applied(name: str, core: Core | FusedCore) -> Observation:
    return Observation(
        f"{name} isn't applied to this attention, but to another one", core.context, attention=core.context
    )


def _hides_by_claimed(subject: Subject, lines: MaskLines) -> bool:
    """Return whether what hides keys depends on claimed arguments only, such as lengths, which are judged elsewhere."""
    hiding = lines.inputs_that_hide() & subject.base.inputs.keys()
    return bool(hiding) and hiding <= subject.claims.arguments.keys()


def _hides_other_sequences(subject: Subject, explanation: ExplainedVisibility) -> bool:
    """Return whether queries see the keys of their own sequence, of several that an argument says are packed."""
    packing, keys = subject.packing, explanation.visible.keys
    if packing is None or keys.shape[-2:] != (packing.count, packing.count):
        return False
    return any(bool((keys == seen).all()) for seen in (packing.together, packing.together.tril()))


def _hides_nothing(explanation: ExplainedVisibility, name: str) -> bool:
    """Return whether a mask keeps every key for the queries that matter, as one with an axis of queries alone does."""
    kept = explanation.alone[name]
    return kept is not None and bool(kept[explanation.rows].all())


def _of_other_shape(subject: Subject, explanation: ExplainedVisibility) -> Iterator[str]:
    """Yield the masks that can't be laid out as queries and keys of an attention that they are meant for."""
    if explanation.hypothesis is None:
        for name, _ in explanation.right.masks:
            if explanation.leaks(name) is None and not is_meant_for_others(subject, name, explanation.visible.core):
                yield name


def _unexplained(name: str, leaks: Tensor, explanation: ExplainedVisibility, lines: MaskLines) -> Outcome:
    """Judge a mask that hides other keys than claimed, in a way that no known mistake explains."""
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


_violation = partial(Violation, evidence=EVIDENCE, shown="reproduced")

"""Finds keys that no token made: zeros with which a block is padded, or slots that nothing wrote, and which get weight.

Where local attention fills up the blocks at the border, the zeros' scores are 0, and each takes exp(0) of the softmax.
So does each slot of a preallocated cache behind the tokens that were written to it so far.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attnshape.checks.attention.cores import Core
from attnshape.checks.attention.operands import AttentionOperand, by_attention
from attnshape.checks.attention.perturbation import differs, other_numbers
from attnshape.checks.attention.slots import by_pair
from attnshape.checks.attention.subject import Subject
from attnshape.checks.attention.visibility import ExplainedVisibility
from attnshape.checks.interventions.experiment import Intervention, ReplayRun
from attnshape.checks.interventions.replay import OutputRef, Producer
from attnshape.checks.rules.protocol import Outcome, Verification, Violation
from attnshape.tracing.operations import FILLS, SAME_VALUES


@dataclass(frozen=True)
class ZeroKeys:
    """The keys of an attention that are zero whatever the inputs and parameters are, as their values are.

    The masks are (B, H, queries, keys).
    """

    explanation: ExplainedVisibility
    key: AttentionOperand
    run: ReplayRun
    """The run in which all inputs and parameters were changed."""
    constant: Tensor
    seen: Tensor
    """Which of them get weight."""
    is_sink: Tensor
    """Which keys each query that sees any of them sees: (keys,)."""
    slots: Tensor
    """Which of them get weight behind, or between, keys that were written to their memory."""


def zero_keys(subject: Subject, explained: Sequence[ExplainedVisibility]) -> list[ZeroKeys]:
    """Change all inputs and parameters, and return the keys that stay zero, with their values, for each attention."""
    of_core = {operands[0].core.context: operands for operands in by_attention(subject)}
    own = [(explanation, of_core[explanation.visible.core.context]) for explanation in explained]
    own = [(explanation, operands) for explanation, operands in own if all(map(_may_be_padded, operands[1:]))]
    if not own:
        return []
    inputs = dict.fromkeys(subject.inputs, other_numbers)
    run = subject.experiment.run(Intervention(inputs, dict.fromkeys(subject.experiment.parameters, other_numbers)))
    if not run.follows(subject.base):
        return []
    found = []
    for explanation, (query, key, value) in own:
        padded = [_constant_zeros(subject, explanation, operand, run) for operand in (query, key, value)]
        queries, keys, values = padded
        if queries is None or keys is None or values is None or not bool((keys & values).any()):
            continue
        visible = explanation.visible
        seen = keys & values & visible.keys & ~visible.empty.unsqueeze(-1) & ~queries
        is_sink = (seen | queries | visible.empty.unsqueeze(-1)).flatten(0, 2).all(0)
        slots = seen & is_sink & (_behind_written(keys & values) | _between_written(keys & values))
        if bool(slots.any()) and not _are_unwritten(subject, explanation, key, slots):
            slots = torch.zeros_like(slots)
        found.append(ZeroKeys(explanation, key, run, keys & values, seen, is_sink, slots))
    return found


def judge_padding(
    subject: Subject, explained: Sequence[ExplainedVisibility], zeros: Sequence[ZeroKeys]
) -> Iterator[Outcome]:
    """Look for keys of zeros that get weight, where their weight reaches the results."""
    for one in zeros:
        # a zero that every query sees is meant to take weight, as that of add_zero_attn, unless it was never written
        if bool(one.slots.any()) and _reaches(subject, one.explanation, one.slots):
            yield _violation_of_slots(subject, one)
            return
        # a memory that is all zeros is meant to be left out
        seen = one.seen & ~one.is_sink & (one.explanation.visible.keys & ~one.constant).any(-1, keepdim=True)
        if bool(seen.any()) and _reaches(subject, one.explanation, seen):
            at = _padding(subject, one, seen)
            if at is not None:
                yield _violation(subject, one.explanation, at)
                return
    if zeros and not any(bool(one.seen.any()) for one in zeros) and len(explained) == len(subject.attentions):
        yield Verification("no query attends to keys of zeros with which blocks are padded")


def _behind_written(constant: Tensor) -> Tensor:
    """Return which constant keys are the last ones, (B, H, queries, keys), where the first key isn't constant."""
    return constant.flip(-1).cumprod(-1).flip(-1).bool() & ~constant[..., :1]


def _between_written(constant: Tensor) -> Tensor:
    """Return which constant keys lie between others, (B, H, queries, keys)."""
    written = (~constant).int()
    return constant & (written.cumsum(-1) > 0) & (written.flip(-1).cumsum(-1).flip(-1) > 0)


def _are_unwritten(
    subject: Subject, explanation: ExplainedVisibility, operand: AttentionOperand, slots: Tensor
) -> bool:
    """Return whether slots hold the numbers with which the memory was made to which tokens were written."""
    memory = _written_memory(subject, operand)
    if memory is None:
        return False
    if isinstance(memory, OutputRef):
        change = Intervention(results={memory: _ones})
    else:
        change = Intervention(parameters={memory: _ones})
    moved = subject.perturb(change)
    if not moved.comparable:
        return False
    pairs = by_pair(subject, operand, differs(operand.value, operand.of(moved.changed), subject.experiment.tolerance))
    changed = explanation.visible.arranged(pairs) if pairs is not None else None
    return changed is not None and bool(changed[slots].all())


def _ones(value: Tensor) -> Tensor:
    return torch.ones_like(value)


def _written_memory(subject: Subject, operand: AttentionOperand) -> Producer | None:
    """Return the memory to which data was written, in place or in a copy, and that held none before; None if none."""
    data = subject.graph.depends_on_data | set(subject.inputs)
    made, *writes = operand.sources
    is_written = not data.isdisjoint(writes)
    while isinstance(made, OutputRef):
        event = subject.base.event(made)
        writes_to_copy = event.name in FILLS and len(event.sources) > 1
        if not event.in_place and not writes_to_copy and event.name not in SAME_VALUES:
            break
        others = {one for sources in event.sources[1:] for one in sources} if event.in_place or writes_to_copy else ()
        is_written = is_written or event.in_place or not data.isdisjoint(others)
        made, *writes = event.sources[0]
        is_written = is_written or not data.isdisjoint(writes)
    return made if is_written and made not in data else None


def _may_be_padded(operand: AttentionOperand) -> bool:
    """Return whether there are as many zeros as a token has features, so that padding isn't ruled out."""
    features = operand.value.shape[-1]
    return operand.value.is_floating_point() and int((operand.value == 0).sum()) >= features


def _constant_zeros(
    subject: Subject, explanation: ExplainedVisibility, operand: AttentionOperand, run: ReplayRun
) -> Tensor | None:
    """Return where a query, key or value is zero in both runs, as (B, H, queries, keys)."""
    after = operand.of(run)
    if after.shape != operand.value.shape:
        return None
    pairs = by_pair(subject, operand, (operand.value != 0) | (after != 0))
    arranged = explanation.visible.arranged(pairs) if pairs is not None else None
    return ~arranged if arranged is not None else None


def _padding(subject: Subject, zeros: ZeroKeys, seen: Tensor) -> OutputRef | None:
    """Return the call that joins zeros to what tokens made; None if an argument makes them, such as a mask."""
    made = reversed(_with_zeros(subject, zeros.key, zeros.run))
    at = next((ref for ref in made if _makes(subject, zeros.explanation, zeros.key, ref, seen)), None)
    if at is None:
        return None
    data = subject.graph.depends_on_data | set(subject.inputs)
    others = [sources for sources in subject.base.event(at).sources if not data.intersection(sources)]
    given = {name for sources in others for name in subject.graph.origins(sources)}
    return at if given.isdisjoint(subject.base.inputs) else None


def _with_zeros(subject: Subject, key: AttentionOperand, run: ReplayRun) -> list[OutputRef]:
    """Return the results from which keys come that have zeros in both runs, the last one first."""
    data = subject.graph.depends_on_data
    found: list[OutputRef] = []
    given: list[tuple[Producer, ...]] = [key.sources]
    while given:
        refs = [max(own) for sources in given if (own := data.intersection(sources))]
        ref = next((ref for ref in refs if _has_zeros(subject, run, ref)), None)
        if ref is None:
            break
        found.append(ref)
        given = subject.base.event(ref).sources
    return found


def _makes(
    subject: Subject, explanation: ExplainedVisibility, key: AttentionOperand, ref: OutputRef, seen: Tensor
) -> bool:
    """Return whether all of the keys that are seen change with the zeros of a result."""
    moved = subject.perturb(Intervention(results={ref: lambda t: torch.where(t == 0, torch.ones_like(t), t)}))
    if not moved.comparable:
        return False
    pairs = by_pair(subject, key, differs(key.value, key.of(moved.changed), subject.experiment.tolerance))
    changed = explanation.visible.arranged(pairs) if pairs is not None else None
    return changed is not None and bool(changed[seen].all())


def _has_zeros(subject: Subject, run: ReplayRun, ref: OutputRef) -> bool:
    if ref.output in subject.base.event(ref).unread:
        return False
    before, after = subject.base.value(ref), run.value(ref)
    return before.shape == after.shape and bool(((before == 0) & (after == 0)).any())


def _reaches(subject: Subject, explanation: ExplainedVisibility, seen: Tensor) -> bool:
    """Return whether the contexts of the queries that see such keys reach the results."""
    core = explanation.visible.core
    shape = core.weights.shape if isinstance(core, Core) else core.added.shape
    places = explanation.visible.arranged(torch.arange(shape.numel()).reshape(shape))
    assert places is not None
    rows = torch.zeros(shape.numel(), dtype=torch.float64)
    rows[places[seen]] = 1
    rows = rows.reshape(shape)
    context = subject.base.value(core.context)
    if isinstance(core, Core):
        ones = torch.ones_like(core.value.operand(core.values_place))
        touched = core.value.with_operands({core.weights_place: rows.to(ones.dtype), core.values_place: ones}) != 0
    else:
        touched = rows.any(-1, keepdim=True).expand(context.shape)
    if touched.shape != context.shape:
        return False
    moved = subject.perturb(Intervention(results={core.context: lambda t: torch.where(touched, other_numbers(t), t)}))
    return moved.comparable and not moved.has_no_effect


def _violation_of_slots(subject: Subject, zeros: ZeroKeys) -> Violation:
    message = "queries attend to slots that nothing has written: their keys and values are zero, and they get weight"
    hint, where = (
        ("shift the slots only once all are written, and write each token to the first one that is free", "these")
        if bool((zeros.slots & _between_written(zeros.constant)).any())
        else (
            "cut keys and values behind the last token that was written, as in cache[:, :, :position + L], or mask the "
            "rest",
            "the last",
        )
    )
    evidence = f"changed all inputs and parameters: {where} keys and values stay zero, and queries see them"
    claims = _claims_about_keys(subject)
    return Violation("AS409", message, _weighing(zeros.explanation), hint, evidence, claims=claims)


def _claims_about_keys(subject: Subject) -> tuple[str, ...]:
    return tuple(name for name in subject.claims.names if name in ("causal", "window", *subject.claims.masks))


def _weighing(explanation: ExplainedVisibility) -> OutputRef:
    """Return the softmax, or the fused attention."""
    core = explanation.visible.core
    return core.softmax.ref if isinstance(core, Core) else core.context


def _violation(subject: Subject, explanation: ExplainedVisibility, at: OutputRef) -> Violation:
    names = _claims_about_keys(subject)
    message = "queries attend to padding: keys of zeros, which no token made, get weight at the border"
    hint = "hide them in the mask: a key before the first token, or after the last one, gets -inf"
    if not names:
        hint += ", unless the zeros are meant; --claim causal, or window=W, tells that only tokens are keys"
    return Violation(
        "AS409",
        message,
        _weighing(explanation),
        hint,
        "changed all inputs and parameters: these keys and values stay zero, and some queries see them",
        made=subject.place(at),
        claims=names,
        level="error" if names else "notice",
    )

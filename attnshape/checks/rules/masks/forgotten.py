"""Judges attentions that a mask of tokens doesn't reach, though their keys are these tokens.

A decoder's mask isn't meant for the attention over its encoder, nor for that over latents: only keys that come token by
token from what the mask describes need it. The mask is set to hide the last tokens of each batch element, as padding
is, so that causal attention may do without it. What the attention takes from these tokens is added to its context.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from attnshape.checks.attention.cores import Core, FusedCore
from attnshape.checks.attention.elementwise import HIDES
from attnshape.checks.attention.mistake_lines import MaskLines, masks_read
from attnshape.checks.attention.operands import AttentionOperand, by_attention
from attnshape.checks.attention.perturbation import PerturbationDiff, constant, differs
from attnshape.checks.attention.simultaneous import SimultaneousRun
from attnshape.checks.attention.slots import by_pair, by_row
from attnshape.checks.attention.subject import Subject, once
from attnshape.checks.interventions.experiment import Intervention
from attnshape.checks.interventions.replay import OutputRef, Replace
from attnshape.checks.rules.masks.hidden_tokens import TokenChange
from attnshape.checks.rules.protocol import Violation
from attnshape.tracing.raw import SourceLocation
from attnshape.tracing.source_locations import SourceLocator


@dataclass(frozen=True)
class _PaddedRuns:
    """Runs in which a mask hides the last tokens of an input; the contexts are put back in all of them."""

    mask: Mapping[str, Replace]
    tokens: TokenChange
    name: str
    """The input that has these tokens."""
    unchanged: SimultaneousRun
    hidden: SimultaneousRun
    """The hidden tokens are changed."""
    kept: SimultaneousRun
    """All others are."""

    @property
    def are_comparable(self) -> bool:
        """Whether all runs made the same calls."""
        return all(one.run.follows(one.base) for one in (self.unchanged, self.hidden, self.kept))

    def changed(self, operand: AttentionOperand, by: SimultaneousRun) -> Tensor:
        """Return which elements of an attention's operand change with the tokens."""
        return differs(operand.of(self.unchanged.run), operand.of(by.run), by.tolerance)

    def describe(self, key: AttentionOperand) -> bool:
        """Return whether these tokens are the keys: some change with the hidden ones, and no other tokens."""
        hidden = self.changed(key, self.hidden)
        return bool(hidden.any()) and not bool((hidden & self.changed(key, self.kept)).any())


def judge_forgotten(subject: Subject, name: str, core: Core | FusedCore) -> Violation | None:
    """Return the finding if an attention that a mask doesn't reach makes results depend on the tokens that it hides."""
    query, key = next(own[:2] for own in by_attention(subject) if own[0].core is core)
    shape = _shape_of_tokens(subject.base.inputs[name])
    if any(_shape_of_tokens(subject.base.inputs[other]) == shape for other in masks_read(subject)[core.context]):
        return None  # of two masks for one sequence, each may be for some attentions
    for runs in _padded_runs(subject).get(name, ()):
        leaked = _leaked(subject, runs, query) if runs.describe(key) else None
        if leaked is not None and _reaches_results(subject, runs, core.context, leaked):
            message = f"{name} isn't applied here, though the keys are the tokens that it hides elsewhere"
            hint = f"pass {name} to this attention as well, and hide the keys of these tokens"
            evidence = f"changed the tokens of {runs.name} that {name} hides, in the keys of this attention alone"
            at, place = MaskLines(subject, core).softmax, _own_call(subject, name, core.context)
            return Violation("AS404", message, at, hint, evidence, place=place, claims=(name,))
    return None


@once
def _padded_runs(subject: Subject) -> dict[str, list[_PaddedRuns]]:
    """Return for each mask that not all attentions read the runs for each input that it describes."""
    read = masks_read(subject)
    found: dict[str, list[_PaddedRuns]] = {}
    for name in subject.claims.masks:
        keys = [key for _, key, _ in by_attention(subject) if name in read[key.core.context]]
        if name in subject.base.inputs and 0 < len(keys) < len(read):
            found[name] = [runs for runs in _of_inputs(subject, name) if any(map(runs.describe, keys))]
    return found


def _of_inputs(subject: Subject, name: str) -> Iterator[_PaddedRuns]:
    value = subject.base.inputs[name]
    shape, batch = _shape_of_tokens(value), subject.batch_size
    for symbol in subject.lengths:
        number = subject.numbers[symbol]
        if shape not in ((number,), (batch, number)) or number < 2 or not subject.is_distinct(symbol):
            continue
        rows = value.numel() // number
        length = 1 + (number // 2 + torch.arange(rows)[:, None]) % (number - 1)
        kept = torch.arange(number) < length
        mask = {name: constant(_as_mask(subject, name, kept))}
        tokens = TokenChange(symbol, ~kept, kept, by_every_query=True)
        hidden, others = tokens.inputs(subject), TokenChange(symbol, kept, ~kept, by_every_query=False).inputs(subject)
        unchanged = subject.perturb_each(Intervention(inputs=mask))
        for described in hidden:
            changes = [Intervention(inputs={**mask, described: change[described]}) for change in (hidden, others)]
            runs = _PaddedRuns(mask, tokens, described, unchanged, *map(subject.perturb_each, changes))
            if runs.are_comparable:
                yield runs


def _shape_of_tokens(mask: Tensor) -> tuple[int, ...]:
    """Return a mask's shape without the axes of size 1."""
    return tuple(size for size in mask.shape if size > 1)


def _as_mask(subject: Subject, name: str, kept: Tensor) -> Tensor:
    """Return a mask like a claimed one that keeps other tokens, (B or 1, tokens)."""
    mask, meaning = subject.base.inputs[name], subject.claims.arguments[name]
    kept = kept.reshape(mask.shape)
    if meaning == "add":
        return torch.where(kept, 0.0, mask.min().clamp(max=2 * HIDES)).to(mask.dtype)
    return (kept if meaning == "keep" else ~kept).to(mask.dtype)


def _leaked(subject: Subject, runs: _PaddedRuns, query: AttentionOperand) -> Tensor | None:
    """Return what the hidden tokens add to the context, at queries that don't come from them; None if nothing."""
    context = query.core.context
    before, after = runs.unchanged.contexts[context], runs.hidden.contexts[context]
    changed = differs(before, after, runs.hidden.tolerance)
    from_hidden = runs.changed(query, runs.hidden)
    if bool(from_hidden.any()) and _has_queries(query.core):
        pairs = by_pair(subject, query, from_hidden)
        rows = by_row(query.core, pairs) if pairs is not None else None
        if rows is None or rows.shape != changed.shape:
            return None
        changed = changed & ~rows
    return torch.where(changed, after - before, 0).nan_to_num() if bool(changed.any()) else None


def _has_queries(core: Core | FusedCore) -> bool:
    """Return whether a context has an axis of queries, which may be tokens; one that pools all tokens has none."""
    return isinstance(core, FusedCore) or bool(core.value.free(core.weights_place))


def _reaches_results(subject: Subject, runs: _PaddedRuns, context: OutputRef, leaked: Tensor) -> bool:
    """Return whether results depend on it, at positions of other tokens than the hidden ones."""
    added = Intervention(inputs=runs.mask, results={context: lambda value: value + leaked})
    before, after = (subject.experiment.run(change) for change in (Intervention(inputs=runs.mask), added))
    return runs.tokens.reaches(subject, PerturbationDiff(before, after, subject.experiment.tolerance)) is True


def _own_call(subject: Subject, name: str, context: OutputRef) -> SourceLocation | None:
    """Return the innermost call that leads to this attention only, if one that reads the mask has the same line."""
    readers = [reader for reader, names in masks_read(subject).items() if name in names]
    shared = {(frame.f_code, frame.f_lasti) for reader in readers for frame in subject.base.event(reader).calls}
    calls = subject.base.event(context).calls
    own = next((frame for frame in calls if (frame.f_code, frame.f_lasti) not in shared), None)
    return SourceLocator().find(own)[0] if own is not None and own is not calls[0] else None

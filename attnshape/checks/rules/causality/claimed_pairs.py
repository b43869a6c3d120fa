"""Does each query see exactly the keys that `visible` claims?

Queries and keys are compared by the positions of the tokens from which they come, whatever the layout of an attention
is. Where that isn't known, the positions of the results that depend on a token tell.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from attnshape.checks.attention.dependence import Reach, reaches
from attnshape.checks.attention.elementwise import HIDES_BESIDE_SCORES
from attnshape.checks.attention.mistake_lines import MaskLines, masks_of_others
from attnshape.checks.attention.operands import operands
from attnshape.checks.attention.perturbation import PerturbationDiff, other_numbers
from attnshape.checks.attention.subject import Subject
from attnshape.checks.attention.token_positions import PairPositions, pair_positions
from attnshape.checks.attention.visibility import READ, ExplainedVisibility, claimed_pairs
from attnshape.checks.interventions.experiment import Intervention
from attnshape.checks.interventions.replay import Replace
from attnshape.checks.rules.causality.results import (
    NO_TOKENS,
    Attention,
    changed_positions,
    keeps_elements_apart,
    mixes_layers,
    mixes_tokens,
)
from attnshape.checks.rules.protocol import Outcome, Undecided, Verification, Violation
from attnshape.model.formatting import pluralize

CLAIM = "visible"
_EVIDENCE = f"{READ}, and changed half of the tokens at a time, which tells where queries and keys come from"
_DRAWS = 3
"""In so many runs with other inputs a result that should depend on a token doesn't: the values don't decide it."""


def judge_visible(
    subject: Subject, explained: Sequence[ExplainedVisibility], attentions: Sequence[Attention], topic: str
) -> Iterator[Outcome]:
    """Yield whether these attentions show the keys that `visible` claims; `explained` are those whose masks are known.

    Attentions that aren't given have findings of their own, or the claim isn't about them.
    """
    if subject.claims.visible is None:
        return
    if subject.attentions and not attentions:
        yield Undecided(topic, "numbers replace scores of keys that still get weight", (CLAIM,))
        return
    outcomes = [(explanation, _judge(subject, explanation, explained, topic)) for explanation in explained]
    found = _of_own_tokens([(one, outcome) for one, outcome in outcomes if isinstance(outcome, Violation)])
    told = [explanation.visible.core.context for explanation, outcome in outcomes if outcome is not None]
    unknown = [core for core in attentions if core.context not in told]
    if found:
        # the steps of a loop share their line
        yield from {subject.place(violation.at): violation for violation in reversed(found)}.values()
    elif unknown or not attentions:
        yield from _judge_results(subject, unknown, topic)
    else:
        open_questions = [outcome for _, outcome in outcomes if isinstance(outcome, Undecided)]
        yield from open_questions
        if not open_questions:
            more = subject.claims.causal or subject.claims.window is not None or subject.claims.masks
            others = " and the other claims leave" if more else ""
            text = f"each query sees exactly the keys that {_text(subject)} shows{others}"
            if any(
                MaskLines(subject, one.visible.core).inputs_that_hide() & subject.inputs.keys() for one in explained
            ):
                text = f"no query sees a key that {_text(subject)} hides"  # the values of the tokens may hide more
            yield Verification(text, (CLAIM,))


def _of_own_tokens(found: Sequence[tuple[ExplainedVisibility, Violation]]) -> list[Violation]:
    """Return what is found where queries attend to their own sequence, if that is found anywhere.

    A claim about a decoder's tokens isn't about the memory to which they attend too.
    """
    own = [violation for one, violation in found if one.positions is not None and bool(one.positions.own.any())]
    return own or [violation for _, violation in found]


def _text(subject: Subject) -> str:
    assert subject.claims.visible is not None
    return f"{CLAIM}={subject.claims.visible.text}"


def _judge(
    subject: Subject, explanation: ExplainedVisibility, explained: Sequence[ExplainedVisibility], topic: str
) -> Violation | Undecided | Verification | None:
    """Return what is wrong in one attention, or that nothing is; None if that can't be told by its weights."""
    visible, positions = explanation.visible, explanation.positions
    if positions is None or not bool(positions.known.any()):
        return None
    claimed, wanted = claimed_pairs(subject, positions.counts), _wanted(subject, positions.counts)
    # masks of windows of a rolled map add -100
    seen = visible.keys & positions.known & (visible.added > HIDES_BESIDE_SCORES)
    within = _within_lengths(subject, positions)
    rows = explanation.rows[..., None] & within
    leaks = seen & ~positions.at(claimed) & rows
    kept = _kept(subject, explanation, positions)
    hidden = positions.at(wanted) & kept & ~seen & rows if kept is not None else torch.zeros_like(seen)
    lines = MaskLines(subject, visible.core)
    why = _why_unsure(subject, explanation, lines, positions, hidden, seen & rows)
    if bool(leaks.any()) or (bool(hidden.any()) and why is None):
        few = positions.where(hidden) if why is None else torch.zeros_like(claimed)
        return _violation(subject, explanation, lines, positions.where(leaks), few)
    if why is not None and (kept is None or bool(hidden.any())):
        return Undecided(topic, why, (CLAIM,))
    met = positions.where(torch.ones_like(seen))
    absent = wanted & ~met & met.any(-1, keepdim=True)
    if not bool(absent.any()):
        if bool(claimed.all()):
            return Undecided(topic, "every key is visible by it at these sizes", (CLAIM,))
        return Verification("")
    for other in explained:
        if other.positions is not None and other.positions.counts == positions.counts:
            absent = absent & ~other.positions.where(other.visible.keys)
    chosen = _inputs_that_choose(subject, explanation)
    if not bool(absent.any()) or chosen or subject.claims.masks:
        return None
    return _violation(subject, explanation, lines, torch.zeros_like(claimed), absent)


def judge_blocks(subject: Subject, explained: Sequence[ExplainedVisibility]) -> Iterator[Outcome]:
    """Yield whether queries that are processed in blocks see every key that is in their claimed window.

    Each block by itself may look right, and have lost keys of the blocks before it.
    """
    if subject.claims.window is None or subject.claims.visible is not None or subject.claims.masks:
        return
    lengths = {subject.numbers[symbol] for symbol in subject.lengths}
    blocks = [one for one in explained if one.visible.keys.shape[-2] not in lengths]
    seen: dict[tuple[int, int], Tensor] = {}
    met: dict[tuple[int, int], Tensor] = {}
    for one in explained if blocks else ():
        visible = one.visible
        positions = pair_positions(subject, visible.core, visible.arranged)
        if positions is None or not bool(positions.known.all()):
            return
        counts = positions.counts
        seen[counts] = seen.get(counts, torch.zeros(counts, dtype=torch.bool)) | positions.where(visible.keys)
        queries = positions.where(torch.ones_like(visible.keys)).any(-1, keepdim=True)
        met[counts] = met.get(counts, torch.zeros_like(queries)) | queries
    for counts, pairs in seen.items():
        lacking = _wanted(subject, counts) & met[counts] & ~pairs
        if bool(lacking.any()):
            query, key = lacking.nonzero()[0].tolist()
            count = pluralize(int(lacking.sum()), "pair")
            width = subject.claims.window.text
            message = (
                f"query {query} doesn't see key {key}, which is within its window of {width} keys ({count} too few)"
            )
            hint = "keep the keys of the windows of all new queries, not only those of the last one"
            at = MaskLines(subject, blocks[-1].visible.core).triangle()
            yield Violation("AS505", message, at, hint, _EVIDENCE, "reproduced", claims=("window",))
            return
    if blocks:
        yield Verification(f"attends to a window of {subject.claims.window.text} keys", ("window",))


def _wanted(subject: Subject, counts: tuple[int, int]) -> Tensor:
    """Return which keys each query should see by all claims about positions."""
    wanted = torch.ones(counts, dtype=torch.bool)
    if subject.claims.visible is not None:
        wanted = claimed_pairs(subject, counts)
    distance = _distances(counts)
    width = subject.claims.window_at(subject.numbers)
    if subject.claims.causal:
        wanted = wanted & (distance >= 0)
    if width is not None:
        wanted = wanted & (distance.abs() < width)
    return wanted


def _distances(counts: tuple[int, int]) -> Tensor:
    """Return how far each key is before each query."""
    queries, keys = counts
    return torch.arange(queries)[:, None] + keys - queries - torch.arange(keys)


def _kept(subject: Subject, explanation: ExplainedVisibility, positions: PairPositions) -> Tensor | None:
    """Return which keys the claimed masks leave, (B, H, queries, keys); None if they can't be laid out."""
    names = set(subject.claims.masks) - masks_of_others(subject, explanation.visible.core)
    kept = torch.ones_like(positions.known)
    for name in names & subject.base.inputs.keys():
        alone = explanation.alone[name]
        if alone is None or not positions.are_in_order:
            return None
        kept = kept & alone
    return kept


def _within_lengths(subject: Subject, positions: PairPositions) -> Tensor:
    """Return where query and key are among the tokens that the claimed lengths leave, (B, H, queries, keys)."""
    within = torch.ones_like(positions.known)
    for name, meaning in subject.claims.arguments.items():
        value = subject.base.inputs.get(name)
        if meaning in ("length", "last-token") and value is not None and value.numel() == len(within):
            count = value.reshape(-1, 1, 1, 1) + (meaning == "last-token")
            within = within & (positions.queries < count) & (positions.keys < count)
    return within


def _why_unsure(
    subject: Subject,
    explanation: ExplainedVisibility,
    lines: MaskLines,
    positions: PairPositions,
    hidden: Tensor,
    seen: Tensor,
) -> str | None:
    """Return why keys that are hidden may be hidden rightly, where others are seen, or None."""
    if _kept(subject, explanation, positions) is None:
        return "which keys the claimed masks hide can't be laid out"
    given = lines.inputs_that_hide() & subject.base.inputs.keys() - subject.claims.arguments.keys()
    if given:
        return f"{min(given)} also decides which keys are hidden, and no claim says how"
    some = positions.where(hidden) & positions.where(seen)
    if not subject.claims.masks and bool(some.any()):
        query, key = some.nonzero()[0].tolist()
        return f"query {query} sees key {key} in some heads, or in some elements of the batch, and not in others"
    return None


def _inputs_that_choose(subject: Subject, explanation: ExplainedVisibility) -> set[str]:
    """Return the inputs, other than those with tokens, on which the keys of an attention depend, such as indices."""
    core = explanation.visible.core
    keys = [operand for operand in operands(subject) if operand.core is core and operand.role == "key"]
    origins = {name for key in keys for name in subject.graph.origins(key.sources)}
    return origins & subject.base.inputs.keys() - subject.inputs.keys()


def _violation(
    subject: Subject, explanation: ExplainedVisibility, lines: MaskLines, many: Tensor, few: Tensor
) -> Violation:
    """Return the finding about pairs of positions, (queries, keys), that are visible, and about hidden ones."""
    is_masked = not bool(explanation.visible.keys.all())
    at = lines.triangle() if is_masked or bool(many.any()) else lines.softmax
    return _of_pairs(subject, many, few)(at=at, evidence=_EVIDENCE, shown="reproduced")


def _of_pairs(subject: Subject, many: Tensor, few: Tensor) -> partial[Violation]:
    parts = []
    for pairs, verb, what in ((many, "sees", "too many"), (few, "doesn't see", "too few")):
        count = int(pairs.sum())
        if count:
            query, key = pairs.nonzero()[0].tolist()
            parts.append(f"query {query} {verb} key {key} ({count} pair{'s' * (count > 1)} {what})")
    message = f"queries see other keys than {_text(subject)} claims: {', and '.join(parts)}"
    hint = "compare mask, windows and gathered keys with the claim at these positions, which count from 0"
    return partial(
        Violation, code="AS506", message=message, hint=hint, claims=(CLAIM, *_others_contradicted(subject, many))
    )


def _others_contradicted(subject: Subject, many: Tensor) -> Iterator[str]:
    """Yield the other claims that hide a pair of positions that is visible."""
    queries, keys = many.shape
    distance = _distances((queries, keys))
    width = subject.claims.window_at(subject.numbers)
    if subject.claims.causal and bool((many & (distance < 0)).any()):
        yield "causal"
    if width is not None and bool((many & (distance.abs() >= width)).any()):
        yield "window"


def _judge_results(subject: Subject, unknown: Sequence[Attention], topic: str) -> Iterator[Outcome]:
    """Change tokens, and compare the positions of the results that change with those that should see them.

    A position depends on its own token past attention too, so that isn't judged.
    """
    symbol = next((name for name in ("Lq", "L", *subject.lengths) if name in subject.lengths), None)
    found = [(name, reach) for name in subject.lengths for reach in _reaches(subject, name)] if symbol else []
    found = [(name, reach) for name, reach in found if symbol and reach.size == subject.numbers[symbol]]
    if symbol is None or not found:
        yield Undecided(topic, NO_TOKENS, (CLAIM,))
        return
    queries, past = subject.numbers[symbol], subject.past_size
    start = {name: past if name == symbol and subject.past in subject.lengths else 0 for name in subject.lengths}
    keys = max(start[name] + subject.numbers[name] for name, _ in found)
    claimed, wanted = (table(subject, (queries, keys)) for table in (claimed_pairs, _wanted))
    depends, told = torch.zeros_like(claimed), torch.zeros_like(claimed)
    for name, reach in found:
        key = start[name] + reach.token
        told[:, key] = True
        depends[list(reach.positions), key] = True
        if name == symbol:
            told[reach.token, key] = False
    many, few = depends & ~claimed & told, wanted & ~depends & told
    why = None
    if bool(many.any()):
        why = (None if _is_transitive(claimed) else mixes_layers(subject)) or mixes_tokens(subject)
    elif bool(few.any()):
        why = _why_independent(subject, few, symbol, start)
    if why is not None:
        yield Undecided(topic, why, (CLAIM,))
    elif bool((many | few).any()):
        at = MaskLines(subject, unknown[0]).triangle() if unknown else None
        yield _of_pairs(subject, many, few if not bool(many.any()) else torch.zeros_like(few))(
            at=at, evidence="changed one token of the inputs at a time, and compared the results"
        )
    else:
        text = f"each position of the results depends on exactly the other tokens that {_text(subject)} shows"
        yield Verification(text, (CLAIM,))


def _reaches(subject: Subject, symbol: str) -> list[Reach]:
    together = keeps_elements_apart(subject)
    return [reach for found in reaches(subject, list(subject.inputs), symbol, together) for reach in found]


def _is_transitive(pairs: Tensor) -> bool:
    """Return whether what a key sees is also visible to a query that sees the key, so that layers add nothing."""
    if pairs.shape[0] != pairs.shape[1]:
        return False
    own = (pairs | torch.eye(len(pairs), dtype=torch.bool)).double()
    return bool(((own @ own > 0) == (own > 0)).all())


def _why_independent(subject: Subject, few: Tensor, symbol: str, start: dict[str, int]) -> str | None:
    """Return why results may rightly not depend on tokens that they should see, or None."""
    others = subject.base.inputs.keys() - subject.inputs.keys()
    if others:
        return f"{min(others)} may decide on which tokens the results depend"
    query, key = few.nonzero()[0].tolist()
    name = next(name for name in subject.lengths if 0 <= key - start[name] < subject.numbers[name])
    given: dict[str, Replace] = {}
    for draw in range(_DRAWS):
        given = {one: partial(_drawn, draw + 1) for one in subject.inputs}
        change = subject.at_index(name, key - start[name])
        moved = {one: partial(_changed_after, draw + 1, change[one]) if one in change else given[one] for one in given}
        before, after = (subject.experiment.run(Intervention(inputs=inputs)) for inputs in (given, moved))
        diff = PerturbationDiff(before, after, subject.experiment.tolerance)
        if not diff.comparable or query in changed_positions(diff, subject.numbers[symbol]):
            return "the values of the inputs decide which tokens are visible"
    return None


def _drawn(times: int, value: Tensor) -> Tensor:
    for _ in range(times):
        value = other_numbers(value)
    return value


def _changed_after(times: int, change: Replace, value: Tensor) -> Tensor:
    return change(_drawn(times, value))

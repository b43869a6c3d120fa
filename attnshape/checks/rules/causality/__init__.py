"""Do queries attend to the keys up to their own position, and to no later ones?"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from attnshape.checks.attention.cores import Core, between
from attnshape.checks.attention.definitions import constant_definition
from attnshape.checks.attention.mistake_lines import MaskLines
from attnshape.checks.attention.operands import operands
from attnshape.checks.attention.perturbation import changed_indices, divergences
from attnshape.checks.attention.subject import Subject
from attnshape.checks.attention.token_positions import pair_positions
from attnshape.checks.attention.visibility import EVIDENCE, READ, ExplainedVisibility, Hypothesis, explain_visibility
from attnshape.checks.interventions.experiment import Intervention
from attnshape.checks.interventions.replay import OutputRef
from attnshape.checks.interventions.small_sizes import symbol_or_number
from attnshape.checks.rules.causality.claimed_pairs import judge_blocks, judge_visible
from attnshape.checks.rules.causality.padding import judge_padding, zero_keys
from attnshape.checks.rules.causality.results import NO_TOKENS, at_token, judge_causal, judge_window, leaked_position
from attnshape.checks.rules.masks.fills import too_small
from attnshape.checks.rules.protocol import Observation, Outcome, Undecided, Verification, Violation
from attnshape.model.formatting import join_words
from attnshape.tracing.operations import JOINS

CODES: tuple[str, ...] = ("AS408", "AS409", "AS501", "AS502", "AS503", "AS504", "AS505", "AS506")
TOPIC = "causality"


def check(subject: Subject) -> Iterator[Outcome]:
    """Compare the keys that queries attend to with causal masks of every offset and windows of every width."""
    outcomes = list(_without_vaguer(list(_outcomes(subject))))
    wrong = {claim for outcome in outcomes if isinstance(outcome, Violation) for claim in outcome.claims}
    for outcome in outcomes:
        if isinstance(outcome, Violation) and outcome.at is not None:
            # a mask with another diagonal than expected may be right, and cut at the wrong corner
            is_known = outcome.made is not None or outcome.code in ("AS503", "AS504")
            yield outcome if is_known else replace(outcome, made=constant_definition(subject, outcome.at))
        elif not (isinstance(outcome, Verification) and wrong.intersection(outcome.claims)):
            yield outcome


def _without_vaguer(outcomes: Sequence[Outcome]) -> Iterator[Outcome]:
    """Yield outcomes without findings that others explain; what these contradict, the first of the others contradicts.

    Who sees later tokens than the claims allow also sees what pads the last block, which contradicts nothing by itself.
    """
    errors = [outcome for outcome in outcomes if isinstance(outcome, Violation) and outcome.level == "error"]
    precise = [error for error in errors if error.code not in ("AS409", "AS506")]
    pairs = [outcome for outcome in outcomes if isinstance(outcome, Violation) and outcome.code == "AS506"]
    for outcome in outcomes:
        if not isinstance(outcome, Violation):
            yield outcome
        elif precise and outcome is precise[0]:
            more = dict.fromkeys(claim for one in pairs for claim in one.claims)
            yield replace(outcome, claims=tuple(dict.fromkeys((*outcome.claims, *more))))
        elif not (outcome.code == "AS506" and precise) and not (
            outcome.code == "AS409" and any(error.code != "AS409" for error in errors)
        ):
            yield outcome


def _outcomes(subject: Subject) -> Iterator[Outcome]:
    explained, unseen = explain_visibility(subject)
    # too small a fill value has a finding of its own; what else replaces scores may be no key at all
    weak = [explanation.visible.core.context for explanation in explained if explanation.visible.is_weak]
    filled = [
        explanation.visible.core.context
        for explanation in explained
        if explanation.visible.is_weak and too_small(subject, explanation) is not None
    ]
    known = [one for one in explained if (context := one.visible.core.context) in filled or context not in weak]
    laid_out = [explanation for explanation in known if not _is_of_blocks(subject, explanation)]
    by_results = list(_by_results(subject, laid_out))
    yield from by_results
    told = {claim for outcome in by_results for claim in outcome.claims}
    open_claims = tuple(claim for claim in _claimed(subject) if claim not in told)
    for why in unseen if open_claims else ():
        yield Undecided(TOPIC, why, open_claims)
    if len(laid_out) < len(known) and open_claims:
        yield Undecided(TOPIC, f"queries and keys are blocks, and {NO_TOKENS}", open_claims)
    of_others = _of_other_inputs(subject, laid_out)
    zeros = zero_keys(subject, explained)
    unwritten = {one.explanation.visible.core.context: one.slots for one in zeros}
    for explanation in laid_out:
        if explanation.visible.core.context in filled:
            continue
        if _are_unwritten(explanation, unwritten.get(explanation.visible.core.context)):
            continue  # these keys are no tokens, and have a finding of their own
        if explanation.visible.core.context in of_others:
            inputs = join_words(sorted(of_others[explanation.visible.core.context]))
            text = f"the claims about visible keys are not about attention to {inputs}"
            yield Observation(text, attention=explanation.visible.core.context)
        elif (hypothesis := _early_triangle(explanation) or explanation.hypothesis) is None:
            yield from _unexplained(subject, explanation)
        elif subject.claims.causal or subject.claims.window is not None:
            yield from _judged(subject, explanation, hypothesis)
        elif subject.claims.visible is None:
            yield from _facts(subject, explanation, hypothesis)
    left_out = {*weak, *of_others}
    own = [explanation for explanation in explained if explanation.visible.core.context not in left_out]
    yield from judge_blocks(subject, own)
    yield from judge_visible(subject, own, [core for core in subject.attentions if core.context not in left_out], TOPIC)
    yield from judge_padding(subject, explained, zeros)


def _are_unwritten(explanation: ExplainedVisibility, slots: Tensor | None) -> bool:
    """Return whether the later keys that queries see against the claim are slots that nothing has written."""
    if slots is None or not bool(slots.any()) or "causal" not in explanation.alone:
        return False
    leaks = explanation.leaks("causal")
    return leaks is not None and not bool((leaks & ~slots).any())


def _of_other_inputs(subject: Subject, explained: Sequence[ExplainedVisibility]) -> dict[OutputRef, set[str]]:
    """Return the attentions that the claims aren't about, with the inputs of their keys, by the context.

    A decoder attends causally to its own tokens, and to all tokens of the encoder, whose keys come from another input.
    """
    if not subject.claims.causal and subject.claims.window is None and subject.claims.visible is None:
        return {}
    of_keys: dict[OutputRef, set[str]] = {}
    for operand in operands(subject):
        if operand.role == "key":
            of_keys[operand.core.context] = subject.graph.origins(operand.sources) & set(subject.inputs)
    contexts = {explanation.visible.core.context: explanation for explanation in explained}
    leaking = {ref for ref, explanation in contexts.items() if _leaks(subject, explanation)}
    as_claimed = [of_keys[ref] for ref in contexts.keys() - leaking]
    return {ref: of_keys[ref] for ref in leaking if any(other - of_keys[ref] for other in as_claimed)}


def _leaks(subject: Subject, explanation: ExplainedVisibility) -> bool:
    """Return whether a key is visible that a claim hides, or that can't be told."""
    leaks = [explanation.leaks(claim) for claim in explanation.alone if claim not in subject.claims.masks]
    return any(one is None or bool(one.any()) for one in leaks)


def _claimed(subject: Subject) -> tuple[str, ...]:
    return tuple(name for name in subject.claims.names if name in ("causal", "window"))


def _is_of_blocks(subject: Subject, explanation: ExplainedVisibility) -> bool:
    """Return whether the positions of queries or keys aren't known.

    They are if a mask explains which keys are visible, unless each token has gathered keys of its own.
    """
    queries, keys = explanation.visible.keys.shape[-2:]
    lengths = {subject.numbers[symbol] for symbol in subject.lengths}
    if queries == 1 and lengths & explanation.visible.core.shared_sizes:
        return True
    known = lengths | {subject.past_size + length for length in lengths}
    # each of a few keys stands for several tokens, such as the mean of a block
    if explanation.hypothesis is not None and (keys in known or 2 * keys > queries):
        return False
    return queries not in lengths or keys not in known


def _by_results(subject: Subject, laid_out: list[ExplainedVisibility]) -> Iterator[Outcome]:
    """Change tokens, and look at which positions of the results change, as far as visible keys don't tell."""
    known = {explanation.visible.core.context for explanation in laid_out}
    hidden = [core for core in subject.attentions if core.context not in known]
    # what attention itself leaks has findings of its own
    if subject.claims.causal and all(map(_is_as_causal_as_claimed, laid_out)):
        is_known = bool(laid_out) and not hidden
        yield from _past_attention(subject, laid_out) if is_known else judge_causal(subject, hidden, TOPIC)
    if subject.claims.window is not None and (hidden or not laid_out):
        yield from judge_window(subject, hidden, TOPIC)


def _is_as_causal_as_claimed(explanation: ExplainedVisibility) -> bool:
    """Return whether queries see the keys that the claims leave, or those of them within a window."""
    hypothesis, right = explanation.hypothesis, explanation.right
    return hypothesis is not None and right in (hypothesis, replace(hypothesis, window=None))


def _past_attention(subject: Subject, explained: Sequence[ExplainedVisibility]) -> Iterator[Outcome]:
    """Change two tokens, and check whether earlier positions of the result change other than through attention.

    A query from which masks hide every key, with a finite number, sees all of them.
    """
    rows = [one.visible.empty for one in explained]
    empty = {position for one in rows for position in changed_indices(one, one.ndim - 1)}
    for symbol in subject.lengths:
        number = subject.numbers[symbol]
        # causal attention spreads a change over all later tokens: the last one has none
        for index in (number - 1, number // 2):
            change = at_token(subject, symbol, index)
            moved = subject.perturb(Intervention(inputs=change))
            if not change or not moved.comparable:
                continue
            earlier = leaked_position(moved, subject, symbol, index, empty)
            if earlier is None:
                continue
            contexts = [core.context for core in subject.attentions]
            inside = {ref for core in subject.cores for ref in _inside(subject, core)}
            parted = divergences(moved, symbol, index, subject.numbers, (*change, *contexts))
            early = (one.ref for one in parted if one.indices and one.indices[0] < index)
            at = next((ref for ref in early if ref not in inside), None)
            message = f"the future leaks past attention: token {index} affects position {earlier}"
            hint = "let every position depend only on itself and earlier positions"
            evidence = f"changed token {index} of {next(iter(change))}"
            yield Violation("AS501", message, at, hint, evidence, claims=("causal",))
            return


def _inside(subject: Subject, core: Core) -> set[OutputRef]:
    """Return the scores of an attention and what is computed from them, up to its weights."""
    scores = core.scores.ref
    return {scores, *(ref for event in between(subject.graph, scores, (core.context,)) for ref in event.refs)}


def _early_triangle(explanation: ExplainedVisibility) -> Hypothesis | None:
    """Return the causal mask that is part of another mask, if it ends before each query's own key; else None.

    One mask may hide later keys and padding. What it leaves is within the claims then, but it isn't aligned.
    """
    right, visible = explanation.right, explanation.visible
    if right.offset is None or right.window is not None or right.claimed or explanation.hypothesis not in (None, right):
        return None
    rows = ~visible.empty
    shown = visible.keys & rows[..., None]
    kept = shown.any(-2, keepdim=True)
    i, j = torch.arange(shown.shape[-2])[:, None], torch.arange(shown.shape[-1])
    nearest = range(right.offset, -len(i), -1)
    explains = (offset for offset in nearest if bool((shown == kept & (j <= i + offset))[rows].all()))
    offset = next(explains, right.offset)
    return Hypothesis(offset=offset) if offset < right.offset else None


def _unexplained(subject: Subject, explanation: ExplainedVisibility) -> Iterator[Outcome]:
    """Judge a pattern of visible keys that no causal mask or window explains."""
    if bool(explanation.visible.empty.all()):
        yield Undecided(
            TOPIC, "every key is hidden from every query, so that all of them get the same weight", _claimed(subject)
        )
        return
    for claim in _claimed(subject):
        leaks = explanation.leaks(claim)
        if leaks is None:
            yield Undecided(TOPIC, "a claimed mask can't be laid out as queries and keys", (claim,))
        elif not bool(leaks.any()):
            far = "a later key" if claim == "causal" else "a key outside of its window"
            # equal scores in a row whose keys are all hidden give weight to every key, later ones too
            which = "no query that sees a key" if bool(explanation.visible.empty.any()) else "no query"
            yield Verification(f"{which} attends to {far}", (claim,))
        else:
            at = MaskLines(subject, explanation.visible.core).triangle()
            pairs = int(leaks.any(0).any(0).sum())
            if claim == "causal":
                message = f"the future leaks: {pairs} pairs of a query and a later key get weight"
                yield _violation("AS501", message, at, "keep keys with j <= i", claims=(claim,))
            else:
                message = f"{pairs} pairs of a query and a key outside of its window get weight"
                yield _violation("AS505", message, at, "keep keys with 0 <= i - j < W", claims=(claim,))


def _are_whole(subject: Subject, queries: int, keys: int) -> bool:
    """Return whether queries and keys are those of a whole sequence or image, not of a block."""
    lengths = [subject.numbers[symbol] for symbol in subject.lengths]
    past = subject.past_size
    known = {math.prod(some) for count in (1, 2) for some in itertools.combinations(lengths, count)}
    known |= {past + length for length in lengths}
    return {queries, keys} <= known


def _facts(subject: Subject, explanation: ExplainedVisibility, hypothesis: Hypothesis) -> Iterator[Outcome]:
    """Yield which keys the queries attend to, if nothing is claimed about it."""
    queries, keys = explanation.visible.keys.shape[-2:]
    if hypothesis.backwards:
        return
    at = MaskLines(subject, explanation.visible.core).triangle()
    causal = ["--claim causal"] if hypothesis.offset is not None else []
    if hypothesis.window is not None:
        side = "causal window" if causal else "two-sided window"
        claims = [*causal, f"--claim window={symbol_or_number(hypothesis.window, subject.numbers)}"]
        yield _unclaimed(f"queries attend to a {side} of {hypothesis.window} keys", at, claims)
    elif hypothesis.offset == keys - queries:
        yield _unclaimed("queries attend causally", at, causal)
    elif hypothesis.offset is None and not hypothesis.masks and _are_whole(subject, queries, keys):
        yield Observation("every query attends to every key", attention=explanation.visible.core.context)
    elif hypothesis.offset == 0 and keys > queries and _own_keys_come_last(subject, explanation):
        message = "the causal mask is aligned with the first key, though a query's own key comes after all cached ones"
        hint = "shift it: .tril(diagonal=Lk - Lq)"
        yield Violation("AS503", message, at, hint, f"{READ}, and changed half of the tokens at a time", "reproduced")
    elif hypothesis.offset is not None:
        last = f"{hypothesis.offset:+d}" if hypothesis.offset else ""
        hint = f'"visible=k <= q {last[:1]} {last[1:]}"' if last else '"visible=k <= q"'
        claims = [f"--claim {hint};", "if causal attention is, --claim causal says where the mask is wrong"]
        yield _unclaimed(f"query i attends to the keys up to i{last}", at, claims)


def _own_keys_come_last(subject: Subject, explanation: ExplainedVisibility) -> bool:
    """Return whether the last keys come from the same tokens as the queries, in their order."""
    visible = explanation.visible
    positions = pair_positions(subject, visible.core, visible.arranged)
    if positions is None:
        return False
    queries, keys = visible.keys.shape[-2:]
    last = torch.eye(queries, dtype=torch.bool)
    return bool((positions.own[..., keys - queries :] == last).all())


def _unclaimed(what: str, at: OutputRef, claims: list[str]) -> Violation:
    hint = f"if it is meant, claim it: {' '.join(claims)}"
    return Violation("AS408", f"{what}, which nothing claims", at, hint, READ, "reproduced", level="notice")


def _judged(subject: Subject, explanation: ExplainedVisibility, hypothesis: Hypothesis) -> Iterator[Outcome]:
    right, window = explanation.right, subject.claims.window
    queries, keys = explanation.visible.keys.shape[-2:]
    lines = MaskLines(subject, explanation.visible.core)
    if right.offset is not None and (hypothesis.offset != right.offset or hypothesis.backwards):
        code, message, hint = _explain_offset(subject, hypothesis, right.offset, (queries, keys))
        yield _violation(code, message, lines.triangle(), hint, claims=("causal",))
    elif right.offset is not None:
        yield Verification("attends causally", ("causal",))
    if window is not None and hypothesis.window != right.window:
        width = "all keys" if hypothesis.window is None else f"{hypothesis.window} keys"
        expected = window.text if window.text == str(right.window) else f"{window.text} = {right.window}"
        message = f"a query attends to a window of {width}, expected {expected}"
        yield _violation("AS505", message, lines.triangle(), "keep keys with 0 <= i - j < W", claims=("window",))
    elif window is not None and right.offset is None and hypothesis.offset is not None:
        most = f"keys up to i{hypothesis.offset:+d}"
        if hypothesis.backwards:
            most = f"every key from i{hypothesis.offset:+d} on"
        elif hypothesis.offset >= keys - 1:
            most = "every later key"
        message = f"query i attends to {most}, expected keys less than {window.text} away on both sides"
        hint = "compare the absolute distance: (i - j).abs() < W; claim causal too if later keys are meant to be hidden"
        yield _violation("AS505", message, lines.triangle(), hint, claims=("window",))
    elif window is not None and queries in {subject.numbers[symbol] for symbol in subject.lengths}:
        yield Verification(f"attends to a window of {window.text} keys", ("window",))
    elif window is not None:  # keys of earlier blocks may be lacking
        yield Verification("no query attends to a key outside of its window", ("window",))


def _explain_offset(
    subject: Subject, hypothesis: Hypothesis, aligned: int, counts: tuple[int, int]
) -> tuple[str, str, str]:
    """Return the code, message and hint for a causal mask on another diagonal than `aligned`.

    `counts` are the numbers of queries and keys.
    """
    offset, (queries, keys) = hypothesis.offset, counts
    if hypothesis.backwards:
        message = "the causal mask is inverted: queries attend to the future, and not to the past"
        return "AS501", message, "keep the lower triangle: torch.ones(L, L).tril()"
    if offset is None or offset >= keys - 1:
        if aligned > 0 and (subject.past or _joins_keys(subject)):
            message = "there is no causal mask when keys are cached: queries attend to the future"
            return "AS504", message, "mask with .tril(diagonal=Lk - Lq), with and without a cache"
        return "AS501", "there is no causal mask: queries attend to the future", "mask with .tril()"
    if offset < aligned - 1 and aligned != keys - queries:
        message = f"query i attends to the keys up to i{offset:+d}, expected those up to its own one, i{aligned:+d}"
        return "AS503", message, "shift the mask of each block of queries by the position of its first one"
    if aligned != 0 and offset == 0 and aligned == keys - queries:
        message = "the causal mask is aligned with the first key, expected the last query to attend to the last key"
        return "AS503", message, "shift it: .tril(diagonal=Lk - Lq)"
    by = offset - aligned
    if by > 0:
        message = f"the future leaks: a query attends to keys up to {by} position{'s' if by > 1 else ''} after its own"
        return "AS501", message, "keep keys with j <= i"
    if by == -1:
        return "AS502", "a query doesn't attend to its own position", "keep keys with j <= i, including the diagonal"
    return "AS503", f"the causal mask is shifted by {by} positions", "align it: .tril(diagonal=Lk - Lq)"


def _joins_keys(subject: Subject) -> bool:
    """Return whether keys are concatenated, as cached and new ones are."""
    keys = [operand for operand in operands(subject) if operand.role == "key"]
    return any(event.name in JOINS for key in keys for event in subject.graph.upstream(key.sources))


_violation = partial(Violation, evidence=EVIDENCE, shown="reproduced")

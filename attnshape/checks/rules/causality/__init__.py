"""Do queries attend to the keys up to their own position, and to no later ones?"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import partial

from attnshape.checks.attention.mistake_lines import MaskLines
from attnshape.checks.attention.operands import operands
from attnshape.checks.attention.perturbation import changed_indices, divergences
from attnshape.checks.attention.subject import Subject
from attnshape.checks.attention.visibility import EVIDENCE, Explanation, Hypothesis, explain_visibility
from attnshape.checks.interventions.experiment import Intervention
from attnshape.checks.rules.protocol import Observation, Outcome, Undecided, Verification, Violation
from attnshape.tracing.operations import JOINS

CODES: tuple[str, ...] = ("AS501", "AS502", "AS503", "AS504", "AS505")
TOPIC = "causality"


def check(subject: Subject) -> Iterator[Outcome]:
    """Compare the keys that queries attend to with causal masks of every offset and windows of every width."""
    outcomes = list(_outcomes(subject))
    wrong = {claim for outcome in outcomes if isinstance(outcome, Violation) for claim in outcome.claims}
    yield from (one for one in outcomes if not (isinstance(one, Verification) and wrong.intersection(one.claims)))


def _outcomes(subject: Subject) -> Iterator[Outcome]:
    explained, unseen = explain_visibility(subject)
    around = list(_past_attention(subject, explained))
    yield from around
    told = {claim for outcome in around for claim in outcome.claims}
    open_claims = tuple(claim for claim in _claimed(subject) if claim not in told)
    for why in unseen if open_claims else ():
        yield Undecided(TOPIC, why, open_claims)
    for explanation in explained:
        if explanation.visible.is_weak:
            continue
        if explanation.hypothesis is None:
            yield from _unexplained(subject, explanation)
        elif subject.claims.causal or subject.claims.window is not None:
            yield from _judged(subject, explanation, explanation.hypothesis)
        else:
            yield from _facts(subject, explanation, explanation.hypothesis)


def _claimed(subject: Subject) -> tuple[str, ...]:
    return tuple(name for name in subject.claims.names if name in ("causal", "window"))


def _past_attention(subject: Subject, explained: list[Explanation]) -> Iterator[Outcome]:
    """Change a token, and check whether earlier positions of the result change other than through attention."""
    if not subject.claims.causal:
        return
    looked, all_explained = False, len(explained) == len(subject.attentions) > 0
    for symbol in subject.lengths:
        number = subject.numbers[symbol]
        indices = (number // 2, number - 1) if all_explained else range(1, number)
        changes = {index: subject.at_index(symbol, index) for index in indices}
        for index, change in changes.items():
            moved = subject.perturb(Intervention(inputs=change))
            if not change or not moved.comparable:
                continue
            earlier = [
                min(changed_indices(mask, axis))
                for _, mask in moved.returned()
                for axis, size in enumerate(mask.shape)
                if size == number and mask.any() and mask.shape.count(size) == 1
            ]
            looked = looked or bool(earlier)
            if not earlier or min(earlier) >= index:
                continue
            if any(explanation.hypothesis != explanation.right for explanation in explained):
                return  # attention itself leaks it, which has findings of its own
            parted = divergences(moved, symbol, index, subject.numbers, change)
            at = next((one.ref for one in parted if one.indices and one.indices[0] < index), None)
            message = f"the future leaks past attention: token {index} affects position {min(earlier)}"
            hint = "let every position depend only on itself and earlier positions"
            evidence = f"changed token {index} of {next(iter(change))}"
            yield Violation("AS501", message, at, hint, evidence, claims=("causal",))
            return
    if looked and not all_explained:  # which keys are visible can't tell
        yield Verification("a token changes no earlier position of the results", ("causal",))


def _unexplained(subject: Subject, explanation: Explanation) -> Iterator[Outcome]:
    """Judge a pattern of visible keys that no causal mask or window explains."""
    queries, keys = explanation.visible.keys.shape[-2:]
    lengths = {subject.numbers[symbol] for symbol in subject.lengths}
    known = lengths | {subject.numbers.get("Lp", 0) + length for length in lengths}
    for claim in _claimed(subject):
        leaks = explanation.leaks(claim)
        if queries not in lengths or keys not in known or leaks is None:
            yield Undecided(TOPIC, "queries and keys are blocks, whose positions aren't known", (claim,))
        elif not bool(leaks.any()):
            far = "a later key" if claim == "causal" else "a key outside of its window"
            yield Verification(f"no query attends to {far}", (claim,))
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
    past = subject.numbers.get("Lp", 0)
    known = {math.prod(some) for count in (1, 2) for some in itertools.combinations(lengths, count)}
    known |= {past + length for length in lengths}
    return {queries, keys} <= known


def _facts(subject: Subject, explanation: Explanation, hypothesis: Hypothesis) -> Iterator[Outcome]:
    """Yield which keys the queries attend to, if nothing is claimed about it."""
    queries, keys = explanation.visible.keys.shape[-2:]
    if hypothesis.backwards:
        return
    if hypothesis.window is not None:
        side = "causal window" if hypothesis.offset is not None else "two-sided window"
        yield Observation(f"attends to a {side} of {hypothesis.window} keys")
    elif hypothesis.offset == keys - queries:
        yield Observation("attends causally")
    elif hypothesis.offset is None and not hypothesis.masks and _are_whole(subject, queries, keys):
        yield Observation("every query attends to every key")
    elif hypothesis.offset is not None:
        yield Observation(f"query i attends to the keys up to i{hypothesis.offset:+d}")


def _judged(subject: Subject, explanation: Explanation, hypothesis: Hypothesis) -> Iterator[Outcome]:
    right, window = explanation.right, subject.claims.window
    queries, keys = explanation.visible.keys.shape[-2:]
    lines = MaskLines(subject, explanation.visible.core)
    if right.offset is not None and (hypothesis.offset != right.offset or hypothesis.backwards):
        code, message, hint = _explain_offset(subject, hypothesis, keys - queries, keys)
        yield _violation(code, message, lines.triangle(), hint, claims=("causal",))
    elif right.offset is not None:
        yield Verification("attends causally", ("causal",))
    if window is not None and hypothesis.window != right.window:
        width = "all keys" if hypothesis.window is None else f"{hypothesis.window} keys"
        expected = window.text if window.text == str(right.window) else f"{window.text} = {right.window}"
        message = f"a query attends to a window of {width}, expected {expected}"
        yield _violation("AS505", message, lines.triangle(), "keep keys with 0 <= i - j < W", claims=("window",))
    elif window is not None:
        yield Verification(f"attends to a window of {window.text} keys", ("window",))


def _explain_offset(subject: Subject, hypothesis: Hypothesis, aligned: int, keys: int) -> tuple[str, str, str]:
    """Return the code, message and hint for a causal mask on another diagonal than `aligned`."""
    offset = hypothesis.offset
    if hypothesis.backwards:
        message = "the causal mask is inverted: queries attend to the future, and not to the past"
        return "AS501", message, "keep the lower triangle: torch.ones(L, L).tril()"
    if offset is None or offset >= keys - 1:
        if aligned > 0 and ("Lp" in subject.numbers or _joins_keys(subject)):
            message = "there is no causal mask when keys are cached: queries attend to the future"
            return "AS504", message, "mask with .tril(diagonal=Lk - Lq), with and without a cache"
        return "AS501", "there is no causal mask: queries attend to the future", "mask with .tril()"
    if aligned != 0 and offset == 0:
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

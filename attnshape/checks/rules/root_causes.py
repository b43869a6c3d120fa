"""Which violations are only consequences of others, and aren't reported beside them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from attnshape.checks.attention.cores import FusedCore
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.replay import OutputRef
from attnshape.checks.rules.protocol import Violation

AXES = "AS1"
"""What the codes about mixed-up axes begin with: everything downstream of one is wrong."""
_NOT_FINITE = ("AS306", "AS406")
_HIDDEN = ("AS401", "AS402", "AS502", "AS503", "AS506")
"""Codes for keys that are hidden by mistake."""


@dataclass(frozen=True)
class _Explanation:
    """An error explains other violations, wherever they are."""

    causes: tuple[str, ...]
    """Codes of errors, one of which explains the others."""
    consequences: tuple[str, ...]
    """Codes of the violations that it explains."""


_EXPLANATIONS = (
    # keys that are hidden by mistake have no effect, nor have their values
    _Explanation(_HIDDEN, ("AS802", "AS803", "AS804")),
    # behind wrong rotations, or masks that change scores and hide none, scores may depend on the lengths
    _Explanation(("AS405", "AS701", "AS703", "AS704", "AS705"), ("AS711",)),
    # keys that nothing writes hold whatever was in the memory
    _Explanation(("AS308",), ("AS409",)),
    # of sequences one after the other, queries that see those of another one mix the batch
    _Explanation(("AS506",), ("AS101", "AS102")),
    # tokens that are hidden only after the softmax still count in its sum
    _Explanation(("AS303",), ("AS411",)),
    # without a softmax, keys that a mask hides from one of two sums only leave the weights without a sum of one
    _Explanation(("AS407",), ("AS302",)),
    # of heads that overlap, the last features of the projection are in none
    _Explanation(("AS121",), ("AS807",)),
    # heads that are mixed up in the order of the batch meet other parts of a bias in each batch element
    _Explanation(("AS710",), ("AS118",)),
    # what is used in place of something else leaves that unused
    _Explanation(
        ("AS206", "AS404", "AS708", "AS801", "AS802", "AS803", "AS804", "AS805"),
        ("AS807", "AS809"),
    ),
)


def root_causes(violations: Sequence[Violation], subject: Subject) -> list[Violation]:
    """Return the violations without consequences of others."""
    kept = _without_downstream(violations, subject)
    for explained in (_without_keys, _infinite, _through_infinite_weights, _cancelled_by_one_key, _by_unread_scale):
        is_consequence = explained(kept, subject)
        kept = [violation for violation in kept if not is_consequence(violation)]
    for explanation in _EXPLANATIONS:
        if _has_error(kept, *explanation.causes):
            kept = [violation for violation in kept if violation.code not in explanation.consequences]
    places = {violation.place for violation in kept if violation.code == "AS807"}
    return [violation for violation in kept if violation.code != "AS809" or violation.place not in places]


def _without_downstream(violations: Sequence[Violation], subject: Subject) -> list[Violation]:
    """Return the violations without those that are downstream of mixed-up axes, or on the same line."""
    kept: list[Violation] = []
    for violation in sorted(violations, key=lambda violation: violation.at or OutputRef(0)):
        of_axes = [cause for cause in kept if cause.code.startswith(AXES)]
        # a mask that is modified in place is wrong in the layers after the first
        causes = [cause for cause in kept if cause.code == "AS903"] if violation.code.startswith("AS4") else []
        causes += of_axes
        downstream = any(cause.at and violation.at in subject.graph.downstream_of(cause.at) for cause in causes)
        same_line = any(subject.source(cause.at) == subject.source(violation.at) for cause in of_axes)
        if not downstream and not same_line:
            kept.append(violation)
    return kept


_IsConsequence = Callable[[Violation], bool]


def _has_error(violations: Sequence[Violation], *codes: str) -> bool:
    return any(violation.level == "error" and violation.code in codes for violation in violations)


def _without_keys(kept: Sequence[Violation], subject: Subject) -> _IsConsequence:
    """Where every key is hidden all weights are equal, so that neither queries nor keys have an effect."""
    hidden = any(violation.code == "AS406" and not violation.claims for violation in kept)
    return lambda violation: hidden and violation.code in ("AS801", "AS802", "AS807")


def _infinite(kept: Sequence[Violation], subject: Subject) -> _IsConsequence:
    """An inverted mask, for example, hides every key of some queries, whose results then aren't finite."""
    others = any(violation.level == "error" and violation.code not in _NOT_FINITE for violation in kept)
    return lambda violation: others and violation.code in _NOT_FINITE and not violation.claims


def _through_infinite_weights(kept: Sequence[Violation], subject: Subject) -> _IsConsequence:
    """Through infinite weights, each result depends on what they should hide."""
    infinite = subject.base.has_nan and any(violation.code == "AS303" for violation in kept)
    return lambda violation: infinite and violation.code.startswith(("AS4", "AS5"))


def _cancelled_by_one_key(kept: Sequence[Violation], subject: Subject) -> _IsConsequence:
    """Of a single visible key the softmax cancels everything that makes its score."""
    hidden = _has_error(kept, *_HIDDEN)
    # the attentions are read for a violation of theirs alone: with operands that can't be read there are none
    return lambda violation: hidden and violation.code == "AS807" and violation.at in _weighing(subject)


def _weighing(subject: Subject) -> set[OutputRef]:
    """The results at which scores become weights."""
    return {core.context if isinstance(core, FusedCore) else core.softmax.ref for core in subject.attentions}


def _by_unread_scale(kept: Sequence[Violation], subject: Subject) -> _IsConsequence:
    """The scale that is given, and that nothing reads, is the one that is claimed."""
    unread = any(violation.code == "AS812" and violation.level == "error" and violation.claims for violation in kept)
    return lambda violation: unread and violation.code != "AS812" and "scale" in violation.claims

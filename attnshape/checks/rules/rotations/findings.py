"""Where a rotation is computed, and findings about it."""

from __future__ import annotations

from attnshape.checks.attention.mistake_lines import helper_call
from attnshape.checks.attention.operands import AttentionOperand
from attnshape.checks.attention.subject import Subject
from attnshape.checks.attention.uniform import UniformRun
from attnshape.checks.interventions.replay import OutputRef
from attnshape.checks.rules.protocol import Violation
from attnshape.options.claims import Rope
from attnshape.tracing.operations import COMPLEX_FROM_PAIRS, JOINS, REPEATS

CLAIM = ("rope",)
PAIRED: dict[Rope, str] = {"half": "pair feature i with i + Dk/2", "interleaved": "pair feature 2i with 2i + 1"}
"""How features are paired in each layout, as hints say it."""
SAME_VECTOR = "gave every token, head and batch element the same vector"
"""The evidence of a finding."""


def violation_of(
    same: UniformRun, operand: AttentionOperand, code: str, message: str, hint: str, at: OutputRef | None = None
) -> Violation:
    """Return the violation at a call inside a helper function, else where the first call that rotates is made.

    If that call is in a helper function, it is the line that calls the function.
    """
    place = None
    if at is None:
        at = first_rotation(same, operand)
        place = helper_call(same.subject, at)
    claims = CLAIM if same.subject.claims.rope is not None else ()
    return Violation(code, message, at, hint, SAME_VECTOR, place=place, claims=claims)


def first_rotation(same: UniformRun, operand: AttentionOperand) -> OutputRef:
    """Return the first call behind an operand that makes positions differ; without one, the operand's product."""
    return same.first_varying(operand) or OutputRef(operand.event.order)


def doubled_angles(same: UniformRun, operand: AttentionOperand) -> OutputRef | None:
    """Return the call that repeats the angles for both features of a pair."""
    graph, at = same.subject.graph, same.first_varying(operand)
    for sources in graph.node(at).sources if at is not None else ():
        for event in graph.upstream(sources):
            if event.refs[0] not in graph.depends_on_data and event.name in REPEATS | JOINS:
                return event.refs[0]
    return None


def pairing_call(subject: Subject, at: OutputRef) -> OutputRef:
    """Return the call that pairs features before they are rotated, if there is one."""
    event = subject.base.event(at)
    for sources in event.sources:
        source = sources[-1]
        if isinstance(source, OutputRef) and subject.base.event(source).name in COMPLEX_FROM_PAIRS:
            return source
    return at


def is_judged(same: UniformRun, operand: AttentionOperand) -> bool:
    """Return whether positions change an operand as they are meant to: by the claim, or by a map that mixes features.

    A position embedding that is added, or a gate, is none. Neither is a table of any numbers that the caller gives.
    """
    claimed = same.subject.claims.rope is not None
    return claimed or (
        same.token_axis_is_certain(operand) and same.mixes(operand) and not same.has_given_tables(operand)
    )

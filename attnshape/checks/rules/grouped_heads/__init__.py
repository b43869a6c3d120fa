"""Do adjacent query heads share a key and value head?

Grouped-query attention (Ainslie et al. 2023, https://arxiv.org/abs/2305.13245): query head h uses key head h // G.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from attnshape.checks.attention.cores import between
from attnshape.checks.attention.operands import AttentionOperand, HeadChange, by_attention, head_change
from attnshape.checks.attention.perturbation import changed_indices
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Intervention
from attnshape.checks.interventions.replay import OutputRef
from attnshape.checks.rules.protocol import Outcome, Undecided, Verification, Violation
from attnshape.tracing.operations import EXPANSIONS, JOINS, REPEATS

CODES: tuple[str, ...] = ("AS601", "AS602")
TOPIC = "grouped heads"


def check(subject: Subject) -> Iterator[Outcome]:
    """Change some query heads and one key or value head, and look at which of them affect the same contexts."""
    heads, shared = subject.numbers.get("H", 0), subject.numbers.get("Hkv", 0)
    if not 1 < shared < heads or heads % shared:
        return
    judged = False
    for query, key, value in by_attention(subject):
        for other in (key, value):
            verdict = _judge(subject, query, other, heads, shared)
            if isinstance(verdict, Violation):
                yield verdict
                return
            judged = judged or verdict
    if judged:
        yield Verification("query head h uses key and value head h // G")
    else:
        yield Undecided(TOPIC, "queries, keys or values have no heads that can be changed one at a time")


def _judge(
    subject: Subject, query: AttentionOperand, other: AttentionOperand, heads: int, shared: int
) -> Violation | bool:
    """Return the violation if there is one, else whether the heads could be changed."""
    group = heads // shared
    queries = {head: head_change(subject, query, head, heads) for head in (0, 1, group, shared)}
    shared_head = head_change(subject, other, 0, shared)
    if shared_head is None or None in queries.values():
        return False
    moved = _mask(subject, query, shared_head)
    if moved is None:
        return False
    shares = {}
    for head, change in queries.items():
        mask = _mask(subject, query, change)
        if mask is None or not bool(mask.any()):
            return False
        shares[head] = bool((mask & moved).any())
    if shares[0] and shares[1] and not shares[group]:
        return _one_feature(subject, other, shared_head, heads, shared) or True
    if shares[0] and not shares[1] and shares[shared]:
        expected = f"query heads 0 and {shared} share {other.role} head 0, expected query heads 0 and 1"
        message = f"{other.role} heads are repeated in the wrong order: {expected}"
        at = _repeat(subject, other, shared_head) or _repeat(subject, query, queries[0]) or other.core.context
        hint = "use k.repeat_interleave(G, dim=1) instead of k.repeat(1, G, 1, 1): query head h uses key head h // G"
        evidence = f"changed query heads 0, 1, {group} and {shared}, and {other.role} head 0"
        return Violation("AS601", message, at, hint, evidence)
    return False


def _one_feature(
    subject: Subject, other: AttentionOperand, shared_head: HeadChange, heads: int, shared: int
) -> Violation | None:
    """Return a violation if features are repeated instead of heads, so that one doesn't affect all heads of a group."""
    if shared_head.one_feature is None:
        return None
    run = subject.experiment.run(shared_head.one_feature)
    if not run.follows(subject.base) or heads not in other.value.shape:
        return None
    affected = changed_indices(~(other.of(run) == other.value), list(other.value.shape).index(heads))
    if len(affected) >= heads // shared:
        return None
    only = f"head {', '.join(map(str, sorted(affected)))}, expected heads 0 to {heads // shared - 1}"
    feature = f"one feature of {other.role} head 0"
    message = f"{other.role}s are repeated along the wrong axis: {feature} affects only {only}"
    at = _repeat(subject, other, shared_head) or other.core.context
    hint = "repeat the head axis: k.repeat_interleave(G, dim=1) for (B, Hkv, L, Dk)"
    return Violation("AS602", message, at, hint, f"changed {feature}")


def _mask(subject: Subject, query: AttentionOperand, change: HeadChange | None) -> Tensor | None:
    """Return which elements of the context differ when a head is changed; None if that can't be compared."""
    if change is None:
        return None
    moved = subject.perturb(Intervention(inputs=change.inputs, results=change.results))
    return moved.mask(query.core.context) if moved.comparable else None


def _repeat(subject: Subject, operand: AttentionOperand, change: HeadChange | None) -> OutputRef | None:
    """Return the call that repeats heads, or views them in groups."""
    if change is None:
        return None
    if change.start is not None:
        chain = between(subject.graph, change.start, operand.sources)
    else:
        chain = list(subject.graph.upstream(operand.sources))[::-1]
    repeats = [event for event in chain if event.name in REPEATS | EXPANSIONS | JOINS]
    if not repeats and operand.role == "query":
        grouped = {subject.numbers.get("Hkv"), subject.numbers.get("G")}
        repeats = [event for event in chain if grouped <= set(event.values[0].shape)]
    return repeats[0].refs[0] if repeats else None

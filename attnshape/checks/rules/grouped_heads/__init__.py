"""Do adjacent query heads share a key and value head?

Grouped-query attention (Ainslie et al. 2023, https://arxiv.org/abs/2305.13245): query head h uses key head h // G. In
tiled order it uses key head h % Hkv, which trains as well; weights of one order are wrong in the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from attnshape.checks.attention.cores import between
from attnshape.checks.attention.layouts import layouts, projection_of
from attnshape.checks.attention.operands import (
    AttentionOperand,
    HeadChange,
    OperandRole,
    head_axis,
    head_change,
    operands,
    projection,
    without_iterations,
)
from attnshape.checks.attention.perturbation import changed_indices
from attnshape.checks.attention.simultaneous import SimultaneousRun
from attnshape.checks.attention.subject import Subject, once
from attnshape.checks.interventions.experiment import Intervention
from attnshape.checks.interventions.replay import OutputRef, ReplayedCall
from attnshape.checks.rules.protocol import Outcome, Undecided, Verification, Violation
from attnshape.model.report import Level
from attnshape.tracing.operations import EXPANSIONS, JOINS, REPEATS

CODES: tuple[str, ...] = ("AS601", "AS602")
TOPIC = "grouped heads"


def check(subject: Subject) -> Iterator[Outcome]:
    """Change some query heads and one key or value head, and look at which of them affect the same contexts."""
    heads, claimed = subject.numbers.get("H", 0), ("tiled-heads",) if subject.claims.tiled_heads else ()
    known: list[set[OperandRole]] = []
    for attention in without_iterations(subject):
        shared = _shared_heads(subject, attention[1])
        if not 1 < shared < heads or heads % shared:
            continue
        judged = [_judge(subject, attention[0], other, heads, shared) for other in attention[1:]]
        violation = next((one for one in judged if isinstance(one, Violation)), None)
        of_heads = [(one, other) for one, other in zip(judged, attention[1:], strict=True) if isinstance(one, _Order)]
        known.append({other.role for _, other in of_heads})
        wrong = next((pair for pair in of_heads if pair[0].is_tiled != subject.claims.tiled_heads), None)
        if violation is None and wrong is not None:
            # consistently tiled heads are a convention, mixed ones are not
            is_convention = not claimed and all(one.is_tiled for one, _ in of_heads)
            violation = _wrong_order(*wrong, shared, claimed, "notice" if is_convention else "error")
        if violation is not None:
            yield violation
            return
    for role in ("key", "value") if known else ():
        if all(role in roles for roles in known):
            continue
        yield Undecided(TOPIC, f"queries or {role}s have no heads that can be changed one at a time", claimed)
    roles = set.intersection(*known) if known else set()
    if roles:
        head = "h % Hkv" if claimed else "h // G"
        yield Verification(f"query head h uses {' and '.join(sorted(roles))} head {head}", claimed)


@dataclass(frozen=True)
class _Order:
    """The order in which query heads share the keys or the values of an attention."""

    is_tiled: bool
    at: OutputRef
    """The call that repeats the shared heads."""


def _shared_heads(subject: Subject, key: AttentionOperand) -> int:
    """Return how many key heads there are before they are repeated; 0 if that is unknown."""
    if "Hkv" in subject.numbers:
        return subject.numbers["Hkv"]
    ref = projection(subject, key.sources)
    own = [other for other in operands(subject) if other.core is key.core]
    if ref is None or any(projection(subject, other.sources) == ref for other in own if other.role == "query"):
        return 0
    of_keys = sum(1 for other in own if projection(subject, other.sources) == ref)
    return subject.base.value(ref).shape[-1] // (key.width * of_keys)


def _wrong_order(
    order: _Order, operand: AttentionOperand, shared: int, claims: tuple[str, ...], level: Level
) -> Violation:
    role, evidence = operand.role, f"changed query heads and {operand.role} head 0, one at a time"
    if not order.is_tiled:
        message = f"query heads 0 and 1 share {role} head 0, expected query heads 0 and {shared}"
        hint = "repeat the block of heads, k.repeat(1, G, 1, 1), or leave out --claim tiled-heads"
        return Violation("AS601", message, order.at, hint, evidence, claims=claims)
    expected = f"query heads 0 and {shared} share {role} head 0, expected query heads 0 and 1"
    message = f"{role} heads are repeated in the wrong order: {expected}"
    hint = "use k.repeat_interleave(G, dim=1) instead of k.repeat(1, G, 1, 1): query head h uses key head h // G"
    if level == "notice":
        message = f"{role} heads are repeated as a block: {expected}"
        hint = f"if it is meant, claim it: --claim tiled-heads; else {hint}"
    return Violation("AS601", message, order.at, hint, evidence, level=level)


def _judge(
    subject: Subject, query: AttentionOperand, other: AttentionOperand, heads: int, shared: int
) -> Violation | _Order | None:
    """Return the order of the heads, or a violation; None if they couldn't be changed."""
    group = heads // shared
    by_features = _order_by_features(subject, other, heads, shared)
    if by_features is not None:
        return by_features
    queries = {head: head_change(subject, query, head, heads) for head in (0, 1, group, shared)}
    shared_head = head_change(subject, other, 0, shared)
    if shared_head is None or None in queries.values():
        return None
    moved = _mask(subject, query, _Head(other.role, 0, shared), shared_head)
    if moved is None:
        return None
    shares = {}
    for head, change in queries.items():
        mask = _mask(subject, query, _Head("query", head, heads), change)
        if mask is None or not bool(mask.any()):
            return None
        shares[head] = bool((mask & moved).any())
    at = _repeat(subject, other, shared_head) or _repeat(subject, query, queries[0]) or other.core.context
    if shares[0] and shares[1] and not shares[group]:
        return _one_feature(subject, other, shared_head, heads, shared) or _Order(False, at)
    if shares[0] and not shares[1] and shares[shared]:
        return _Order(True, at)
    return None


def _order_by_features(subject: Subject, other: AttentionOperand, heads: int, shared: int) -> _Order | None:
    """Return the order of the heads by the features of the projection that each of them has.

    None if more than layout operations lie between, as where keys are rotated, or the features aren't shared evenly.
    """
    ref = projection_of(subject, other.sources)
    followed = layouts(subject).followed(ref, (other.event, other.place)) if ref is not None else None
    if ref is None or followed is None or followed.shape.count(heads) != 1 or bool((followed.source < 0).any()):
        return None
    axis = followed.shape.index(heads)
    by_head = (followed.source % followed.start[-1]).reshape(followed.shape).movedim(axis, 0)
    features = [frozenset(one.flatten().tolist()) for one in by_head]
    evenly = {sum(one == other for other in features) for one in features} == {heads // shared}
    if not evenly or len({feature for one in set(features) for feature in one}) != shared * len(features[0]):
        return None
    changed = next((event for event in between(subject.graph, ref, other.sources) if _repeats(event)), None)
    at = changed.refs[0] if changed is not None else other.core.context
    if all(features[head] == features[head // (heads // shared) * (heads // shared)] for head in range(heads)):
        return _Order(False, at)
    return _Order(True, at) if all(features[head] == features[head % shared] for head in range(heads)) else None


def _one_feature(
    subject: Subject, other: AttentionOperand, shared_head: HeadChange, heads: int, shared: int
) -> Violation | None:
    """Return a violation if features are repeated instead of heads, so that one doesn't affect all heads of a group."""
    if shared_head.one_feature is None:
        return None
    axis = head_axis(other, heads)
    run = subject.experiment.run(shared_head.one_feature) if axis is not None else None
    if run is None or axis is None or not run.follows(subject.base):
        return None
    affected = changed_indices(~(other.of(run) == other.value), axis)
    if len(affected) >= heads // shared:
        return None
    only = f"head {', '.join(map(str, sorted(affected)))}, expected heads 0 to {heads // shared - 1}"
    feature = f"one feature of {other.role} head 0"
    message = f"{other.role}s are repeated along the wrong axis: {feature} affects only {only}"
    at = _repeat(subject, other, shared_head) or other.core.context
    hint = "repeat the head axis: k.repeat_interleave(G, dim=1) for (B, Hkv, L, Dk)"
    return Violation("AS602", message, at, hint, f"changed {feature}")


@dataclass(frozen=True)
class _Head:
    """A head of the queries, keys or values, of which there are `heads`."""

    role: OperandRole
    head: int
    heads: int


def _mask(subject: Subject, query: AttentionOperand, head: _Head, change: HeadChange | None) -> Tensor | None:
    """Return which elements of the context differ when a head is changed; None if that can't be compared."""
    if change is None:
        return None
    context = query.core.context
    if change.start is not None:
        together = _changed_together(subject, head)
        if together.is_apart(change.start):
            return together.mask(context)
    moved = subject.perturb(Intervention(inputs=change.inputs, results=change.results))
    return moved.mask(context) if moved.comparable else None


@once
def _runs_together(subject: Subject) -> dict[_Head, SimultaneousRun]:
    """Return the runs made so far that change a head in every attention."""
    return {}


def _changed_together(subject: Subject, head: _Head) -> SimultaneousRun:
    """Return the run in which a head is changed in every attention whose projection it can be changed in."""
    runs = _runs_together(subject)
    if head not in runs:
        own = [operand for operand in operands(subject) if operand.role == head.role]
        changes = [head_change(subject, operand, head.head, head.heads) for operand in own]
        results = {ref: change for one in changes if one is not None for ref, change in one.results.items()}
        runs[head] = subject.perturb_each(Intervention(results=results))
    return runs[head]


def _repeat(subject: Subject, operand: AttentionOperand, change: HeadChange | None) -> OutputRef | None:
    """Return the call that repeats heads, or views them in groups."""
    if change is None:
        return None
    if change.start is not None:
        chain = between(subject.graph, change.start, operand.sources)
    else:
        chain = list(subject.graph.upstream(operand.sources))[::-1]
    copies = [event for event in chain if _repeats(event)]
    # heads that were taken apart may be joined again, several times each
    repeats = copies or [event for event in chain if event.name in JOINS]
    if not repeats and operand.role == "query":
        grouped = {subject.numbers.get("Hkv"), subject.numbers.get("G")}
        repeats = [event for event in chain if grouped <= set(event.values[0].shape)]
    return repeats[0].refs[0] if repeats else None


def _repeats(event: ReplayedCall) -> bool:
    """Return whether a call's result holds the same numbers several times."""
    if event.name in JOINS:
        return len(event.sources) > 1 and len(set(event.sources)) == 1
    return event.name in REPEATS | EXPANSIONS and event.numel > event.operand_values[0].numel()

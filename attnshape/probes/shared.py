"""Whether the query heads that share a key and value head are neighbours, as in grouped-query attention."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from attnshape.attention.chain import between
from attnshape.attention.following import Moved
from attnshape.attention.head_changes import HeadChange, head_change
from attnshape.attention.operands import Operand, by_attention
from attnshape.attention.outcome import Mistake, NotExamined, Outcome, Proved
from attnshape.attention.subject import Subject
from attnshape.replaying.bench import Change
from attnshape.replaying.replay import Address

CODES = ("AS601", "AS602")
WHAT = "shared heads"
REPEATS = {"repeat", "tile", "repeat_interleave", "expand", "expand_as", "broadcast_to", "cat", "concat", "stack"}


def examine(subject: Subject) -> Iterator[Outcome]:
    """Change one query head, then one key or value head, and see whether both reach the same scores."""
    heads, shared = subject.numbers.get("H", 0), subject.numbers.get("Hkv", 0)
    if not 1 < shared < heads or heads % shared:
        return
    judged = False
    for query, key, value in by_attention(subject):
        for other in (key, value):
            verdict = _judge(subject, query, other, heads, shared)
            if isinstance(verdict, Mistake):
                yield verdict
                return
            judged = judged or verdict
    if judged:
        yield Proved("query heads share their key and value heads in order")
    else:
        yield NotExamined(WHAT, "the heads of queries, keys or values can't be changed one by one")


def _judge(subject: Subject, query: Operand, other: Operand, heads: int, shared: int) -> Mistake | bool:
    group = heads // shared
    asks = {head: head_change(subject, query, head, heads) for head in (0, 1, group, shared)}
    answer = head_change(subject, other, 0, shared)
    if answer is None or any(ask is None for ask in asks.values()):
        return False
    at = query.core.context
    moved = _mask(subject, at, answer)
    if moved is None:
        return False
    meets = {}
    for head, ask in asks.items():
        mask = _mask(subject, at, ask) if ask is not None else None
        if mask is None or not bool(mask.any()):
            return False
        meets[head] = bool((mask & moved).any())
    if meets[0] and meets[1] and not meets[group]:
        return _one_feature(subject, other, answer, heads, shared) or True
    if meets[0] and not meets[1] and meets[shared]:
        return Mistake(
            code="AS601",
            message=f"{other.role} heads are repeated in the wrong order: query head 1 uses {other.role} head 1 and "
            f"not head 0, as query head {shared} does",
            at=_repeat(subject, other, answer) or _repeat(subject, query, asks[0]) or other.core.context,
            hint="k.repeat_interleave(G, dim=1), not k.repeat(1, G, 1, 1): query head h uses key head h // G",
            evidence=f"changed query heads 0, 1, {group} and {shared}, and {other.role} head 0",
        )
    return False


def _one_feature(subject: Subject, other: Operand, answer: HeadChange, heads: int, shared: int) -> Mistake | None:
    """Find features, not heads, that were repeated: then one feature doesn't reach every head of its group."""
    change = answer.one_feature
    if change is None:
        return None
    run = subject.bench.run(change)
    if not run.follows(subject.base):
        return None
    value = other.value
    axis = next((a for a in range(value.ndim) if value.shape[a] == heads), None)
    if axis is None:
        return None
    moved = ~(other.of(run) == value)
    rest = [a for a in range(value.ndim) if a != axis]
    found = {int(one) for one in moved.any(dim=rest).nonzero().flatten()}
    if len(found) >= heads // shared:
        return None
    return Mistake(
        code="AS602",
        message=f"{other.role}s are repeated along the wrong axis: one feature of {other.role} head 0 reaches head "
        f"{', '.join(map(str, sorted(found)))} only, expected heads 0 to {heads // shared - 1}",
        at=_repeat(subject, other, answer) or other.core.context,
        hint="repeat the axis of heads: k.repeat_interleave(G, dim=1) for (B, Hkv, L, Dk)",
        evidence=f"changed one feature of {other.role} head 0",
    )


def _mask(subject: Subject, at: Address, change: HeadChange) -> Tensor | None:
    moved: Moved = subject.moved(Change(inputs=change.inputs, results=change.results))
    return moved.mask(at) if moved.comparable else None


def _repeat(subject: Subject, operand: Operand, change: HeadChange | None) -> Address | None:
    """Return the call that repeats heads, or lays them out in groups."""
    if change is None:
        return None
    if change.start is not None:
        chain = between(subject.flow, change.start, operand.sources)
    else:
        chain = list(subject.flow.upstream(operand.sources))[::-1]
    found = [event for event in chain if event.name in REPEATS]
    if not found and operand.role == "query":
        grouped = {subject.numbers.get("Hkv"), subject.numbers.get("G")}
        found = [event for event in chain if grouped <= set(event.values[0].shape)]
    return found[0].addresses[0] if found else None

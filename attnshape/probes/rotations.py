"""Whether queries and keys are rotated by their own positions, in one layout, and nothing else is."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from attnshape.attention.call_sites import entering
from attnshape.attention.kinds import JOINS, MOVES
from attnshape.attention.operands import Operand, by_attention
from attnshape.attention.outcome import Mistake, NotExamined, Outcome, Proved
from attnshape.attention.subject import Subject
from attnshape.attention.uniform import Uniform, uniform
from attnshape.replaying.replay import Address

CODES = ("AS701", "AS702", "AS703", "AS704", "AS705")
WHAT = "rotations"
_SAME = 1e-6
"""A relative difference of lengths, or of products, that means nothing."""


def examine(subject: Subject) -> Iterator[Outcome]:
    """Give every token and head, of queries, keys and values, the same vector, and see what positions make of it."""
    if subject.claims.rope is None:
        return
    judged = rotated = False
    for query, key, value in by_attention(subject):
        same = uniform(subject, (query, key, value))
        if same is None or same.tokens(query) is None or same.tokens(key) is None:
            continue
        judged = True
        rotated = rotated or any(same.moves(one, same.tokens(one)) for one in (query, key))
        mistake = next(_of_core(subject, same, query, key, value), None)
        if mistake is not None:
            yield mistake
            return
    again = list(_cached(subject))
    yield from again
    if again:
        return
    if judged and not rotated:
        yield NotExamined(WHAT, "no query or key is rotated: the same vector stays the same at each position")
    elif judged:
        yield Proved(f"queries and keys are rotated by their positions, layout {subject.claims.rope}")
    else:
        yield NotExamined(WHAT, "queries and keys can't be given the same vector")


def _of_core(subject: Subject, same: Uniform, query: Operand, key: Operand, value: Operand) -> Iterator[Mistake]:
    if same.moves(value, same.tokens(value)):
        yield _mistake(
            subject,
            same,
            value,
            "AS702",
            "the value is rotated: the same vector becomes another at each position",
            "rotate the query and the key only",
        )
    for one in (query, key):
        if not same.moves(one, same.tokens(one)):
            for letter, axis in same.others(one):
                if same.moves(one, axis):
                    yield _mistake(
                        subject,
                        same,
                        one,
                        "AS701",
                        f"the {one.role} is rotated along {letter}: the same vector becomes another in each of these, "
                        "and the same at each position",
                        "take positions from the axis of tokens",
                    )
    for one in (query, key):
        lengths = same.lengths(one)
        if float((lengths - lengths[0]).abs().max()) > _SAME * float(lengths[0].abs()) and not _cache_rows(same, one):
            yield _mistake(
                subject,
                same,
                one,
                "AS704",
                f"the {one.role} isn't rotated: its length changes with its position, as where layouts are mixed",
                "repeat the angles as the pairs lie: cat for halves, repeat_interleave for neighbours",
                at=_doubled(subject, same, one),
            )
    yield from _layouts(subject, same, query, key)
    yield from _offsets(subject, same, query, key)


def _cache_rows(same: Uniform, one: Operand) -> bool:
    return same.new_rows(one) < one.value.shape[same.tokens(one) or 0]


def _layouts(subject: Subject, same: Uniform, query: Operand, key: Operand) -> Iterator[Mistake]:
    claimed = subject.claims.rope
    partners = {one.role: same.partner(subject, one) for one in (query, key)}
    wrong = [one for one in (query, key) if (p := partners[one.role]) is not None and (p == 1) == (claimed == "half")]
    for one in wrong:
        found = "interleaved" if claimed == "half" else "half"
        yield _mistake(
            subject,
            same,
            one,
            "AS704",
            f"the {one.role}'s feature 0 is rotated with feature {partners[one.role]}: layout {found}, expected "
            f"{claimed}",
            "pair feature i with i + Dk/2" if claimed == "half" else "pair feature 2i with 2i + 1",
            # where both are wrong, it is what they call that is wrong, not how one of them calls it
            inside=len(wrong) == 2,
        )


def _offsets(subject: Subject, same: Uniform, query: Operand, key: Operand) -> Iterator[Mistake]:
    """Compare each query with the key at its own position: rotated by one angle, they are the same vector."""
    q, k = same.rows(query), same.rows(key)
    if q is None or k is None or q.shape[-1] != k.shape[-1]:
        return
    aligned = k.shape[0] - q.shape[0]
    cosine = torch.nn.functional.normalize(q, dim=-1) @ torch.nn.functional.normalize(k, dim=-1).T
    rows = torch.arange(q.shape[0])
    new = same.new_rows(key)
    own = rows[rows + aligned >= k.shape[0] - new]
    if not own.numel() or bool((cosine[own, own + aligned] > 1 - _SAME).all()):
        if _doubly(same, key, cosine):
            yield _mistake(
                subject,
                same,
                key,
                "AS705",
                "cached keys are rotated again: the score of a query and a key doesn't depend on their distance only",
                "rotate a key once, when it enters the cache",
            )
        return
    shifts = [
        shift
        for shift in range(-k.shape[0], k.shape[0])
        if shift and _agree(cosine, own, aligned + shift, k.shape[0] - new)
    ]
    by = f"by {shifts[0]:+d} positions" if shifts else "by positions of another count"
    from_zero = _starts_at_zero(same, query) and not _starts_at_zero(same, key)
    shifted = query if from_zero and "Lp" in subject.numbers else key
    yield _mistake(
        subject,
        same,
        shifted,
        "AS703",
        f"query and key are rotated with different offsets, {by}: at one position they are different vectors",
        "rotate both by the same positions: with a cache both begin at Lp",
    )


def _starts_at_zero(same: Uniform, one: Operand) -> bool:
    """Say whether the first new token isn't rotated."""
    rows = same.rows(one)
    if rows is None:
        return False
    first = rows[rows.shape[0] - same.new_rows(one)]
    return bool(torch.isclose(first, same.vector * (first[0] / same.vector[0]), rtol=1e-6).all())


def _agree(cosine: Tensor, own: Tensor, offset: int, first: int) -> bool:
    inside = own[(own + offset >= first) & (own + offset < cosine.shape[1])]
    return inside.numel() > 1 and bool((cosine[inside, inside + offset] > 1 - _SAME).all())


def _doubly(same: Uniform, key: Operand, cosine: Tensor) -> bool:
    """Say whether the products of keys with one vector at every position don't depend on the distance only."""
    if same.new_rows(key) < cosine.shape[1]:
        return False
    return bool(((cosine[1:, 1:] - cosine[:-1, :-1]).abs() > _SAME).any())


def _cached(subject: Subject) -> Iterator[Outcome]:
    """Compare the keys that a call hands on with those that it was given: a cache's own rows must stay as they are."""
    past = subject.numbers.get("Lp", 0)
    if past < 2:
        return
    for name, value in (*subject.base.inputs.items(), *subject.base.state.items()):
        if past not in value.shape or value.ndim < 3:
            continue
        axis = list(value.shape).index(past)
        for _, returned in subject.base.returned:
            rows = _first_rows(returned, value, axis, past)
            if rows is None or bool(torch.isclose(rows, value, rtol=1e-6).all()) or not _same_lengths(rows, value):
                continue
            at = _behind_joining(subject, name)
            yield Mistake(
                code="AS705",
                message=f"cached keys are rotated again: those of {name} are handed on rotated once more",
                at=at,
                place=entering(subject, at) if at is not None else None,
                hint="rotate a key once, when it enters the cache: torch.cat((past_key, rotate(k)), dim=2)",
                evidence=f"compared {name} with the first {past} keys that are returned",
            )
            return


def _first_rows(returned: Tensor, value: Tensor, axis: int, past: int) -> Tensor | None:
    """Return the rows of a longer cache that stand for those of a given one."""
    if returned.ndim != value.ndim or returned.shape[axis] <= past:
        return None
    rows = returned.narrow(axis, 0, past)
    return rows if rows.shape == value.shape else None


def _behind_joining(subject: Subject, name: str) -> Address | None:
    """Return the first call that computes with what a cache and new keys were joined to."""
    joined = {address for address in subject.flow.downstream({name}) if subject.base.event(address).name in JOINS}
    behind = {address for start in joined for address in subject.flow.behind(start)}
    later = sorted(address for address in behind - joined if subject.base.event(address).name not in MOVES)
    return later[0] if later else None


def _same_lengths(a: Tensor, b: Tensor) -> bool:
    return bool(torch.isclose(a.square().sum(-1), b.square().sum(-1), rtol=1e-6).all())


def _mistake(
    subject: Subject,
    same: Uniform,
    one: Operand,
    code: str,
    message: str,
    hint: str,
    inside: bool = False,
    at: Address | None = None,
) -> Mistake:
    inside = inside or at is not None
    at = at or same.first_moved(subject, one) or Address(one.event.order)
    if inside:
        at = _paired(subject, at)
    return Mistake(
        code=code,
        message=message,
        at=at,
        place=None if inside else entering(subject, at),
        hint=hint,
        evidence="gave every token, head and batch element the same vector",
    )


def _doubled(subject: Subject, same: Uniform, one: Operand) -> Address | None:
    """Return the call that repeats the angles for both features of a pair."""
    at = same.first_moved(subject, one)
    if at is None:
        return None
    data = subject.flow.depends_on_data
    for sources in subject.base.event(at).sources:
        for event in subject.flow.upstream(sources):
            if event.addresses[0] not in data and event.name in ("repeat_interleave", "cat", "repeat", "tile", "stack"):
                return event.addresses[0]
    return None


def _paired(subject: Subject, at: Address) -> Address:
    """Return the call that makes pairs of features, where one does before they are rotated."""
    event = subject.base.event(at)
    for sources in event.sources:
        source = sources[-1]
        if isinstance(source, Address) and subject.base.event(source).name in ("complex", "view_as_complex"):
            return source
    return at

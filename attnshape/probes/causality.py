"""Whether queries see the keys up to their own position, and no later ones."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import torch

from attnshape.attention.following import along, partings
from attnshape.attention.kinds import JOINS
from attnshape.attention.mask_lines import MaskLines
from attnshape.attention.operands import operands
from attnshape.attention.outcome import Measured, Mistake, Outcome, Proved
from attnshape.attention.seen import Explained
from attnshape.attention.sights import sights
from attnshape.attention.subject import Subject
from attnshape.replaying.bench import Change
from attnshape.replaying.replay import Address

CODES = ("AS501", "AS502", "AS503", "AS504", "AS505")
WHAT = "causality"


def examine(subject: Subject) -> Iterator[Outcome]:
    """Compare which keys are seen with a triangle at each offset, and with windows of each width."""
    outcomes = list(_outcomes(subject))
    wrong = any(isinstance(one, Mistake) for one in outcomes)
    yield from (one for one in outcomes if not (wrong and isinstance(one, Proved)))


def _outcomes(subject: Subject) -> Iterator[Outcome]:
    explained, _ = sights(subject)
    yield from _as_a_whole(subject, explained)
    for one in explained:
        claims = subject.claims
        if one.seen.is_weak:
            continue
        if one.hypothesis is None:
            yield from _unexplained(subject, one)
            continue
        if not claims.causal and claims.window is None:
            yield from _facts(subject, one)
            continue
        yield from _judged(subject, one)


def _as_a_whole(subject: Subject, explained: list[Explained]) -> Iterator[Outcome]:
    """Change a token, and see whether earlier positions of the result move: through attention or beside it."""
    if not subject.claims.causal:
        return
    for letter in subject.lengths:
        number = subject.numbers[letter]
        changes = {index: subject.at_index(letter, index) for index in (number // 2, number - 1)}
        for index, change in changes.items():
            moved = subject.moved(Change(inputs=change))
            if not change or not moved.comparable:
                continue
            earlier = [
                min(along(mask, axis))
                for _, mask in moved.returned()
                for axis, size in enumerate(mask.shape)
                if size == number and mask.any() and mask.shape.count(size) == 1
            ]
            if not earlier or min(earlier) >= index:
                continue
            if any(one.hypothesis != one.right for one in explained):
                return  # attention itself lets it through, which is told apart
            parted = partings(moved, letter, index, subject.numbers, change)
            at = next((one.address for one in parted if one.found and one.found[0] < index), None)
            yield _mistake(
                "AS501",
                f"the future leaks beside attention: token {index} reaches position {min(earlier)}",
                at,
                "let a position's numbers depend on earlier positions only",
                f"changed token {index} of {next(iter(change))}",
            )
            return


def _unexplained(subject: Subject, one: Explained) -> Iterator[Mistake]:
    """Judge keys that no triangle explains: whether any is later than its query."""
    queries, keys = one.seen.keys.shape[-2:]
    lengths = {subject.numbers[letter] for letter in subject.lengths}
    known = lengths | {subject.numbers.get("Lp", 0) + length for length in lengths}
    if not subject.claims.causal or queries not in lengths or keys not in known:
        return  # blocks of queries and keys
    later = torch.ones(queries, keys, dtype=torch.bool).triu(keys - queries + 1)
    leaks = one.seen.keys & later & ~one.seen.empty.unsqueeze(-1)
    if bool(leaks.any()):
        yield _mistake(
            "AS501",
            f"the future leaks: {int(leaks.any(0).any(0).sum())} pairs of a query and a later key get weight",
            MaskLines(subject, one.seen.core).triangle(),
            "keep keys with j <= i",
        )


def _are_whole(subject: Subject, one: Explained) -> bool:
    """Say whether the queries and keys of a core are those of a whole sequence or image: not of a block of it."""
    lengths = [subject.numbers[letter] for letter in subject.lengths]
    past = subject.numbers.get("Lp", 0)
    known = {math.prod(some) for count in (1, 2) for some in itertools.combinations(lengths, count)}
    known |= {past + length for length in lengths}
    return set(one.seen.keys.shape[-2:]) <= known


def _facts(subject: Subject, one: Explained) -> Iterator[Outcome]:
    """Say what is seen where nothing is claimed."""
    found = one.hypothesis
    queries, keys = one.seen.keys.shape[-2:]
    if found is None or found.backwards:
        return
    if found.window is not None:
        both = "" if found.offset is not None else " before and behind"
        yield Measured(f"window of {found.window} keys{both}" + (", causally" if found.offset is not None else ""))
    elif found.offset == keys - queries:
        yield Measured("attends causally")
    elif found.offset is None and not found.masks and _are_whole(subject, one):
        yield Measured("every query sees every key")
    elif found.offset is not None:
        yield Measured(f"a query i sees keys up to i{found.offset:+d}")


def _judged(subject: Subject, one: Explained) -> Iterator[Outcome]:
    found, right = one.hypothesis, one.right
    queries, keys = one.seen.keys.shape[-2:]
    lines = MaskLines(subject, one.seen.core)
    assert found is not None
    if right.offset is not None and (found.offset != right.offset or found.backwards):
        yield _offset(subject, found.offset, found.backwards, queries, keys, lines)
    elif right.offset is not None:
        yield Proved("attends causally")
    if right.window is not None and found.window != right.window:
        width = "all keys" if found.window is None else f"{found.window} keys"
        yield _mistake(
            "AS505",
            f"a query sees a window of {width}, expected {_window(subject, right.window)}",
            lines.triangle(),
            "keep keys with 0 <= i - j < W",
        )
    elif right.window is not None:
        yield Proved(f"window of {subject.claims.window.text if subject.claims.window else ''} keys")


def _window(subject: Subject, number: int) -> str:
    text = subject.claims.window.text if subject.claims.window is not None else ""
    return str(number) if text == str(number) else f"{text} = {number}"


def _offset(
    subject: Subject, offset: int | None, backwards: bool, queries: int, keys: int, lines: MaskLines
) -> Mistake:
    aligned = keys - queries
    at = lines.triangle()
    if backwards:
        return _mistake(
            "AS501",
            "the mask is the wrong way round: queries see the future, and not the past",
            at,
            "keep the lower triangle: torch.ones(L, L).tril()",
        )
    if offset is None or offset >= keys - 1:
        if aligned > 0 and ("Lp" in subject.numbers or _joins_keys(subject)):
            return _mistake(
                "AS504",
                "with cached keys there is no causal mask: queries see the future",
                at,
                "mask with .tril(diagonal=Lk - Lq) whether or not there is a cache",
            )
        return _mistake("AS501", "there is no causal mask: queries see the future", at, "mask with .tril()")
    if aligned != 0 and offset == 0:
        return _mistake(
            "AS503",
            "the causal mask is aligned with the first keys: where keys are more than queries, the last query must "
            "see the last key",
            at,
            "shift it: .tril(diagonal=Lk - Lq)",
        )
    if offset > aligned:
        by = offset - aligned
        return _mistake(
            "AS501",
            f"the future leaks: a query sees up to {by} position{'s' if by > 1 else ''} later than its own",
            at,
            "keep keys with j <= i",
        )
    if offset == aligned - 1:
        return _mistake("AS502", "a query doesn't see its own position", at, "keep keys with j <= i, the diagonal too")
    return _mistake(
        "AS503", f"the causal mask is shifted by {offset - aligned} positions", at, "align it: .tril(diagonal=Lk - Lq)"
    )


def _joins_keys(subject: Subject) -> bool:
    """Say whether keys are put together from several calls, as from a cache and new ones."""
    keys = [one for one in operands(subject) if one.role == "key"]
    return any(event.name in JOINS for one in keys for event in subject.flow.upstream(one.sources))


def _mistake(code: str, message: str, at: Address | None, hint: str, changed: str = "") -> Mistake:
    return Mistake(
        code=code,
        message=message,
        at=at,
        hint=hint,
        shown="intervention" if changed else "reproduced",
        evidence=changed
        or "put 0 in the place of the scores, and read which keys get weight: those that this mistake leaves",
    )

"""Whether queries see the keys up to their own position, and no later ones."""

from __future__ import annotations

from collections.abc import Iterator

from attnshape.attention.mask_lines import MaskLines
from attnshape.attention.outcome import Measured, Mistake, Outcome, Proved
from attnshape.attention.seen import Explained
from attnshape.attention.sights import sights
from attnshape.attention.subject import Subject
from attnshape.replaying.replay import Address

CODES = ("AS501", "AS502", "AS503", "AS504", "AS505")
WHAT = "causality"


def examine(subject: Subject) -> Iterator[Outcome]:
    """Compare which keys are seen with a triangle at each offset, and with windows of each width."""
    explained, _ = sights(subject)
    for one in explained:
        claims = subject.claims
        if one.hypothesis is None or one.seen.is_weak:
            continue
        if not claims.causal and claims.window is None:
            yield from _facts(one)
            continue
        yield from _judged(subject, one)


def _facts(one: Explained) -> Iterator[Outcome]:
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
    elif found.offset is None and not found.masks:
        yield Measured("every query sees every key")
    elif found.offset is not None:
        yield Measured(f"a query sees keys up to {found.offset} positions behind its own index")


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
            f"a query sees a window of {width}, expected {subject.claims.window.text if subject.claims.window else ''} "
            f"= {right.window}",
            lines.triangle(),
            "keep keys with 0 <= i - j < W",
        )
    elif right.window is not None:
        yield Proved(f"window of {subject.claims.window.text if subject.claims.window else ''} keys")


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
        if aligned > 0 and "Lp" in subject.numbers:
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
            f"the future leaks: a query sees up to {by} position{'s' if by > 1 else ''} behind its own",
            at,
            "keep keys with j <= i",
        )
    if offset == aligned - 1:
        return _mistake("AS502", "a query doesn't see its own position", at, "keep keys with j <= i, the diagonal too")
    return _mistake(
        "AS503", f"the causal mask is shifted by {offset - aligned} positions", at, "align it: .tril(diagonal=Lk - Lq)"
    )


def _mistake(code: str, message: str, at: Address, hint: str) -> Mistake:
    return Mistake(
        code=code,
        message=message,
        at=at,
        hint=hint,
        shown="reproduced",
        evidence="put 0 in the place of the scores; this mistake hides the very keys that are hidden",
    )

"""Whether what is added to the scores for positions is laid along the axes that it is meant for."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from attnshape.attention.mask_lines import MaskLines
from attnshape.attention.outcome import Measured, Mistake, NotExamined, Outcome, Proved
from attnshape.attention.seen import Explained
from attnshape.attention.sights import sights
from attnshape.attention.spread import Spread
from attnshape.attention.subject import Subject
from attnshape.replaying.replay import Address

CODES = ("AS706", "AS707")
WHAT = "biases"


def examine(subject: Subject) -> Iterator[Outcome]:
    """Put 0 in the place of the scores, and compare what is left with the bias laid along each axis."""
    claims = subject.claims
    names = [name for name, meaning in claims.arguments.items() if meaning in ("bias", "relative-bias")]
    if not names and not claims.alibi:
        return
    explained, unseen = sights(subject)
    for why in unseen:
        yield NotExamined(WHAT, why)
    for one in explained:
        lines = MaskLines(subject, one.seen.core)
        for name in names:
            yield _bias(subject, one, lines, name)
        if claims.alibi:
            yield _alibi(one, lines)


def _bias(subject: Subject, one: Explained, lines: MaskLines, name: str) -> Outcome:
    if name not in subject.base.inputs:
        return NotExamined(WHAT, f"{name} is claimed, but no such tensor is given")
    bias = subject.base.inputs[name].double()
    batch, heads, queries, keys = one.seen.added.shape
    spread = Spread(batch, heads, queries, keys)
    seen = one.seen.keys
    right = spread.laid_out(bias, spread.roles(tuple(bias.shape)))
    if right is None and subject.claims.arguments[name] == "relative-bias":
        return _table(spread, one, lines, name, bias)
    if right is None:
        return NotExamined(WHAT, f"what the axes of {name} stand for can't be told by their sizes")
    if _same(one.seen.added, right, seen):
        return Proved(f"{name} is added along its own axes")
    roles = spread.roles(tuple(bias.shape)) or []
    swap = {"q": "k", "k": "q"}
    swapped = spread.laid_out(bias, [swap.get(role, role) for role in roles])
    if swapped is not None and _same(one.seen.added, swapped, seen):
        if "q" in roles:
            return _mistake(
                "AS706", f"{name} is transposed: its queries lie along the keys", lines.transposed(name), _AS_IS
            )
        return _mistake("AS707", f"{name} is laid along the queries, expected the keys", lines.laid_out(name), _LAST)
    for outside in (True, False):
        if _same(one.seen.added, spread.misordered(right, outside), seen) or _same(
            one.seen.added, spread.heads_misordered(right, outside), seen
        ):
            message = f"{name} is repeated in another order than batch and heads are folded"
            return _mistake("AS707", message, lines.repeated(name), _FOLD)
    return NotExamined(WHAT, f"what is added isn't {name}, nor {name} along another axis")


_AS_IS = "add it as it is: queries before keys"
_LAST = "put the axis of keys last: bias[:, None, None, :]"
_FOLD = "repeat(B, 1, 1) where the batch is outside: bias[head] belongs to row batch*H + head"


def _table(spread: Spread, one: Explained, lines: MaskLines, name: str, table: Tensor) -> Outcome:
    """Judge a table with a row for each distance, from 1 - L to L - 1 as queries count less keys."""
    _, heads, queries, keys = one.seen.added.shape
    length = queries + keys - 1
    axis = next((a for a, size in enumerate(table.shape) if size == length), None)
    if axis is None or table.ndim > 2:
        return NotExamined(WHAT, f"what the axes of {name} stand for can't be told by their sizes")
    rows = table.movedim(axis, -1).reshape(-1, length)
    if rows.shape[0] not in (1, heads):
        return NotExamined(WHAT, f"{name} has other rows than one for each head")
    i, j = torch.arange(queries)[:, None], torch.arange(keys)[None, :]
    for forwards in (True, False):
        distance = (i - j + keys - 1) if forwards else (j - i + queries - 1)
        if _same(one.seen.added, rows[:, distance][None], one.seen.keys):
            if forwards:
                return Measured(f"{name} is read at the query's position less the key's")
            return Measured(f"{name} is read at the key's position less the query's", lines.first_difference(name))
    return NotExamined(WHAT, f"what is added isn't {name} at any distance")


def _alibi(one: Explained, lines: MaskLines) -> Outcome:
    """Look how what is added changes from one key to the next, up to the query."""
    added, seen = one.seen.added, one.seen.keys
    queries, keys = added.shape[-2:]
    past = torch.arange(keys)[None, 1:] <= torch.arange(queries)[:, None] + keys - queries
    both = seen[..., 1:] & seen[..., :-1] & past
    steps = (added[..., 1:] - added[..., :-1])[both]
    if not steps.numel():
        return NotExamined(WHAT, "no query sees two keys")
    if bool((steps > 0).all()):
        return Proved("the bias falls with distance, as ALiBi's")
    if bool((steps < 0).all()):
        return _mistake(
            "AS706",
            "the bias rises with distance: far keys are preferred to near ones",
            lines.constant(),
            "subtract slope * (i - j)",
        )
    if bool((steps == 0).all()) and bool((added[seen] != 0).any()):
        return _mistake(
            "AS707",
            "the bias is laid along the queries: it is the same for every key, and the softmax undoes it",
            lines.constant(),
            "lay positions along the keys: slopes[:, None, None] * positions[None, None, :]",
        )
    return NotExamined(WHAT, "what is added neither falls nor rises with distance")


def _same(added: Tensor, expected: Tensor, seen: Tensor) -> bool:
    return bool(torch.isclose(added, expected.expand_as(added), rtol=1e-5, atol=1e-7)[seen].all())


def _mistake(code: str, message: str, at: Address, hint: str) -> Mistake:
    return Mistake(
        code=code,
        message=message,
        at=at,
        hint=hint,
        shown="reproduced",
        evidence="put 0 in the place of the scores; laid like this, the bias is what is left",
    )

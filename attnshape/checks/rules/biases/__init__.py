"""Is the position bias added to the scores along the right axes?

ALiBi (Press et al. 2022, https://arxiv.org/abs/2108.12409, section 3) adds slope * (j - i) to the score of query i and
key j.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from attnshape.checks.attention.mistake_lines import MaskLines
from attnshape.checks.attention.subject import Subject
from attnshape.checks.attention.visibility import Explanation, MaskLayout, explain_visibility
from attnshape.checks.interventions.replay import OutputRef
from attnshape.checks.rules.protocol import Observation, Outcome, Undecided, Verification, Violation

CODES: tuple[str, ...] = ("AS706", "AS707")
TOPIC = "biases"


def check(subject: Subject) -> Iterator[Outcome]:
    """Set the scores to 0, and compare what is added to them with the bias along each axis."""
    claims = subject.claims
    names = [name for name, meaning in claims.arguments.items() if meaning in ("bias", "relative-bias")]
    if not names and not claims.alibi:
        return
    explained, unseen = explain_visibility(subject)
    for why in unseen:
        yield Undecided(TOPIC, why)
    for one in explained:
        lines = MaskLines(subject, one.visible.core)
        for name in names:
            yield _bias(subject, one, lines, name)
        if claims.alibi:
            yield _alibi(one, lines)


def _bias(subject: Subject, one: Explanation, lines: MaskLines, name: str) -> Outcome:
    if name not in subject.base.inputs:
        return Undecided(TOPIC, f"{name} is claimed, but there is no such input")
    bias = subject.base.inputs[name].double()
    batch, heads, queries, keys = one.visible.added.shape
    layout = MaskLayout(batch, heads, queries, keys)
    seen = one.visible.keys
    right = layout.lay_out(bias, layout.roles(tuple(bias.shape)))
    if right is None and subject.claims.arguments[name] == "relative-bias":
        return _table(layout, one, lines, name, bias)
    if right is None:
        return Undecided(TOPIC, f"the shape of {name} doesn't determine the meaning of its axes")
    if _same(one.visible.added, right, seen):
        return Verification(f"{name} is added along the right axes")
    roles = layout.roles(tuple(bias.shape)) or []
    swap = {"q": "k", "k": "q"}
    swapped = layout.lay_out(bias, [swap.get(role, role) for role in roles])
    if swapped is not None and _same(one.visible.added, swapped, seen):
        if "q" in roles:
            message = f"{name} is transposed: its query axis is aligned with the keys"
            return _violation(
                "AS706", message, lines.transposed(name), "remove the transpose: queries come before keys"
            )
        message = f"{name} is aligned with the query axis, expected the key axis"
        return _violation("AS707", message, lines.laid_out(name), "put the key axis last: bias[:, None, None, :]")
    for outside in (True, False):
        if _same(one.visible.added, layout.misordered(right, outside), seen) or _same(
            one.visible.added, layout.heads_misordered(right, outside), seen
        ):
            message = f"{name} is repeated in a different order than batch and heads are folded in"
            hint = "use repeat(B, 1, 1) for an axis (B H): bias[head] belongs to row batch*H + head"
            return _violation("AS707", message, lines.repeated(name), hint)
    return Undecided(TOPIC, f"what is added to the scores doesn't match {name} along any axis")


def _table(layout: MaskLayout, one: Explanation, lines: MaskLines, name: str, table: Tensor) -> Outcome:
    """Check a table of relative biases, with an entry for each distance from 1 - Lk to Lq - 1."""
    _, heads, queries, keys = one.visible.added.shape
    length = queries + keys - 1
    axis = next((a for a, size in enumerate(table.shape) if size == length), None)
    if axis is None or table.ndim > 2:
        return Undecided(TOPIC, f"the shape of {name} doesn't determine the meaning of its axes")
    rows = table.movedim(axis, -1).reshape(-1, length)
    if rows.shape[0] not in (1, heads):
        return Undecided(TOPIC, f"{name} has neither one row nor one for each head")
    i, j = torch.arange(queries)[:, None], torch.arange(keys)[None, :]
    for forwards in (True, False):
        distance = (i - j + keys - 1) if forwards else (j - i + queries - 1)
        if _same(one.visible.added, rows[:, distance][None], one.visible.keys):
            if forwards:
                return Observation(f"{name} is indexed by the query position minus the key position")
            text = f"{name} is indexed by the key position minus the query position"
            return Observation(text, lines.first_difference(name))
    return Undecided(TOPIC, f"what is added to the scores doesn't match {name} indexed by distance")


def _alibi(one: Explanation, lines: MaskLines) -> Outcome:
    """Look at how the bias changes from one key to the next, up to the query."""
    added, seen = one.visible.added, one.visible.keys
    queries, keys = added.shape[-2:]
    past = torch.arange(keys)[None, 1:] <= torch.arange(queries)[:, None] + keys - queries
    both = seen[..., 1:] & seen[..., :-1] & past
    steps = (added[..., 1:] - added[..., :-1])[both]
    if not steps.numel():
        return Undecided(TOPIC, "no query attends to two keys")
    if bool((steps > 0).all()):
        return Verification("the bias falls with distance, as in ALiBi")
    if bool((steps < 0).all()):
        message = "the bias rises with distance: it favours far keys over near ones"
        return _violation("AS706", message, lines.constant(), "subtract slope * (i - j)")
    if bool((steps == 0).all()) and bool((added[seen] != 0).any()):
        message = (
            "the bias is aligned with the query axis: it is equal for all keys of a query, so the softmax cancels it"
        )
        hint = "put the positions along the keys: slopes[:, None, None] * positions[None, None, :]"
        return _violation("AS707", message, lines.constant(), hint)
    return Undecided(TOPIC, "the bias neither falls nor rises with distance")


def _same(added: Tensor, expected: Tensor, seen: Tensor) -> bool:
    return bool(torch.isclose(added, expected.expand_as(added), rtol=1e-5, atol=1e-7)[seen].all())


def _violation(code: str, message: str, at: OutputRef, hint: str) -> Violation:
    return Violation(
        code=code,
        message=message,
        at=at,
        hint=hint,
        shown="reproduced",
        evidence="set the scores to 0, and read the bias at the softmax",
    )

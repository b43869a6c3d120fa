"""Whether the masks that are claimed hide the keys that they should."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from attnshape.attention.core import Core
from attnshape.attention.mask_lines import MaskLines
from attnshape.attention.measured import HIDES, distinct
from attnshape.attention.numbers import is_pattern, other_numbers
from attnshape.attention.outcome import Mistake, NotExamined, Outcome, Proved
from attnshape.attention.seen import Explained, Hypothesis, Slip
from attnshape.attention.sights import sights
from attnshape.attention.subject import Subject
from attnshape.probes.unused import unread
from attnshape.replaying.bench import Change
from attnshape.replaying.replay import Address

CODES = ("AS401", "AS402", "AS403", "AS404", "AS405", "AS406")
WHAT = "masks"
_SLIPS: dict[Slip, tuple[str, str, str]] = {
    "inverted": (
        "AS401",
        "hides what it should keep, and keeps what it should hide",
        "invert it: ~mask, or mask == 0 where True keeps",
    ),
    "on queries": ("AS402", "hides queries instead of keys", "put the axis of keys last: mask[:, None, None, :]"),
    "transposed": ("AS402", "is transposed: its axis of queries hides keys", "leave out the transpose"),
    "batch order": (
        "AS403",
        "is repeated in another order than batch and heads are folded",
        "repeat_interleave(H, dim=0) where the batch is outside, repeat where heads are",
    ),
    "batch order, heads outside": (
        "AS403",
        "is repeated in another order than heads and batch are folded",
        "repeat(H, 1, 1) where heads are outside, repeat_interleave where the batch is",
    ),
    "ignored": ("AS404", "has no effect: every key that it hides is seen", "apply it to the scores before the softmax"),
}


def examine(subject: Subject) -> Iterator[Outcome]:
    """Put 0 in the place of the scores, and read at the softmax which keys are hidden."""
    explained, unseen = sights(subject)
    for why in unseen:
        yield NotExamined(WHAT, why)
    masks = [name for name, meaning in subject.claims.arguments.items() if meaning in ("keep", "drop", "add")]
    if not explained and not unseen:
        yield NotExamined(WHAT, "no attention with a softmax was found")
    elif not masks and any(map(is_pattern, subject.base.inputs.values())):
        yield NotExamined("what masks mean", "none is claimed: --claim mask=keep, mask=drop or mask=add")
    for name in masks:
        if name not in subject.base.inputs:
            yield NotExamined(WHAT, f"{name} is claimed, but no such tensor is given")
    for one in explained:
        yield from _of_core(subject, one)


def _of_core(subject: Subject, one: Explained) -> Iterator[Outcome]:
    lines = MaskLines(subject, one.seen.core)
    weak = _too_small(subject, one, lines)
    if weak is not None:
        yield weak
        return
    rows = _empty_rows(subject, one, lines)
    if rows is not None:
        yield rows
    if one.hypothesis is None:
        why = "which keys are seen is explained by nothing that is claimed, and by no known mistake"
        yield NotExamined(WHAT, why if one.right != Hypothesis() else "keys are hidden by what is not claimed")
        return
    for name, slip in one.hypothesis.masks:
        if slip is None:
            yield Proved(f"{name} hides the keys that it should")
            continue
        if slip == "ignored" and isinstance(one.seen.core, Core) and any(unread(subject, one.seen.core)):
            continue
        code, what, hint = _SLIPS[slip]
        yield _mistake(code, f"{name} {what}", _line(lines, name, slip), hint)


def _line(lines: MaskLines, name: str, slip: Slip) -> Address:
    if slip == "inverted":
        return lines.turned(name)
    if slip == "transposed":
        return lines.transposed(name)
    if slip == "on queries":
        return lines.laid_out(name)
    return lines.softmax if slip == "ignored" else lines.repeated(name)


def _too_small(subject: Subject, one: Explained, lines: MaskLines) -> Mistake | None:
    """Find scores that are replaced, or lowered, by a number that leaves them weight."""
    seen = one.seen
    if "dropout" in subject.claims.arguments.values():
        return None  # a dropped score is no masked one
    if seen.is_weak and _is_constant(subject, one):
        fills = distinct(seen.added[seen.weak])
        at = next((event.addresses[0] for event in lines.applying if _replaces(event.name)), lines.softmax)
        return _mistake(
            "AS405",
            f"masked scores become {fills[0]:.4g}, which leaves their keys weight",
            at,
            "fill with -inf: scores.masked_fill(~mask, -torch.inf)",
        )
    expected = one.wanted
    if expected is None or one.hypothesis == one.right:
        return None
    hidden = ~expected & ~seen.empty.unsqueeze(-1) & expected.any(-1, keepdim=True)
    if not bool(hidden.any()) or not bool(seen.keys[hidden].all()):
        return None
    fills, kept = distinct(seen.added[hidden]), distinct(seen.added[expected])
    if len(fills) != 1 or len(kept) != 1 or not HIDES < fills[0] < kept[0]:
        return None
    names = [name for name, _ in one.right.masks]
    return _mistake(
        "AS405",
        f"{fills[0]:.4g} is added to masked scores, which leaves their keys weight",
        lines.turned(names[0]) if names else lines.triangle(),
        "add -inf, or the dtype's smallest number: torch.finfo(scores.dtype).min",
    )


def _is_constant(subject: Subject, one: Explained) -> bool:
    """Say whether the scores that were replaced are the same number whatever the inputs are."""
    core = one.seen.core
    fills = distinct(one.seen.added[one.seen.weak])
    if not isinstance(core, Core) or len(fills) != 1:
        return False
    run = subject.bench.run(Change(inputs=dict.fromkeys(subject.inputs, other_numbers)))
    if not run.follows(subject.base):
        return False
    before, after = core.softmax.given, run.events[core.softmax.owner.order - 1].given[core.softmax.place]
    same = torch.isclose(before, after, rtol=1e-9, atol=1e-12)
    return bool((same & torch.isclose(before.double(), torch.tensor(fills[0], dtype=torch.float64))).any())


def _replaces(name: str) -> bool:
    return name in (
        "masked_fill",
        "masked_fill_",
        "where",
        "mul",
        "mul_",
        "tril",
        "triu",
        "tril_",
        "triu_",
        "__setitem__",
    )


def _empty_rows(subject: Subject, one: Explained, lines: MaskLines) -> Mistake | None:
    """Find rows without a key whose context isn't zero."""
    if not subject.claims.zero_masked_rows or one.context is None:
        return None
    expected = one.wanted
    if expected is None:
        return None
    empty = ~expected.any(-1)
    if not bool(empty.any()):
        return None
    contexts = one.context[empty]
    if not bool(((contexts != 0) | torch.isnan(contexts)).any()) or not _reaches(subject, one, empty):
        return None
    what = "not a number" if bool(torch.isnan(contexts).any()) else "the mean of all values"
    names = [name for name, _ in one.right.masks]
    fused = lines.turned(names[0]) if names and not hasattr(one.seen.core, "softmax") else lines.softmax
    return _mistake(
        "AS406",
        f"a query without any key gets {what}, expected zeros",
        fused,
        "put the weights of such rows to 0 behind the softmax: weights.masked_fill(~mask, 0)",
    )


def _reaches(subject: Subject, one: Explained, empty: Tensor) -> bool:
    """Say whether what such rows hold gets into the target's results."""
    context = subject.base.value(one.seen.core.context)
    rows = empty.reshape(*context.shape[:-1], 1).expand_as(context)
    if bool(torch.isnan(context[rows]).any()):
        return any(bool(torch.isnan(value).any()) for _, value in subject.base.returned)
    change = {one.seen.core.context: lambda t: torch.where(rows, other_numbers(t), t)}
    return any(bool(mask.any()) for _, mask in subject.moved(Change(results=change)).returned())


def _mistake(code: str, message: str, at: Address, hint: str) -> Mistake:
    return Mistake(
        code=code,
        message=message,
        at=at,
        hint=hint,
        shown="reproduced",
        evidence="put 0 in the place of the scores, and read which keys get weight: those that this mistake leaves",
    )

"""Whether the features of one head lie next to each other in the projection that it is cut out of."""

from __future__ import annotations

from collections.abc import Iterator

from attnshape.attention.following import along, differs
from attnshape.attention.numbers import others_at
from attnshape.attention.operands import Operand, operands, projection
from attnshape.attention.outcome import Mistake, NotExamined, Outcome, Proved
from attnshape.attention.subject import Subject
from attnshape.replaying.bench import Change, Run
from attnshape.replaying.replay import Address

CODES = ("AS112",)
WHAT = "splitting of heads"


def examine(subject: Subject) -> Iterator[Outcome]:
    """Change two neighbouring features of each projection, and see to which heads they go."""
    if subject.numbers.get("H", 0) < 2:
        yield NotExamined(WHAT, "there is one head")
        return
    wanted = [
        (operand, made)
        for operand in operands(subject)
        if (made := projection(subject, operand.sources)) is not None and _head_axis(subject, operand) is not None
    ]
    if not wanted:
        yield NotExamined(WHAT, "no query, key or value is cut out of a projection into an axis of heads")
        return
    widths = {made: subject.base.value(made).shape[-1] for _, made in wanted}
    shares = {made: sum(1 for _, other in wanted if other == made) for made in widths}
    first, second = ([_with_feature(subject, widths, shares, part, at) for part in range(3)] for at in (0, 1))
    judged = 0
    for operand, made in wanted:
        for part in range(3 if shares[made] > 1 else 1):
            runs = (first[part], second[part])
            if not all(run.follows(subject.base) for run in runs):
                continue
            found = [_heads(subject, operand, run) for run in runs]
            if not all(len(one) == 1 for one in found):
                continue
            judged += 1
            if found[0] != found[1]:
                yield _mistake(subject, operand, made)
                return
    if judged:
        yield Proved("each head's features lie next to each other")
    else:
        yield NotExamined(WHAT, "what lies between projections and scores mixes heads")


def _with_feature(subject: Subject, widths: dict[Address, int], shares: dict[Address, int], part: int, at: int) -> Run:
    """Return a run with one feature of each projection changed, in one third of it where it is shared."""

    results = {
        made: others_at(-1, (width // 3 * part if shares[made] > 1 else 0) + at)
        for made, width in widths.items()
        if part == 0 or shares[made] > 1
    }
    return subject.bench.run(Change(results=results)) if results else subject.base


def _head_axis(subject: Subject, operand: Operand) -> int | None:
    """Return the axis of heads, or the one that they are folded into."""
    shape = operand.value.shape
    heads = (subject.numbers["H"], subject.numbers.get("Hkv"))
    exact = next((axis for axis, size in enumerate(shape) if size in heads), None)
    if exact is not None:
        return exact
    folded = subject.numbers["H"] * subject.numbers.get(subject.batch or "", 0)
    return next((axis for axis, size in enumerate(shape) if size == folded), None)


def _heads(subject: Subject, operand: Operand, run: Run) -> set[int]:
    """Return the heads of an operand that have moved."""
    axis = _head_axis(subject, operand)
    assert axis is not None
    mask = differs(operand.value, operand.of(run), subject.bench.tolerance)
    size = operand.value.shape[axis]
    heads = subject.numbers["H"]
    found = along(mask, axis)
    if size <= heads:
        return found
    by_fold = ({one % heads for one in found}, {one // (size // heads) for one in found})
    return min(by_fold, key=len)


def _mistake(subject: Subject, operand: Operand, made: Address) -> Mistake:
    heads = subject.numbers["H"]
    split = next(
        (
            event
            for event in subject.base.events[made.order :]
            if heads in event.values[0].shape and event.addresses[0] in subject.flow.behind(made)
        ),
        None,
    )
    return Mistake(
        code="AS112",
        message=f"heads are split with the widths in the wrong order: neighbouring features of the {operand.role}'s "
        "projection go to different heads",
        at=split.addresses[0] if split is not None else made,
        hint=".view(B, L, H, Dk), heads before their width",
        evidence="changed features 0 and 1 of the projection",
    )

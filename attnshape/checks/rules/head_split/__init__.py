"""Does each head get a block of adjacent features of the projection?"""

from __future__ import annotations

from collections.abc import Iterator

from attnshape.checks.attention.operands import AttentionOperand, operands, projection
from attnshape.checks.attention.perturbation import changed_indices, differs, others_at
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Intervention, ReplayRun
from attnshape.checks.interventions.replay import OutputRef
from attnshape.checks.rules.protocol import Outcome, Undecided, Verification, Violation

CODES: tuple[str, ...] = ("AS112",)
TOPIC = "splitting of heads"


def check(subject: Subject) -> Iterator[Outcome]:
    """Change two adjacent features of each projection, and look at which heads they end up in."""
    if subject.numbers.get("H", 0) < 2:
        yield Undecided(TOPIC, "there is only one head")
        return
    wanted = [
        (operand, ref)
        for operand in operands(subject)
        if (ref := projection(subject, operand.sources)) is not None and _head_axis(subject, operand) is not None
    ]
    if not wanted:
        yield Undecided(TOPIC, "no projection of queries, keys or values is split into an axis of heads")
        return
    widths = {ref: subject.base.value(ref).shape[-1] for _, ref in wanted}
    shares = {ref: sum(1 for _, other in wanted if other == ref) for ref in widths}
    first, second = ([_with_feature(subject, widths, shares, part, at) for part in range(3)] for at in (0, 1))
    judged = False
    for operand, ref in wanted:
        for runs in list(zip(first, second, strict=True))[: 3 if shares[ref] > 1 else 1]:
            if not all(run.follows(subject.base) for run in runs):
                continue
            one, other = (_heads(subject, operand, run) for run in runs)
            if len(one) == len(other) == 1:
                judged = True
                if one != other:
                    yield _violation(subject, operand, ref)
                    return
    if judged:
        yield Verification("each head gets adjacent features of its projection")
    else:
        yield Undecided(TOPIC, "the code between projections and scores mixes heads")


def _with_feature(
    subject: Subject, widths: dict[OutputRef, int], shares: dict[OutputRef, int], part: int, at: int
) -> ReplayRun:
    """Return a run with one feature of each projection changed: of each fused projection, in one third of it."""
    results = {
        ref: others_at(-1, (width // 3 * part if shares[ref] > 1 else 0) + at)
        for ref, width in widths.items()
        if part == 0 or shares[ref] > 1
    }
    return subject.experiment.run(Intervention(results=results)) if results else subject.base


def _head_axis(subject: Subject, operand: AttentionOperand) -> int | None:
    """Return the head axis, or the axis that heads are folded into."""
    heads = (subject.numbers["H"], subject.numbers.get("Hkv"))
    exact = [axis for axis, size in enumerate(operand.value.shape) if size in heads]
    folded = [axis for axis, size in enumerate(operand.value.shape) if size == heads[0] * subject.batch_size]
    return next(iter(exact + folded), None)


def _heads(subject: Subject, operand: AttentionOperand, run: ReplayRun) -> set[int]:
    """Return the heads of an operand that differ in a run."""
    axis = _head_axis(subject, operand)
    assert axis is not None
    mask = differs(operand.value, operand.of(run), subject.experiment.tolerance)
    heads, changed = subject.numbers["H"], changed_indices(mask, axis)
    if mask.shape[axis] <= heads:
        return changed
    inside, outside = {row % heads for row in changed}, {row // (mask.shape[axis] // heads) for row in changed}
    return min(inside, outside, key=len)


def _violation(subject: Subject, operand: AttentionOperand, ref: OutputRef) -> Violation:
    downstream = subject.graph.downstream_of(ref)
    later = (event for event in subject.base.events[ref.order :] if event.refs[0] in downstream)
    split = next((event.refs[0] for event in later if subject.numbers["H"] in event.values[0].shape), ref)
    features = f"adjacent features of the {operand.role} projection end up in different heads"
    message = f"heads are split with H and Dk in the wrong order: {features}"
    hint = "put the heads before their width: .view(B, L, H, Dk)"
    return Violation("AS112", message, split, hint, "changed features 0 and 1 of the projection")

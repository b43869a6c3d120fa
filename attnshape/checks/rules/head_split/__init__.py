"""Does each head get a block of adjacent features of the projection, and no other head a part of it?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from torch import Tensor

from attnshape.checks.attention.operands import AttentionOperand, operands, projection, without_iterations
from attnshape.checks.attention.perturbation import changed_indices, differs, others_at
from attnshape.checks.attention.simultaneous import SimultaneousRun
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Intervention, ReplayRun
from attnshape.checks.interventions.replay import OutputRef, Replace
from attnshape.checks.rules.head_split.overlaps import overlapping
from attnshape.checks.rules.head_split.scattered import Scattered, keeps_all_vectors
from attnshape.checks.rules.protocol import Outcome, Undecided, Verification, Violation

CODES: tuple[str, ...] = ("AS105", "AS111", "AS112", "AS113", "AS121")
TOPIC = "splitting of heads"
_TOGETHER = "the features of a token stay together in queries, keys and values"
_ADJACENT = "each head gets adjacent features of its projection"


def check(subject: Subject) -> Iterator[Outcome]:
    """Follow the features of each token to queries, keys and values, and features to heads."""
    yield from _tokens(subject)
    overlap = overlapping(subject)
    if overlap is not None:
        yield overlap
        return
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
    whole = [_with_feature(subject, widths, shares, at) for at in (0, 1)]
    if _are_adjacent(subject, wanted, whole):
        yield Verification(_ADJACENT)
        return
    if max(shares.values()) > 1:
        first, second = ([_with_feature(subject, widths, shares, at, part) for part in range(3)] for at in (0, 1))
    else:  # there are no parts
        first, second = ([run] for run in whole)
    judged = False
    for operand, ref in wanted:
        for runs in list(zip(first, second, strict=True))[: 3 if shares[ref] > 1 else 1]:
            if not all(run.is_apart(ref) for run in runs):
                continue
            one, other = (_heads(subject, operand, each.run) for each in runs)
            if len(one) == len(other) == 1:
                judged = True
                if one != other:
                    yield _violation(subject, operand, ref)
                    return
    if judged:
        yield Verification(_ADJACENT)
    else:
        yield Undecided(TOPIC, "the code between projections and scores mixes heads")


def _tokens(subject: Subject) -> Iterator[Outcome]:
    """Look at whether the features of one token stay together between its projection and attention."""
    found = [each for attention in without_iterations(subject) for each in keeps_all_vectors(subject, attention)]
    scattered = next((one for one in found if isinstance(one, Scattered)), None)
    if scattered is not None:
        yield _scattered(subject, scattered)
    elif found and all(found):
        yield Verification(_TOGETHER)


def _scattered(subject: Subject, found: Scattered) -> Violation:
    indices = ", ".join(map(str, found.indices[:6])) + (", …" if len(found.indices) > 6 else "")
    where = f"the features of one token end up at indices {indices} of axis {found.axis} of the {found.operand.role}"
    code, what = "AS105", "a layout operation scrambles tokens"
    hint = "transpose first; reshape may only split an axis or merge adjacent ones"
    if found.cut:
        code, what = "AS113", "the fused projection is cut along the wrong axis"
        hint = "cut the axis of the features: query, key, value = qkv.chunk(3, dim=-1)"
    elif subject.head_sizes & set(found.operand.value.shape):
        code, what = "AS111", "heads are split without a transpose"
        hint = ".view(B, L, H, Dk).transpose(1, 2)"
    return Violation(
        code, f"{what}: {where}", found.at, hint, "replaced the projection by numbers that say where they are"
    )


def _with_feature(
    subject: Subject, widths: dict[OutputRef, int], shares: dict[OutputRef, int], at: int, part: int | None = None
) -> SimultaneousRun:
    """Return a run with one feature of each projection changed.

    Of a fused projection it is the feature of one third, else that of as many parts as operands share it.
    """
    results: dict[OutputRef, Replace] = {}
    for ref, width in widths.items():
        begins = [width // shares[ref] * which for which in range(shares[ref])]
        if part is not None and shares[ref] > 1:
            begins = [width // 3 * part]
        results[ref] = partial(_change_features, [begin + at for begin in begins])
    return subject.perturb_each(Intervention(results=results))


def _change_features(features: Sequence[int], value: Tensor) -> Tensor:
    for feature in features:
        value = others_at(-1, feature)(value)
    return value


def _are_adjacent(
    subject: Subject, wanted: Sequence[tuple[AttentionOperand, OutputRef]], runs: Sequence[SimultaneousRun]
) -> bool:
    """Return whether both features reach one and the same head of every operand."""
    for operand, ref in wanted:
        heads = [_heads(subject, operand, each.run) for each in runs if each.is_apart(ref)]
        if len(heads) != len(runs) or heads[0] != heads[1] or len(heads[0]) != 1:
            return False
    return True


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

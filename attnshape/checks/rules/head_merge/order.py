"""Do heads leave attention in the order in which they were split?

The output projection is trained for either order, so that another one matters only to weights of other code: of a
released checkpoint, or of a kernel that merges heads as they were split.
"""

from __future__ import annotations

from collections.abc import Mapping

from attnshape.checks.attention.cores import Core, FusedCore
from attnshape.checks.attention.layouts import layouts
from attnshape.checks.attention.operands import AttentionOperands, by_attention, head_change
from attnshape.checks.attention.perturbation import differs
from attnshape.checks.attention.simultaneous import SimultaneousRun
from attnshape.checks.attention.subject import Subject, once
from attnshape.checks.interventions.experiment import Intervention
from attnshape.checks.interventions.replay import OutputRef, ReplayedCall
from attnshape.checks.rules.protocol import Violation

_HEADS = (0, 1)
"""The heads that are followed: another order moves one of them, unless it moves only later ones."""


def judge_order(
    subject: Subject, core: Core | FusedCore, read: tuple[ReplayedCall, int], at: OutputRef
) -> Violation | None:
    """Return the notice about heads that are merged in another order than the query's projection has them.

    `read` is the operand of the projection that reads the merged heads, and `at` the call that merges them.
    """
    own = next((own for own in by_attention(subject) if own[0].core is core), None)
    if own is None:
        return None
    places = [_place(subject, own, run, read) for run in _runs(subject).values()]
    if len(places) < len(_HEADS) or None in places or len(set(places)) < len(places) or places == list(_HEADS):
        return None
    head, place = next((head, place) for head, place in zip(_HEADS, places, strict=True) if head != place)
    message = f"heads are merged in another order than they were split: head {head} of the queries becomes head {place}"
    hint = "merge the parts of the head axis in the order in which they were split: (n g d) from (n g d)"
    evidence = f"changed heads {_HEADS[0]} and {_HEADS[1]} in the projection of the queries"
    return Violation("AS604", message, at, hint, evidence, level="notice")


@once
def _runs(subject: Subject) -> Mapping[int, SimultaneousRun]:
    """Return for each of the heads the run in which it is changed in the queries of all attentions."""
    heads = subject.numbers.get("H", 0)
    runs: dict[int, SimultaneousRun] = {}
    for head in _HEADS if heads > 1 else ():
        changes = [head_change(subject, query, head, heads) for query, _, _ in by_attention(subject)]
        results = {ref: change for one in changes if one is not None for ref, change in one.results.items()}
        inputs = {name: change for one in changes if one is not None for name, change in one.inputs.items()}
        run = subject.perturb_each(Intervention(inputs=inputs, results=results))
        if run.run.follows(run.base):
            runs[head] = run
    return runs


def _place(
    subject: Subject,
    own: AttentionOperands,
    run: SimultaneousRun,
    read: tuple[ReplayedCall, int],
) -> int | None:
    """Return as which of the merged heads a head is read; None if it isn't one head alone."""
    query, *others = (differs(one.value, one.of(run.run), run.tolerance) for one in own)
    heads = subject.numbers["H"]
    # of a shared projection, what was changed may be something else than one head of the queries
    if int(query.sum()) * heads != query.numel() or any(bool(one.any()) for one in others):
        return None
    context: OutputRef = own[0].core.context
    followed = layouts(subject).followed(context, read)
    if followed is None:
        return None
    width, remainder = divmod(followed.shape[-1], heads)
    changed = followed.of(run.mask(context).flatten())
    features = set(followed.at([len(followed.shape) - 1])[changed].tolist())
    place = min(features, default=0) // max(width, 1)
    return place if not remainder and features == set(range(place * width, (place + 1) * width)) else None

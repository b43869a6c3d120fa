"""Are the heads' contexts merged token by token, one head after the other?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from attnshape.checks.attention.cores import Core, FusedCore, between, reaches_by_data_movement
from attnshape.checks.attention.perturbation import (
    Divergence,
    changed_indices,
    differs,
    divergences,
    other_numbers,
    others_at,
)
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Intervention
from attnshape.checks.interventions.replay import OutputRef, Producer, Replace, ReplayedCall
from attnshape.checks.rules.head_merge.followed import Merged, follow_contexts, torn_context
from attnshape.checks.rules.head_merge.order import judge_order
from attnshape.checks.rules.protocol import Outcome, Undecided, Verification, Violation
from attnshape.checks.rules.tokens import mixed, scrambles, where
from attnshape.tracing.operations import CASTS, DATA_MOVEMENT, DROPOUTS, JOINS, PRODUCTS

CODES: tuple[str, ...] = ("AS103", "AS104", "AS105", "AS114", "AS115", "AS604")
TOPIC = "merging of heads"


def check(subject: Subject) -> Iterator[Outcome]:
    """Change the context of one query, then of one head, and follow it to the output."""
    if not subject.attentions:
        yield Undecided(TOPIC, "no attention with a softmax was found")
        return
    merges = [merge for core in subject.attentions if (merge := _merge(subject, core)) is not None]
    by_tokens, by_heads = _tokens(subject), _heads(subject, merges)
    violations = (by_tokens.get(core.context) or by_heads.get(core.context) for core in subject.attentions)
    violation = next(filter(None, violations), None)
    if violation is not None:
        yield violation
        return
    for core in subject.attentions:
        followed = list(follow_contexts(subject, core)) if subject.numbers.get("H", 0) > 1 else []
        scattered = next((one for one in followed if one is not None and one.state == "scattered"), None)
        if scattered is not None:
            yield _scattered_heads(scattered)
            return
        if (reordered := _reordered_heads(subject, core)) is not None:
            yield reordered
            return
        torn = torn_context(subject, core)
        if torn is not None:
            yield _torn(torn)
            return
        in_order = bool(followed) and all(one is not None and one.state == "in order" for one in followed)
        compared = subject.numbers.get("H", 0) < 2 or any(_covers(merge, core) for merge in merges)
        if not in_order and (not compared or next(_query_axes(subject, core), None) is None):
            yield Undecided(TOPIC, "the code after attention couldn't be followed to where heads are merged")
            return
    yield Verification("heads are merged token by token, in order")


def _scattered_heads(merged: Merged) -> Violation:
    message = (
        "heads are merged without transposing back: the features of one query's heads end up apart, among those of "
        "other queries"
    )
    hint = "put heads and their features next to each other first: .transpose(1, 2).reshape(B, L, D), or "
    hint += ".transpose(-2, -1).reshape(B, D, height, width)"
    evidence = "replaced the contexts by numbers that say where they are"
    return Violation("AS114", message, merged.at, hint, evidence)


def _torn(at: OutputRef) -> Violation:
    message = (
        "a layout operation scrambles tokens: the features of one query end up apart, among those of other queries"
    )
    hint = "undo the steps before attention in the reverse order; reshape may only split an axis or merge adjacent ones"
    return Violation("AS105", message, at, hint, "replaced the contexts by numbers that say where they are")


@dataclass(frozen=True)
class _QueryAxis:
    """An axis of a context that stands for queries."""

    core: Core | FusedCore
    axis: int
    symbol: str


def _tokens(subject: Subject) -> dict[OutputRef, Violation]:
    """Change the context of one query in all attentions together, and return the violations by the context."""
    axes = [found for core in subject.attentions for found in _query_axes(subject, core)]
    found: dict[OutputRef, Violation] = {}
    while axes:
        # of each attention one axis at a time
        first = {one.core.context: one for one in reversed(axes) if one.symbol == axes[0].symbol}
        axes = [one for one in axes if one is not first.get(one.core.context)]
        for context, violation in _tokens_along(subject, list(first.values())):
            found.setdefault(context, violation)
    return found


def _tokens_along(subject: Subject, axes: Sequence[_QueryAxis]) -> Iterator[tuple[OutputRef, Violation]]:
    """Change one query in the contexts of several attentions, and yield the violations with the contexts."""
    symbol = axes[0].symbol
    index = subject.numbers[symbol] // 2
    changes = {one.core.context: others_at(one.axis, index) for one in axes}
    moved = subject.perturb_each(Intervention(results=changes)).diff
    if not moved.comparable:
        for one in axes if len(axes) > 1 else ():
            yield from _tokens_along(subject, [one])
        return
    within = _within_attention(subject)
    judged: set[OutputRef] = set()
    for divergence in divergences(moved, symbol, index, subject.numbers, changes):
        before = [one for one in axes if divergence.ref in subject.graph.downstream_of(one.core.context)]
        # the last attention on which it depends; only the first divergence after each counts
        last = max(before, key=lambda one: one.core.context, default=None)
        if divergence.ref in within or last is None or last.core.context in judged:
            continue
        judged.add(last.core.context)
        evidence = f"changed the context of query {index}"
        violation = None
        if divergence.event.name not in DATA_MOVEMENT:
            violation = mixed(subject, divergence, index, evidence)
        elif scrambles(subject, divergence, symbol, index, partial(_of_query, last.core, last.axis)):
            violation = _scrambled(subject, last.core, divergence, symbol, index, evidence)
        if violation is not None:
            yield last.core.context, violation


def _within_attention(subject: Subject) -> set[OutputRef]:
    """Return the results that attention computes from queries, keys and values up to the context."""
    within: set[OutputRef] = set()
    for core in subject.cores:
        products = (core.scores, *core.more_scores, *core.positional)
        for start in (ref for product in products for ref in (OutputRef(product.first.order), product.ref)):
            calls = between(subject.graph, start, (core.context,))
            within |= {start, *(ref for call in calls for ref in call.refs)}
    return within


def _of_query(core: Core | FusedCore, axis: int, index: int) -> Intervention:
    """Return a change of one query's context."""
    return Intervention(results={core.context: others_at(axis, index)})


def _scrambled(
    subject: Subject, core: Core | FusedCore, divergence: Divergence, symbol: str, index: int, evidence: str
) -> Violation:
    cat = _join_before(subject, core, divergence.event)
    heads = subject.numbers.get("H", 0)
    shape = subject.base.value(core.context).shape
    code, how = "AS105", "a layout operation scrambles tokens"
    at, hint = divergence.ref, ".transpose(1, 2).reshape(B, L, D)"
    if heads > 1 and reaches_by_data_movement(subject.graph, [core.context], divergence.event):
        if cat is not None and len(subject.attentions) >= heads:
            code, how = "AS115", "heads are concatenated along the wrong axis"
            at, hint = cat, "torch.cat(heads, dim=-1)"
        elif heads in shape or heads * subject.batch_size in shape:
            code, how = "AS114", "heads are merged without transposing back"
    return Violation(code, f"{how}: {where(divergence, symbol, f'the context of query {index}')}", at, hint, evidence)


def _join_before(subject: Subject, core: Core | FusedCore, event: ReplayedCall) -> OutputRef | None:
    """Return the concatenation of heads between a context and a later call, which may be that call."""
    reached: set[Producer] = {core.context}
    for later in subject.base.events[core.context.order : event.order]:
        if later.producers & reached:
            reached.update(later.refs)
            if later.name in JOINS:
                return later.refs[0]
    return None


@dataclass(frozen=True)
class _Merge:
    """Two heads whose contexts can be changed, and the projection that reads them merged."""

    core: Core | FusedCore
    changes: Sequence[Mapping[OutputRef, Replace]]
    """The change of each head."""
    event: ReplayedCall
    place: int
    width: int


def _heads(subject: Subject, merges: Sequence[_Merge]) -> dict[OutputRef, Violation]:
    """Look at which features the contexts of two heads end up in, and return the violations by the context."""
    runs = []
    for head in (0, 1) if merges else ():
        changes = {ref: change for one in merges for ref, change in one.changes[head].items()}
        runs.append(subject.perturb_each(Intervention(results=changes)).run)
    if not all(run.follows(subject.base) for run in runs):
        alone = [_heads(subject, [one]) for one in merges if len(merges) > 1]
        return {context: violation for found in alone for context, violation in found.items()}
    heads = subject.numbers.get("H", 0)
    violations: dict[OutputRef, Violation] = {}
    for one in merges:
        before = one.event.operand_values[one.place]
        after = (run.events[one.event.order - 1].operand_values[one.place] for run in runs)
        features = [changed_indices(differs(before, value, subject.experiment.tolerance), -1) for value in after]
        if features == [set(range(head, heads * one.width, heads)) for head in (0, 1)]:
            violations[one.core.context] = _misordered(subject, one)
    return violations


def _covers(merge: _Merge, core: Core | FusedCore) -> bool:
    """Return whether a merge compares heads of this attention, or attentions that are one head each."""
    first, second = merge.changes
    return merge.core is core or first.keys() != second.keys()


def _merge(subject: Subject, core: Core | FusedCore) -> _Merge | None:
    heads = subject.numbers.get("H", 0)
    context = subject.base.value(core.context)
    if heads < 2:
        return None
    width = context.shape[-1]
    axis = next((axis for axis, size in enumerate(context.shape[:-1]) if size == heads), None)
    every = subject.attentions
    changes: list[Mapping[OutputRef, Replace]]
    if axis is not None:
        changes = [{core.context: others_at(axis, head)} for head in (0, 1)]
    elif len(every) == heads and core is every[0]:
        changes = [{every[head].context: other_numbers} for head in (0, 1)]
    else:
        return None
    read = _projection(subject, core.context, heads * width)
    return _Merge(core, changes, *read, width) if read is not None else None


def _misordered(subject: Subject, merge: _Merge) -> Violation:
    heads, width = subject.numbers["H"], merge.width
    ends = f"head 0 ends up in features 0, {heads}, {2 * heads}, …, expected 0 to {width - 1}"
    message = f"heads are merged in the wrong order: {ends}"
    hint = "permute the axes to (B, L, H, Dk) before the reshape"
    at = _merging_call(subject, merge.core.context, merge.event, heads * width)
    return Violation("AS115", message, at, hint, "changed the contexts of heads 0 and 1")


def _merging_call(subject: Subject, context: OutputRef, read: ReplayedCall, width: int) -> OutputRef:
    """Return the call that joins heads before a projection reads them, else the first that gives the merged width."""
    downstream = subject.graph.downstream_of(context)
    path = subject.base.events[context.order : read.order - 1]
    layout = [later for later in path if later.name in DATA_MOVEMENT and later.refs[0] in downstream]
    joined = next((later for later in layout if later.name in JOINS), None)
    return (joined or next((later for later in layout if later.values[0].shape[-1] == width), read)).refs[0]


def _reordered_heads(subject: Subject, core: Core | FusedCore) -> Violation | None:
    width = subject.numbers.get("H", 0) * subject.base.value(core.context).shape[-1]
    read = _projection(subject, core.context, width)
    return judge_order(subject, core, read, _merging_call(subject, core.context, read[0], width)) if read else None


def _projection(subject: Subject, start: OutputRef, width: int) -> tuple[ReplayedCall, int] | None:
    """Return the projection of the merged heads, if only layout operations precede it, and which operand they are."""
    reached: set[Producer] = {start}
    for event in subject.base.events[start.order :]:
        for place, sources in enumerate(event.sources):
            if reached.isdisjoint(sources):
                continue
            if event.name in PRODUCTS:
                return (event, place) if event.operand_values[place].shape[-1] == width else None
            if event.name in DATA_MOVEMENT | DROPOUTS | CASTS:
                reached.update(event.refs)
    return None


def _query_axes(subject: Subject, core: Core | FusedCore) -> Iterator[_QueryAxis]:
    """Yield the axes of the context that only the weights have, and that have the size of a length, and of no other.

    A map as high as wide has blocks whose queries may be as many as its rows.
    """
    shape = subject.base.value(core.context).shape
    for axis in (len(shape) - 2,) if isinstance(core, FusedCore) else sorted(core.value.free(core.weights_place)):
        symbol = next((length for length in subject.lengths if subject.numbers[length] == shape[axis]), None)
        if symbol is not None and subject.is_distinct(symbol):
            yield _QueryAxis(core, axis, symbol)

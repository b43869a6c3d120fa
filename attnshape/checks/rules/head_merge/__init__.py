"""Are the heads' contexts merged token by token, one head after the other?"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from attnshape.checks.attention.cores import Core, FusedCore, reaches_by_data_movement
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
from attnshape.checks.rules.protocol import Outcome, Undecided, Verification, Violation
from attnshape.checks.rules.tokens import mixed, scrambles, where
from attnshape.tracing.operations import CASTS, DATA_MOVEMENT, DROPOUTS, JOINS, PRODUCTS

CODES: tuple[str, ...] = ("AS103", "AS104", "AS105", "AS114", "AS115")
TOPIC = "merging of heads"


def check(subject: Subject) -> Iterator[Outcome]:
    """Change the context of one query, then of one head, and follow it to the output."""
    if not subject.attentions:
        yield Undecided(TOPIC, "no attention with a softmax was found")
        return
    violations = (_tokens(subject, core) or _heads(subject, core) for core in subject.attentions)
    yield next(filter(None, violations), None) or Verification("heads are merged token by token, in order")


def _tokens(subject: Subject, core: Core | FusedCore) -> Violation | None:
    context = subject.base.value(core.context)
    for axis in _query_axes(core):
        symbol = next((length for length in subject.lengths if subject.numbers[length] == context.shape[axis]), None)
        if symbol is None:
            continue
        index = subject.numbers[symbol] // 2
        moved = subject.perturb(_of_query(core, axis, index))
        if not moved.comparable:
            return None
        for divergence in divergences(moved, symbol, index, subject.numbers, {core.context}):
            evidence = f"changed the context of query {index}"
            if divergence.event.name not in DATA_MOVEMENT:
                return mixed(subject, divergence, index, evidence)
            wrong = scrambles(subject, divergence, symbol, index, partial(_of_query, core, axis))
            return _scrambled(subject, core, divergence, symbol, index, evidence) if wrong else None
    return None


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


def _heads(subject: Subject, core: Core | FusedCore) -> Violation | None:
    """Look at which features the contexts of two heads end up in."""
    heads = subject.numbers.get("H", 0)
    context = subject.base.value(core.context)
    if heads < 2:
        return None
    width = context.shape[-1]
    axis = next((axis for axis, size in enumerate(context.shape[:-1]) if size == heads), None)
    every = subject.attentions
    changes: list[dict[OutputRef, Replace]]
    if axis is not None:
        changes = [{core.context: others_at(axis, head)} for head in (0, 1)]
    elif len(every) == heads and core is every[0]:
        changes = [{every[head].context: other_numbers} for head in (0, 1)]
    else:
        return None
    read = _projection(subject, core.context, heads * width)
    if read is None:
        return None
    event, place = read
    features = []
    for change in changes:
        run = subject.experiment.run(Intervention(results=change))
        if not run.follows(subject.base):
            return None
        before, after = event.operand_values[place], run.events[event.order - 1].operand_values[place]
        features.append(changed_indices(differs(before, after, subject.experiment.tolerance), -1))
    if features != [set(range(head, heads * width, heads)) for head in (0, 1)]:
        return None
    downstream = subject.graph.downstream_of(core.context)
    between = subject.base.events[core.context.order : event.order - 1]
    layout = [later for later in between if later.name in DATA_MOVEMENT and later.refs[0] in downstream]
    joined = next((later for later in layout if later.name in JOINS), None)
    merges = joined or next((later for later in layout if later.values[0].shape[-1] == heads * width), event)
    ends = f"head 0 ends up in features 0, {heads}, {2 * heads}, …, expected 0 to {width - 1}"
    message = f"heads are merged in the wrong order: {ends}"
    hint = "permute the axes to (B, L, H, Dk) before the reshape"
    return Violation("AS115", message, merges.refs[0], hint, "changed the contexts of heads 0 and 1")


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


def _query_axes(core: Core | FusedCore) -> tuple[int, ...]:
    """Return the axes of the context that only the weights have: queries, and heads of a group."""
    if isinstance(core, FusedCore):
        return (core.event.values[0].ndim - 2,)
    return tuple(sorted(core.value.free(core.weights_place)))

"""Does each head get its own part of a table of biases, such as that of relative positions?"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator

import torch
from torch import Tensor

from attnshape.checks.attention.cores import FusedCore
from attnshape.checks.attention.moved_heads import first_scattered, moving_path
from attnshape.checks.attention.operands import AttentionOperand, head_change
from attnshape.checks.attention.perturbation import others_at
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Intervention, ReplayRun
from attnshape.checks.interventions.replay import ReplayedCall
from attnshape.checks.rules.protocol import Verification, Violation

_MOST_TABLES = 4


def check_tables(
    subject: Subject, query: AttentionOperand, wrong: Collection[str]
) -> Iterator[Violation | Verification]:
    """Change one index of the axis of a table that has as many indices as there are heads: one head's scores follow.

    `wrong` are the names of tables that have a finding already.
    """
    heads = subject.numbers.get("H", 0)
    if heads < 2 or not subject.is_distinct("H") or _is_product(subject, heads):
        return
    tables = [table for table in _tables(subject, query, heads) if table[0] not in wrong][:_MOST_TABLES]
    of_heads = [_scores_of(subject, query, head, heads) for head in {0, 1, heads - 1}] if tables else []
    known = [scores for scores in of_heads if scores is not None]
    if not known or len(known) < len(of_heads) or bool((torch.stack(known).sum(0) > 1).any()):
        return  # heads that can't be changed one at a time
    for name, path in tables:
        value = {**subject.base.state, **subject.base.inputs}[name]
        others = {name: others_at(list(value.shape).index(heads), 0)}
        table_change = Intervention(parameters=others) if name in subject.base.state else Intervention(inputs=others)
        run = subject.experiment.run(table_change)
        changed = _changed_scores(subject, query, run)
        if changed is None:
            continue
        # a score that a mask hides changes with no head, though it may change with the mask
        reached = [bool((changed & scores).any()) for scores in known]
        if sum(reached) > 1:
            message = f"the heads of {name} are mixed up: one index of its axis of {heads} heads changes several heads"
            hint = "move the axis with permute; view and reshape move no axes: bias.permute(2, 0, 1)"
            # behind the call that adds the table to scores, these have heads of their own
            own = list(itertools.takewhile(lambda call: call.refs[0] not in subject.graph.depends_on_data, path))
            scattered = first_scattered(subject.base, run, own, {heads: 1}, folded=False)
            at = scattered or [*path[len(own) :], path[-1]][0]
            yield Violation("AS710", message, at.refs[0], hint, f"changed {name} at index 0 of that axis")
        elif any(reached):
            yield Verification(f"each head gets its own part of {name}")


def _is_product(subject: Subject, heads: int) -> bool:
    """Return whether an axis with as many indices as there are heads may have two other sizes, as windows of a grid."""
    sizes = [size for symbol, size in subject.numbers.items() if symbol not in ("H", "Hkv", "G")]
    return any(first * second == heads for first, second in itertools.combinations(sizes, 2) if min(first, second) > 1)


def _tables(subject: Subject, query: AttentionOperand, heads: int) -> Iterator[tuple[str, list[ReplayedCall]]]:
    """Yield what has an axis of heads and only reaches the scores by being moved, added and scaled, with the calls."""
    core, graph = query.core, subject.graph
    sources = core.sources("attn_mask") if isinstance(core, FusedCore) else core.softmax.sources
    for name in sorted(graph.origins(sources)):
        value = {**subject.base.state, **subject.base.inputs}.get(name)
        if value is None or not value.is_floating_point() or list(value.shape).count(heads) != 1:
            continue
        path = moving_path(graph, name, sources)
        if path:
            yield name, path


def _scores_of(subject: Subject, query: AttentionOperand, head: int, heads: int) -> Tensor | None:
    """Return which scores change with one head of the queries; None if it can't be changed alone."""
    change = head_change(subject, query, head, heads)
    if change is None:
        return None
    run = subject.experiment.run(Intervention(inputs=change.inputs, results=change.results))
    return _changed_scores(subject, query, run)


def _changed_scores(subject: Subject, query: AttentionOperand, run: ReplayRun) -> Tensor | None:
    """Return which scores differ in a run, with all that is added to them; None if it made other calls."""
    core = query.core
    if not run.follows(subject.base):
        return None

    def at(order: int, place: int) -> Tensor:
        # exactly: next to the number of a mask, a tolerance would hide changes of some scores
        return run.events[order - 1].operand_values[place] != subject.base.events[order - 1].operand_values[place]

    if not isinstance(core, FusedCore):
        return at(core.softmax.owner.order, core.softmax.place)
    mask = core.place("attn_mask")
    rows = at(core.event.order, query.place).any(-1, keepdim=True)
    added = at(core.event.order, mask) if mask is not None else torch.zeros((), dtype=torch.bool)
    shape = (*query.value.shape[:-1], core.tensor("key").shape[-2])
    return rows.expand(shape) | added.expand(shape)

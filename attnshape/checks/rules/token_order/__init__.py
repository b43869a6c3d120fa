"""Does each token's result come from its own query, and a key's value from the key's token?

Attention is equivariant to the order of its queries: whatever moves tokens before it, such as the shift of windows (Liu
et al. 2021, https://arxiv.org/abs/2103.14030) or sorting into buckets, has to be undone after it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attnshape.checks.attention.operands import AttentionOperand, by_attention
from attnshape.checks.attention.perturbation import (
    PerturbationDiff,
    changed_indices,
    differs,
    other_numbers,
    others_on_diagonal,
)
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Intervention
from attnshape.checks.interventions.replay import OutputRef, Replace, ReplayedCall
from attnshape.checks.rules.protocol import Outcome, Verification, Violation
from attnshape.checks.rules.token_order.pairs import check_pairs, check_sources
from attnshape.tracing import operations as ops

CODES: tuple[str, ...] = ("AS106", "AS107", "AS108")
TOPIC = "order of tokens"
_MOST_ATTENTIONS = 4
_MOST_CHANGED = 1.5
"""How many tokens' contexts at most may differ, where one of each batch element was changed."""
_REORDERS = ops.SELECTIONS | {"roll", "flip", "gather", "take_along_dim", "index_select"}


def check(subject: Subject) -> Iterator[Outcome]:
    """Change a token's query alone, then the contexts that differ, and look at which tokens of the results change."""
    yield from check_sources(subject)
    yield from check_pairs(subject)
    kept = _kept_keys_and_values(subject)
    if kept is None:
        return
    queries = [query for query, *_ in by_attention(subject)]
    judged = False
    for path in _paths(subject, queries):
        # one run for all attentions: without other keys and values a token reaches nothing but its own result
        run = subject.perturb(_of_tokens(path, kept))
        moves = _read_moves(run, path) if run.comparable else None
        reached = [query for query in queries if run.comparable and run.any(query.core.context)]
        if moves is not None and all(token == end for token, end in moves):
            judged = judged or bool(reached)
            continue
        in_order = []
        for query in reached[:_MOST_ATTENTIONS]:
            contexts = _with_contexts_changed(subject, run, query, path, kept)
            moves = _read_moves(contexts, path) if contexts is not None else None
            if moves is None and contexts is not None:  # something after attention mixes tokens
                met = _first_meeting(subject, run, contexts, query, path)
                if met is not None:
                    yield _violation(subject, query, path, met)
                    return
            wrong = [(token, end) for token, end in moves or () if token != end]
            if wrong and not _is_shift(moves or [], path.size):
                token, end = wrong[0]
                move = _Move(token, end, f"ends up at {path.place(end)} of {path.result}")
                yield _violation(subject, query, path, move)
                return
            in_order.append(moves is not None and not wrong)
        judged = judged or (0 < len(in_order) == len(reached) and all(in_order))
    if judged:
        yield Verification("tokens come out of attention in the order in which they went in")


@dataclass(frozen=True)
class _Path:
    """The tokens of an input and of a result, along one axis or along two adjacent ones, such as rows and columns."""

    name: str
    result: str
    rows: int
    """The input's axis of the batch."""
    tokens: int
    """The input's first axis of tokens; `result_tokens` is the result's."""
    result_rows: int
    result_tokens: int
    sizes: tuple[int, ...]
    """The sizes of the axes of tokens."""
    first: int
    """The token that is changed in the first batch element, so that others change tokens at both ends."""
    step: int
    """How far apart the tokens are that are changed in neighbouring batch elements."""

    @property
    def size(self) -> int:
        """The number of tokens."""
        return math.prod(self.sizes)

    def token(self, element: int) -> int:
        """Return the token that is changed in a batch element."""
        return (self.first + element * self.step) % self.size

    def place(self, token: int) -> str:
        """Return a token as people write it: its index, or its row and column."""
        return str(token) if len(self.sizes) == 1 else str(divmod(token, self.sizes[1]))


@dataclass(frozen=True)
class _Move:
    """Where a token's context is found."""

    token: int
    end: int
    text: str
    """What happens to the token."""
    until: int | None = None
    """The call at which that is seen, if it isn't the last one."""


def _paths(subject: Subject, queries: Sequence[AttentionOperand]) -> Iterator[_Path]:
    """Yield the axes of tokens whose sizes are unambiguous, in the inputs from which the queries come."""
    batch = subject.batch_size
    sources = tuple(source for query in queries for source in query.sources)
    for name in sorted(subject.graph.origins(sources) & set(subject.inputs)):
        shape = subject.inputs[name].shape
        for result, value in subject.base.returned[:1]:
            if batch < 2 or shape.count(batch) != 1 or value.shape.count(batch) != 1:
                continue
            rows, result_rows = shape.index(batch), value.shape.index(batch)
            grids = _adjacent(shape, 2, batch) if min(len(shape), value.ndim) > 3 else ()
            for sizes, axis in (*_adjacent(shape, 1, batch), *grids):
                ends = [end for other, end in _adjacent(value.shape, len(sizes), batch) if other == sizes]
                count = math.prod(sizes)
                if len(ends) == 1 and count > 2:
                    # in a grid the next row, but not along a diagonal, where rows and columns may be swapped
                    step = 1 if len(sizes) == 1 else sizes[1] + 2
                    first = (count - step * ((batch + 1) // 2)) % count
                    yield _Path(name, result, rows, axis, result_rows, ends[0], sizes, first, step)


def _adjacent(shape: torch.Size, count: int, batch: int) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yield adjacent axes whose sizes no other axis has, the batch left out: their sizes, and the first one."""
    for axis in range(len(shape) - count + 1):
        sizes = tuple(shape[axis : axis + count])
        if batch not in sizes and all(size > 1 and shape.count(size) == 1 for size in sizes):
            yield sizes, axis


def _kept_keys_and_values(subject: Subject) -> dict[OutputRef, Replace] | None:
    """Return replacements that keep all keys and values as they are; None if some can't be replaced."""
    kept: dict[OutputRef, Replace] = {}
    for _, *others in by_attention(subject):
        for operand in others:
            source = operand.sources[0]
            if isinstance(source, OutputRef):
                kept[source] = _constant(subject.base.value(source))
            elif source in subject.inputs and source in subject.graph.origins(_query_sources(subject)):
                return None  # the queries come from this very tensor
    queries = {operand.sources[0] for operand, *_ in by_attention(subject)}
    return kept if queries.isdisjoint(kept) else None


def _query_sources(subject: Subject) -> tuple[OutputRef | str, ...]:
    return tuple(source for query, *_ in by_attention(subject) for source in query.sources)


def _constant(value: Tensor) -> Replace:
    return lambda _: value.clone()


def _of_tokens(path: _Path, kept: dict[OutputRef, Replace]) -> Intervention:
    """Return the intervention that changes another token in each batch element, and keeps keys and values."""
    last = path.tokens + len(path.sizes) - 1
    change = others_on_diagonal(_flat(path.rows, path.tokens, last), path.tokens, path.first, path.step)

    def flattened(value: Tensor) -> Tensor:
        return change(value.flatten(path.tokens, last)).reshape(value.shape)

    return Intervention(inputs={path.name: flattened}, results=kept)


def _flat(axis: int, first: int, last: int) -> int:
    """Return where an axis is after those from `first` to `last` were flattened."""
    return axis if axis < first else axis - (last - first)


def _with_contexts_changed(
    subject: Subject, run: PerturbationDiff, query: AttentionOperand, path: _Path, kept: dict[OutputRef, Replace]
) -> PerturbationDiff | None:
    """Return the run in which the contexts are changed that a change of tokens has reached."""
    context = query.core.context
    is_changed = run.mask(context)
    if float(is_changed.double().mean()) > _MOST_CHANGED / path.size:
        return None  # an axis of features, or tokens that are mixed before
    later = {ref: keep for ref, keep in kept.items() if ref.order > context.order}

    def change(value: Tensor) -> Tensor:
        return torch.where(is_changed, other_numbers(value), value)

    contexts = subject.perturb(Intervention(results={**later, context: change}))
    return contexts if contexts.comparable else None


def _first_meeting(
    subject: Subject, run: PerturbationDiff, contexts: PerturbationDiff, query: AttentionOperand, path: _Path
) -> _Move | None:
    """Return a token whose context is added to another one where both first meet; None if there is none.

    Where the residual stream itself was moved, as between the shift of windows and its reversal, both have moved alike.
    """
    downstream = subject.graph.downstream_of(query.core.context)
    for event in subject.base.events[query.core.context.order :]:
        producers = [sources[0] for sources in event.sources]
        own = [producer for producer in producers if producer in downstream]
        others = [one for one in producers if one not in downstream and subject.graph.carries_data((one,))]
        if event.name not in ops.ADDITIONS or len(own) != 1 or len(others) != 1 or not isinstance(own[0], OutputRef):
            continue
        shape, batch = event.values[0].shape, subject.batch_size
        starts = [start for sizes, start in _adjacent(shape, len(path.sizes), batch) if sizes == path.sizes]
        if len(starts) != 1 or shape.count(batch) != 1:
            return None
        at = replace(path, result_rows=shape.index(batch), result_tokens=starts[0])
        mask = run.mask(others[0]) if isinstance(others[0], OutputRef) else _of_input(subject, run, others[0])
        before, after = (dict(_moves_in(one, at) or ()) for one in (mask, contexts.mask(own[0])))
        if before.keys() != after.keys() or len(set(after.values())) < len(after):
            return None  # tokens are mixed, which is another mistake
        moves = [
            _Move(token, end, f"is added to token {path.place(end)}", event.order)
            for token, end in zip(before.values(), after.values(), strict=True)
        ]
        return next((move for move in moves if move.token != move.end), None)
    return None


def _of_input(subject: Subject, run: PerturbationDiff, name: str) -> Tensor:
    return differs(subject.base.inputs[name], run.changed.inputs[name], subject.experiment.tolerance)


def _read_moves(run: PerturbationDiff, path: _Path) -> list[tuple[int, int]] | None:
    """Return each token that was changed, with the token of the result that differs; None if several differ."""
    mask = dict(run.returned()).get(path.result)
    return _moves_in(mask, path) if mask is not None else None


def _moves_in(mask: Tensor, path: _Path) -> list[tuple[int, int]] | None:
    """Return each token that was changed, with the token that differs in a mask of a result's axes."""
    last = path.result_tokens + len(path.sizes) - 1
    rows = _flat(path.result_rows, path.result_tokens, last)
    after = path.result_tokens - (path.result_tokens > path.result_rows)
    moves = []
    for element, differing in enumerate(mask.flatten(path.result_tokens, last).movedim(rows, 0)):
        tokens = changed_indices(differing, after)
        token = path.token(element)
        if element >= path.size:
            break
        if len(tokens) > 1 or (not tokens and token not in (0, path.size - 1)):
            return None
        moves += [(token, end) for end in tokens]
    return moves or None


def _is_shift(moves: list[tuple[int, int]], size: int) -> bool:
    """Return whether all tokens move on by the same number, and none from the end to the start."""
    by = {end - token for token, end in moves}
    return len(by) == 1 and all(0 <= token + min(by) < size for token, _ in moves) and len(moves) > 1


def _violation(subject: Subject, query: AttentionOperand, path: _Path, move: _Move) -> Violation:
    context = query.core.context
    downstream = subject.graph.downstream_of(context)
    later = subject.base.events[context.order : move.until]
    after = [event for event in later if event.refs and event.refs[0] in downstream]
    at = next(iter((*_last(after, _REORDERS), *_last(after, ops.DATA_MOVEMENT))), None)
    token = f"token {path.place(move.token)} of {path.name}"
    message = f"tokens leave attention in another order than they entered it: {token} {move.text}"
    hint = "undo after attention what moves the tokens before it, in the reverse order"
    evidence = "changed the queries of a token, then the contexts that differ; keys and values were kept"
    return Violation("AS106", message, at.refs[0] if at is not None else context, hint, evidence)


def _last(events: list[ReplayedCall], names: frozenset[str]) -> list[ReplayedCall]:
    return [event for event in events if event.name in names][-1:]
